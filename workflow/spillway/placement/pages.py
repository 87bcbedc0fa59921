"""Pages of GPU and host memory behind one address range, through the CUDA driver's virtual memory management.

Needs the `cuda.bindings` package that CUDA builds of torch depend on, CUDA 12.2 or later, and a current CUDA context.
Physical memory lives as long as a range maps it; the driver frees all of it when the process ends, however it ends.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from cuda.bindings import driver  # type: ignore[import-not-found]

from spillway.placement.layout import PAGE_BYTES, Layout, Memory

Handle = Any
"""A driver handle of physical memory (cuda.bindings has no type information)."""


class PageError(RuntimeError):
    """The driver refused memory or an address range."""


class LostPages(PageError):
    """A range lost its memory and could not be given it back."""


def _call(function: Any, *arguments: Any) -> Any:
    code, *values = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise PageError(f"{function.__name__} failed: {code.name}")
    return values[0] if values else None


def _attribute(device: int, name: str) -> int:
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(_call(driver.cuDeviceGetAttribute, attribute, _call(driver.cuDeviceGet, device)))


def host_node(device: int) -> int:
    """The host NUMA node nearest to the GPU; raises PageError where the driver cannot map host memory by node."""
    if not _attribute(device, "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
        raise PageError("this driver or GPU cannot map host memory into an address range; CUDA 12.2 or later is needed")
    # -1: a machine without NUMA, such as a virtual machine with one node, which is then node 0.
    return max(0, _attribute(device, "HOST_NUMA_ID"))


class Pages:
    """Allocates and maps pages for one GPU."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.node = host_node(device)
        for memory in ("gpu", "host"):
            granularity = int(
                _call(
                    driver.cuMemGetAllocationGranularity,
                    self._properties(memory),
                    driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM,
                )
            )
            if PAGE_BYTES % granularity:
                raise PageError(f"{memory} pages are {granularity} bytes here, which do not divide {PAGE_BYTES}")

    def _properties(self, memory: Memory) -> Any:
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        kinds = driver.CUmemLocationType
        if memory == "host":
            properties.location.type = kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA
            properties.location.id = self.node
        else:
            properties.location.type = kinds.CU_MEM_LOCATION_TYPE_DEVICE
            properties.location.id = self.device
        return properties

    def allocate(self, memory: Memory, unit_bytes: int, count: int) -> list[Handle]:
        """`count` physical units of `unit_bytes`; raises PageError, and keeps nothing, when the memory is not there.

        Host units come at 4 GB/s (H200, driver 580), with one thread or sixteen, in units of 2 MiB or 768 MiB.
        """
        handles: list[Handle] = []
        try:
            for _ in range(count):
                handles.append(_call(driver.cuMemCreate, unit_bytes, self._properties(memory), 0))
        except PageError as error:
            self.release(handles)
            where = f"host NUMA node {self.node}" if memory == "host" else f"GPU {self.device}"
            raise PageError(
                f"{where} gave {len(handles)} of {count} units of {unit_bytes} bytes ({error}). "
                "Put fewer experts there, or free memory"
            ) from error
        return handles

    def release(self, handles: Sequence[Handle]) -> None:
        """Give up the handles; their memory stays as long as a range maps it."""
        for handle in handles:
            _call(driver.cuMemRelease, handle)

    def map(self, range_bytes: int, unit_bytes: int, places: Sequence[tuple[int, Handle]]) -> int:
        """Reserve a range and map units at (offset, handle); the rest stays unmapped. Returns the range's address."""
        address = int(_call(driver.cuMemAddressReserve, range_bytes, PAGE_BYTES, 0, 0))
        runs: list[list[int]] = []
        for offset, handle in sorted(places, key=lambda place: place[0]):
            _call(driver.cuMemMap, address + offset, unit_bytes, 0, handle, 0)
            if runs and runs[-1][1] == offset:
                runs[-1][1] += unit_bytes
            else:
                runs.append([offset, offset + unit_bytes])
        for start, end in runs:
            self._grant(address + start, end - start)
        return address

    def remap(self, address: int, unit_bytes: int, old: Sequence[Handle], new: Sequence[Handle]) -> None:
        """Let the units at `address`, which `old` back, be backed by `new`; nothing may read them meanwhile.

        Raises PageError with `old` mapped again as before when the driver refuses a step, and LostPages when it refuses
        that, too: the range then has a hole, and no kernel may run.
        """
        places = [address + i * unit_bytes for i in range(len(old))]
        backed: list[Handle | None] = list(old)
        try:
            for i, place in enumerate(places):
                _call(driver.cuMemUnmap, place, unit_bytes)
                backed[i] = None
                _call(driver.cuMemMap, place, unit_bytes, 0, new[i], 0)
                backed[i] = new[i]
            self._grant(address, len(places) * unit_bytes)
        except PageError as error:
            self._restore(places, unit_bytes, backed, old, error)
            raise

    def _restore(
        self, places: Sequence[int], unit_bytes: int, backed: Sequence[Handle | None], old: Sequence[Handle], why: PageError
    ) -> None:
        try:
            for place, found, due in zip(places, backed, old, strict=True):
                if found is due:
                    continue
                if found is not None:
                    _call(driver.cuMemUnmap, place, unit_bytes)
                _call(driver.cuMemMap, place, unit_bytes, 0, due, 0)
            self._grant(places[0], len(places) * unit_bytes)
        except PageError as error:
            raise LostPages(f"{why}, and what was mapped before could not be mapped again: {error}") from error

    def _grant(self, address: int, size: int) -> None:
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self.device
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _call(driver.cuMemSetAccess, address, size, [access], 1)

    def memory_at(self, address: int) -> Memory:
        """Which memory backs an address, as the driver says; raises PageError for one that this module did not map."""
        handle = _call(driver.cuMemRetainAllocationHandle, address)
        try:
            properties = _call(driver.cuMemGetAllocationPropertiesFromHandle, handle)
        finally:
            _call(driver.cuMemRelease, handle)
        kinds = driver.CUmemLocationType
        found = properties.location.type
        if found == kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA:
            return "host"
        if found == kinds.CU_MEM_LOCATION_TYPE_DEVICE:
            return "gpu"
        raise PageError(f"address {address:#x} lies in {found}")


