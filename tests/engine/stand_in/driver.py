"""A stand-in for `cuda.bindings.driver` on a CPU: memory files are physical memory, fixed mmaps are mappings.

It enforces what the real driver does: whole units, page-aligned addresses, no overlap, no access over unmapped holes.
"""

import ctypes
import enum
import mmap
import os
import types

PAGE = 2 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_MAP_FIXED, _MAP_NORESERVE, _PROT_NONE = 0x10, 0x4000, 0

mapped: dict[int, tuple[int, tuple[int, int, int]]] = {}
left = {"gpu": 1 << 62, "host": 1 << 62}


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2


class CUmemLocationType(enum.IntEnum):
    CU_MEM_LOCATION_TYPE_DEVICE = 1
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3


class CUmemAllocationType(enum.IntEnum):
    CU_MEM_ALLOCATION_TYPE_PINNED = 1


class CUmemAllocationGranularity_flags(enum.IntEnum):
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0


class CUmemAccess_flags(enum.IntEnum):
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3


class CUdevice_attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 1
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 2


class CUmemAllocationProp:
    def __init__(self):
        self.type, self.location = None, types.SimpleNamespace(type=None, id=None)


class CUmemAccessDesc:
    def __init__(self):
        self.flags, self.location = None, types.SimpleNamespace(type=None, id=None)


def cuDeviceGet(index):
    return CUresult.CUDA_SUCCESS, index


def cuDeviceGetAttribute(attribute, device):
    no_numa = attribute is CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
    return CUresult.CUDA_SUCCESS, -1 if no_numa else 1


def cuMemGetAllocationGranularity(properties, option):
    return CUresult.CUDA_SUCCESS, PAGE


def cuMemCreate(size, properties, flags):
    kind = properties.location.type
    memory = "host" if kind is CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA else "gpu"
    if size > left[memory]:
        return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
    left[memory] -= size
    file = os.memfd_create("page")
    os.ftruncate(file, size)
    return CUresult.CUDA_SUCCESS, (file, size, kind)


def cuMemRelease(handle):
    return (CUresult.CUDA_SUCCESS,)


def cuMemAddressReserve(size, alignment, address, flags):
    raw = _libc.mmap(None, size + alignment, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
    return CUresult.CUDA_SUCCESS, -(-raw // alignment) * alignment


def cuMemMap(address, size, offset, handle, flags):
    file, unit, _ = handle
    sound = offset == 0 and size == unit and address % PAGE == 0
    if not sound or any(a < address + size and address < a + s for a, (s, _) in mapped.items()):
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, file, 0)
    mapped[address] = (size, handle)
    return (CUresult.CUDA_SUCCESS,)


def cuMemSetAccess(address, size, access, count):
    covered = sum(s for a, (s, _) in mapped.items() if address <= a < address + size)
    return (CUresult.CUDA_SUCCESS if covered == size else CUresult.CUDA_ERROR_INVALID_VALUE,)


def cuMemRetainAllocationHandle(address):
    for start, (size, handle) in mapped.items():
        if start <= address < start + size:
            return CUresult.CUDA_SUCCESS, handle
    return CUresult.CUDA_ERROR_INVALID_VALUE, None


def cuMemGetAllocationPropertiesFromHandle(handle):
    properties = CUmemAllocationProp()
    properties.location.type = handle[2]
    return CUresult.CUDA_SUCCESS, properties


def cuMemcpyAsync(target, source, size, stream):
    ctypes.memmove(target, source, size)
    return (CUresult.CUDA_SUCCESS,)
