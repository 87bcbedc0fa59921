"""Where each expert's bytes lie: one address range in the model's expert order, backed by pages of two memories.

The kernel addresses expert e of a `[experts, ...]` tensor at `e * stride`. The range keeps that order, so routing, the
checkpoint loader and grouped routing need no permutation. Only the physical storage is reordered: all host experts lie
together, and so do all GPU experts. CUDA maps memory in pages of 2 MiB, so an expert can be stored at any place whose
offset within a page equals its offset in the range; a page shared by two experts is mapped once for each of them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

PAGE_BYTES = 2 << 20
"""Granularity of CUDA's virtual memory management for device and host memory, bytes (checked against the driver)."""

Memory = Literal["gpu", "host"]


@dataclass(frozen=True)
class Mapping:
    """One physical unit seen at one place of the address range: `unit` is an index into `memory`'s units."""

    expert: int
    offset_bytes: int
    memory: Memory
    unit: int


@dataclass(frozen=True)
class Place:
    """Where one expert lies: `units` of `memory`, from `inner_bytes` on, seen from `offset_bytes` of the range on."""

    memory: Memory
    units: tuple[int, ...]
    inner_bytes: int
    offset_bytes: int


@dataclass(frozen=True)
class Layout:
    """How a `[experts, ...]` tensor is spread over GPU and host pages; all sizes in bytes.

    Experts whose ids agree modulo `classes` lie at equal offsets within their pages, so they can change places.
    """

    experts: int
    expert_bytes: int
    slot_bytes: int
    classes: int
    stride_bytes: int
    unit_bytes: int
    gpu_units: int
    host_units: int
    host_experts: int
    mappings: tuple[Mapping, ...]

    def places(self) -> list[Place]:
        """Place of every expert, by id; an expert's units follow one another."""
        of: list[list[Mapping]] = [[] for _ in range(self.experts)]
        for mapping in self.mappings:
            of[mapping.expert].append(mapping)
        return [
            Place(
                memory=mine[0].memory,
                units=tuple(mapping.unit for mapping in mine),
                inner_bytes=expert * self.stride_bytes - mine[0].offset_bytes,
                offset_bytes=mine[0].offset_bytes,
            )
            for expert, mine in enumerate(of)
        ]

    @property
    def range_bytes(self) -> int:
        """Size of the address range, a multiple of the page."""
        return -(-((self.experts - 1) * self.stride_bytes + self.expert_bytes) // PAGE_BYTES) * PAGE_BYTES

    @property
    def host_bytes(self) -> int:
        return self.host_units * self.unit_bytes

    @property
    def gpu_bytes(self) -> int:
        return self.gpu_units * self.unit_bytes

    @property
    def host_rounding_bytes(self) -> int:
        """Host bytes allocated beyond the host experts' own bytes."""
        return self.host_bytes - self.host_experts * self.expert_bytes

    @property
    def gpu_rounding_bytes(self) -> int:
        """GPU bytes allocated beyond the GPU experts' own bytes."""
        return self.gpu_bytes - (self.experts - self.host_experts) * self.expert_bytes


def plan_layout(
    experts: int, expert_bytes: int, host: Collection[int], page_bytes: int = PAGE_BYTES, slot_bytes: int | None = None
) -> Layout:
    """Lay out `experts` experts of `expert_bytes` each with those in `host` on the host, wasting the fewest pages.

    An expert whose bytes are not whole pages is given a slot rounded up to some power-of-two fraction of a page; the
    fraction that needs the fewest pages wins, unless `slot_bytes` is given. A given slot of whole pages is one unit, so
    that it is mapped at once. Raises ValueError for an id out of range or sizes that are not positive.
    """
    if experts < 1 or expert_bytes < 1:
        raise ValueError(f"need at least one expert and one byte, got {experts} experts of {expert_bytes} bytes")
    outside = sorted(e for e in host if not 0 <= e < experts)
    if outside:
        raise ValueError(f"expert ids {outside} are outside 0..{experts - 1}")
    # The unit depends on the expert's size alone, so that all layers of a model can share staging buffers.
    unit_bytes = page_bytes if expert_bytes % page_bytes else expert_bytes
    if slot_bytes is not None and slot_bytes % page_bytes == 0:
        unit_bytes = slot_bytes
    sizes = _slot_sizes(expert_bytes, page_bytes) if slot_bytes is None else [slot_bytes]
    candidates = [_layout(experts, expert_bytes, size, unit_bytes, frozenset(host), page_bytes) for size in sizes]
    return min(candidates, key=lambda layout: layout.host_bytes + layout.gpu_bytes)


def placed_layout(experts: int, expert_bytes: int, host: Collection[int], most_classes: int | None) -> Layout:
    """The layout of a layer's tensor on a server with a plan; with `most_classes` its experts can change places."""
    slot_bytes = None if most_classes is None else exchange_slot_bytes(expert_bytes, most_classes)
    return plan_layout(experts, expert_bytes, host, slot_bytes=slot_bytes)


def exchange_slot_bytes(expert_bytes: int, most_classes: int, page_bytes: int = PAGE_BYTES) -> int:
    """The slot for experts that will change places: the smallest whose experts fall into at most `most_classes` classes.

    With one class it is whole pages, and any two experts can change places. The slot depends on the expert's size alone, so
    that any two layers of a model can use each other's spare slots.
    """
    sizes = [s for s in _slot_sizes(expert_bytes, page_bytes) if page_bytes // gcd(s, page_bytes) <= most_classes]
    return min(sizes)


def spare_layout(layout: Layout, spares: int, page_bytes: int = PAGE_BYTES) -> Layout:
    """Where `spares` GPU slots of each class of `layout` lie among pages of their own; "expert" i is of class i % classes."""
    count = spares * layout.classes
    return _layout(count, layout.expert_bytes, layout.slot_bytes, layout.unit_bytes, frozenset(), page_bytes)


def _slot_sizes(expert_bytes: int, page_bytes: int) -> list[int]:
    sizes = []
    alignment = page_bytes
    while alignment >= 1:
        sizes.append(-(-expert_bytes // alignment) * alignment)
        if sizes[-1] == expert_bytes:
            break
        alignment //= 2
    return sizes


def _layout(experts: int, expert_bytes: int, slot_bytes: int, unit_bytes: int, host: frozenset[int], page_bytes: int) -> Layout:
    classes = page_bytes // gcd(slot_bytes, page_bytes)
    # One page of distance keeps two experts' pages apart in the range, so that each can be backed on its own.
    stride_bytes = slot_bytes if classes == 1 else slot_bytes + page_bytes
    mappings: list[Mapping] = []
    units: dict[Memory, int] = {}
    members: tuple[tuple[Memory, list[int]], ...] = (
        ("gpu", [e for e in range(experts) if e not in host]),
        ("host", [e for e in range(experts) if e in host]),
    )
    for memory, ids in members:
        placed = [
            (expert, place // unit_bytes, (place + expert_bytes - 1) // unit_bytes, place)
            for expert, place in _places(ids, slot_bytes, classes)
        ]
        used = sorted({unit for _, first, last, _ in placed for unit in range(first, last + 1)})
        index = {unit: i for i, unit in enumerate(used)}
        units[memory] = len(used)
        for expert, first, last, place in placed:
            start = expert * stride_bytes - place % unit_bytes
            mappings += [
                Mapping(expert, start + (unit - first) * unit_bytes, memory, index[unit]) for unit in range(first, last + 1)
            ]
    mappings.sort(key=lambda m: m.offset_bytes)
    return Layout(
        experts=experts,
        expert_bytes=expert_bytes,
        slot_bytes=slot_bytes,
        classes=classes,
        stride_bytes=stride_bytes,
        unit_bytes=unit_bytes,
        gpu_units=units["gpu"],
        host_units=units["host"],
        host_experts=len(host),
        mappings=tuple(mappings),
    )


def _places(ids: Sequence[int], slot_bytes: int, classes: int) -> list[tuple[int, int]]:
    """Storage place of each expert, bytes: slot j holds an expert e with j = e (mod classes), so page offsets agree."""
    seen = [0] * classes
    places = []
    for expert in ids:
        kind = expert % classes
        places.append((expert, (kind + classes * seen[kind]) * slot_bytes))
        seen[kind] += 1
    return places