class _Range:
    """What torch needs to make a CUDA tensor over an address range without owning it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def bytes_at(address: int, size: int, device: int) -> torch.Tensor:
    """A uint8 tensor over `size` bytes at a mapped address."""
    return torch.as_tensor(_Range(address, size), device=f"cuda:{device}")


def copy_on(stream: torch.cuda.Stream, target: int, source: int, size: int) -> None:
    """Copy between mapped addresses with the copy engine, in the stream's order."""
    _call(driver.cuMemcpyAsync, target, source, size, stream.cuda_stream)


class PlacedTensor:
    """A `[experts, ...]` CUDA tensor whose experts lie where the layout says.

    `tensor` reads every expert where it lies. With staging units, `staged` is a second view in which host experts are
    read from those units instead, after `copy` brought them there.
    """

    def __init__(self, pages: Pages, layout: Layout, like: torch.Tensor, staging: Sequence[Handle] | None) -> None:
        if like.shape[0] != layout.experts or like[0].numel() * like.element_size() != layout.expert_bytes:
            raise ValueError(f"layout of {layout.experts} x {layout.expert_bytes} bytes for a tensor {like.shape}")
        self.layout = layout
        self._pages = pages
        units: dict[Memory, list[Handle]] = {
            "gpu": pages.allocate("gpu", layout.unit_bytes, layout.gpu_units),
            "host": pages.allocate("host", layout.unit_bytes, layout.host_units),
        }
        self.address = self._map(units)
        self.tensor = self._view(self.address, like)
        self.host_address = self._line_up(units["host"])
        self.staged: torch.Tensor | None = None
        if staging is not None:
            staging = staging[: layout.host_units]
            self.staged_address = self._map({"gpu": units["gpu"], "host": staging})
            self.staged = self._view(self.staged_address, like)
            self._staging_address = self._line_up(staging)
        self._settle(units, staging)

    def _settle(self, units: Mapping[Memory, Sequence[Handle]], staging: Sequence[Handle] | None) -> None:
        """Nothing will be mapped again, so the handles are given up; the mappings keep the memory."""
        self._pages.release(units["gpu"])
        self._pages.release(units["host"])

    def _map(self, units: Mapping[Memory, Sequence[Handle]]) -> int:
        places = [(m.offset_bytes, units[m.memory][m.unit]) for m in self.layout.mappings]
        last = self.layout.mappings[-1]
        size = max(self.layout.range_bytes, last.offset_bytes + self.layout.unit_bytes)
        return self._pages.map(size, self.layout.unit_bytes, places)

    def _line_up(self, handles: Sequence[Handle]) -> int:
        """Map units one after another, so that one copy moves them all."""
        size = self.layout.unit_bytes
        return self._pages.map(len(handles) * size, size, [(i * size, handle) for i, handle in enumerate(handles)])

    def _view(self, address: int, like: torch.Tensor) -> torch.Tensor:
        layout = self.layout
        size = (layout.experts - 1) * layout.stride_bytes + layout.expert_bytes
        flat = bytes_at(address, size, self._pages.device).view(like.dtype)
        inner = like[0].contiguous().stride()
        return flat.as_strided(like.shape, (layout.stride_bytes // like.element_size(), *inner))

    def copy(self, stream: torch.cuda.Stream) -> None:
        """Bring the host experts to the staging units, in the stream's order."""
        copy_on(stream, self._staging_address, self.host_address, self.layout.host_bytes)

    def bytes_found(self, parameter: torch.Tensor) -> dict[Memory, int]:
        """Bytes behind `parameter` by memory, read back from the driver for every unit that its experts touch."""
        return self.found(parameter)[0]

    def found(self, parameter: torch.Tensor) -> tuple[dict[Memory, int], tuple[int, ...]]:
        """`bytes_found`, and the experts of which anything lies on the host, ascending."""
        found: dict[Memory, set[int]] = {"gpu": set(), "host": set()}
        on_host: set[int] = set()
        for mapping in self.layout.mappings:
            memory = self._pages.memory_at(parameter.data_ptr() + mapping.offset_bytes)
            found[memory].add(mapping.unit)
            if memory == "host":
                on_host.add(mapping.expert)
        return {memory: len(units) * self.layout.unit_bytes for memory, units in found.items()}, tuple(sorted(on_host))
