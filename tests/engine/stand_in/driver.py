"""A stand-in for `cuda.bindings.driver` on a CPU: memory files are physical memory, fixed mmaps are mappings.

It enforces what the real driver does: whole units, page-aligned addresses, no overlap, no access over unmapped holes or
before access is granted, memory freed with its last handle and mapping. `refuse` makes one call fail, for tests.
"""

import ctypes
import enum
import mmap
import os
import types
from dataclasses import dataclass

PAGE = 2 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FIXED, _MAP_NORESERVE, _PROT_NONE = 0x10, 0x4000, 0
_SHUT = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED


@dataclass(eq=False)
class Physical:
    """Memory of one handle: a file, how many handles and mappings keep it."""

    file: int
    size: int
    kind: int
    users: int = 1


mapped: dict[int, tuple[int, Physical]] = {}
_covered: set[int] = set()
"""Addresses of the pages that mappings cover."""
left = {"gpu": 1 << 62, "host": 1 << 62}
calls: list[str] = []
refuse: set[int] = set()
"""Numbers of calls, counted from the last `calls.clear()`, that fail."""


def _refused(name):
    calls.append(name)
    return len(calls) - 1 in refuse


def _drop(physical):
    physical.users -= 1
    if physical.users == 0:
        os.close(physical.file)
        left[_memory(physical.kind)] += physical.size


def _memory(kind):
    return "host" if kind is CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA else "gpu"


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
    memory = _memory(properties.location.type)
    if _refused("cuMemCreate") or size > left[memory]:
        return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
    left[memory] -= size
    file = os.memfd_create("page")
    os.ftruncate(file, size)
    return CUresult.CUDA_SUCCESS, Physical(file, size, properties.location.type)


def cuMemRelease(handle):
    _drop(handle)
    return (CUresult.CUDA_SUCCESS,)


def cuMemAddressReserve(size, alignment, address, flags):
    raw = _libc.mmap(None, size + alignment, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
    return CUresult.CUDA_SUCCESS, -(-raw // alignment) * alignment


def cuMemMap(address, size, offset, handle, flags):
    sound = offset == 0 and size == handle.size and address % PAGE == 0
    pages = range(address, address + size, PAGE)
    if _refused("cuMemMap") or not sound or not _covered.isdisjoint(pages):
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    _libc.mmap(address, size, _PROT_NONE, mmap.MAP_SHARED | _MAP_FIXED, handle.file, 0)
    handle.users += 1
    mapped[address] = (size, handle)
    _covered.update(pages)
    return (CUresult.CUDA_SUCCESS,)


def cuMemUnmap(address, size):
    if _refused("cuMemUnmap") or mapped.get(address, (0, None))[0] != size:
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    _libc.mmap(address, size, _PROT_NONE, _SHUT, -1, 0)
    _drop(mapped.pop(address)[1])
    _covered.difference_update(range(address, address + size, PAGE))
    return (CUresult.CUDA_SUCCESS,)


def cuMemSetAccess(address, size, access, count):
    covered, place = 0, address
    while place in mapped and covered < size:
        covered += mapped[place][0]
        place += mapped[place][0]
    if _refused("cuMemSetAccess") or covered != size:
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    _libc.mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE)
    return (CUresult.CUDA_SUCCESS,)


def cuMemRetainAllocationHandle(address):
    for start, (size, handle) in mapped.items():
        if start <= address < start + size:
            handle.users += 1
            return CUresult.CUDA_SUCCESS, handle
    return CUresult.CUDA_ERROR_INVALID_VALUE, None


def cuMemGetAllocationPropertiesFromHandle(handle):
    properties = CUmemAllocationProp()
    properties.location.type = handle.kind
    return CUresult.CUDA_SUCCESS, properties


def cuMemcpyAsync(target, source, size, stream):
    if _refused("cuMemcpyAsync"):
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    ctypes.memmove(target, source, size)
    return (CUresult.CUDA_SUCCESS,)
