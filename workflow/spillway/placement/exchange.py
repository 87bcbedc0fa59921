"""Experts of a placed tensor that change places: the same addresses, other pages.

What moves is the mapping, not the expert's number: an exchange through a map of ids would need one more kernel in every
layer of every step, and would have to permute scales as well. Remapping costs nothing between swaps.

An expert's pages in the range are its own, even where two experts share a page of memory: that page is mapped at both
places. So the unit of exchange is a slot, the room of one expert, and a copy into a slot leaves the other half of a shared
page alone. Slots of one class (see `Layout`) are interchangeable, in a layer and between layers: a promoted expert goes to
a spare slot, and the slot that the demoted one leaves is the next spare. Host slots stay with their layer, so the copies that
fill staging buffers stay what they are. Every slot is also mapped at an address of its own, where copies reach it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from spillway.placement.layout import Layout, Memory, Place, spare_layout
from spillway.placement.pages import Handle, LostPages, PageError, Pages, PlacedTensor, copy_on


@dataclass(frozen=True)
class Slot:
    """Room for one expert of a tensor: the units that hold it, and the address at which copies reach it."""

    units: tuple[Handle, ...]
    address: int


@dataclass(frozen=True)
class Remapping:
    """A change of what backs the units at an address."""

    address: int
    unit_bytes: int
    old: tuple[Handle, ...]
    new: tuple[Handle, ...]


def remap_all(pages: Pages, changes: Iterable[Remapping]) -> None:
    """Make every change or none; raises PageError where none was made, LostPages where an address lost its memory."""
    made: list[Remapping] = []
    try:
        for change in changes:
            pages.remap(change.address, change.unit_bytes, change.old, change.new)
            made.append(change)
    except LostPages:
        raise
    except PageError as error:
        for change in reversed(made):
            try:
                pages.remap(change.address, change.unit_bytes, change.new, change.old)
            except PageError as again:
                raise LostPages(f"{error}; a change made before it could not be undone: {again}") from again
        raise


class Spares:
    """Spare GPU slots for the experts of one tensor of every layer, by class."""

    def __init__(self, pages: Pages, layout: Layout, each: int) -> None:
        room = spare_layout(layout, each)
        units = pages.allocate("gpu", room.unit_bytes, room.gpu_units)
        address = pages.map(room.gpu_bytes, room.unit_bytes, [(i * room.unit_bytes, u) for i, u in enumerate(units)])
        self.bytes = room.gpu_bytes
        self.free: list[list[Slot]] = [[] for _ in range(layout.classes)]
        for i, place in enumerate(room.places()):
            self.free[i % layout.classes].append(_slot(place, units, address, room.unit_bytes))

    def count(self) -> int:
        return sum(map(len, self.free))


class ExchangeTensor(PlacedTensor):
    """A placed tensor whose experts can move between the memories; with `host_copy` the host keeps all of them.

    Raises PageError where memory is refused.
    """

    def __init__(
        self, pages: Pages, layout: Layout, like: torch.Tensor, staging: Sequence[Handle] | None, host_copy: bool
    ) -> None:
        self._host_copy = host_copy
        super().__init__(pages, layout, like, staging)

    def _settle(self, units: Mapping[Memory, Sequence[Handle]], staging: Sequence[Handle] | None) -> None:
        """Keep the handles, and give every slot an address of its own."""
        layout, size = self.layout, self.layout.unit_bytes
        self._places = layout.places()
        self._gpu_address = self._line_up(units["gpu"])
        lines = {"gpu": (units["gpu"], self._gpu_address), "host": (units["host"], self.host_address)}
        self.slots = [_slot(place, *lines[place.memory], size) for place in self._places]
        self.host_slots = {e: self.slots[e] for e, place in enumerate(self._places) if place.memory == "host"}
        self.staging_slots: dict[int, Slot] = {}
        if staging is not None:
            self.staging_slots = {e: _slot(self._places[e], staging, self._staging_address, size) for e in self.host_slots}
        self.copied_bytes = 0
        if self._host_copy:
            # As many units as the GPU experts have, so that their copies lie as they do and one copy makes them all.
            copies = self._pages.allocate("host", size, layout.gpu_units)
            self._copies_address = self._line_up(copies)
            self.copied_bytes = layout.gpu_bytes
            self.host_slots |= {
                e: _slot(place, copies, self._copies_address, size)
                for e, place in enumerate(self._places)
                if place.memory == "gpu"
            }

    def fill_copies(self, stream: torch.cuda.Stream) -> None:
        """Give the host its copies of the GPU experts, once these are loaded."""
        if self._host_copy and self.layout.gpu_bytes:
            copy_on(stream, self._copies_address, self._gpu_address, self.layout.gpu_bytes)

    def copy(self, stream: torch.cuda.Stream) -> None:
        """Bring the host experts to the staging units, in the stream's order."""
        if not self._host_copy:
            super().copy(stream)
            return
        # The host experts lie among the copies of the others.
        for expert, staged in self.staging_slots.items():
            copy_on(stream, staged.address, self.host_slots[expert].address, self.layout.expert_bytes)

    def fetch(self, expert: int, spare: Slot, stream: torch.cuda.Stream) -> None:
        """Copy a host expert to a spare slot."""
        copy_on(stream, spare.address, self.host_slots[expert].address, self.layout.expert_bytes)

    def put_back(self, expert: int, host: Slot, stream: torch.cuda.Stream) -> None:
        """Copy a GPU expert to a host slot."""
        copy_on(stream, host.address, self.slots[expert].address, self.layout.expert_bytes)

    def promotion(self, expert: int, spare: Slot) -> list[Remapping]:
        """What must be mapped for the expert to be read from a spare slot, staged or not."""
        return self._remappings(expert, spare, spare)

    def promoted(self, expert: int, spare: Slot) -> tuple[Slot, Slot | None]:
        """Note that it is; returns the host slot and the staging slot that the demoted expert takes over."""
        self.slots[expert] = spare
        staged = self.staging_slots.pop(expert, None)
        host = self.host_slots[expert] if self._host_copy else self.host_slots.pop(expert)
        return host, staged

    def demotion(self, expert: int, host: Slot, staged: Slot | None) -> list[Remapping]:
        """What must be mapped for the expert to be read from a host slot, and staged from a staging slot."""
        return self._remappings(expert, host, staged)

    def demoted(self, expert: int, host: Slot, staged: Slot | None) -> Slot:
        """Note that it is; returns the GPU slot that this makes spare."""
        freed, self.slots[expert] = self.slots[expert], host
        self.host_slots[expert] = host
        if staged is not None:
            self.staging_slots[expert] = staged
        return freed

    def _remappings(self, expert: int, slot: Slot, staged: Slot | None) -> list[Remapping]:
        offset, size = self._places[expert].offset_bytes, self.layout.unit_bytes
        changes = [Remapping(self.address + offset, size, self.slots[expert].units, slot.units)]
        if self.staged is not None:
            assert staged is not None
            before = self.staging_slots.get(expert, self.slots[expert])
            changes.append(Remapping(self.staged_address + offset, size, before.units, staged.units))
        return changes


def _slot(place: Place, units: Sequence[Handle], address: int, unit_bytes: int) -> Slot:
    first = place.units[0]
    return Slot(tuple(units[unit] for unit in place.units), address + first * unit_bytes + place.inner_bytes)
