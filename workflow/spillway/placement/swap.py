"""Carrying out swaps between the steps of a serving engine, on every rank alike.

A swap takes two or three boundaries between steps. At the first the promoted expert's copy to a spare GPU slot starts, beside
the steps that go on. At the next one, with the GPU idle, its pages are mapped in place; what reads it finds it in GPU memory
from then on. Its host slot is free now, so the demoted expert's copy to it starts, and the boundary after that maps it; where
the host keeps a copy of every expert, the demoted one is mapped at once. Whatever fails, each expert stays readable where it
last was.

Ranks need no barrier: they run the same steps, so they count the same boundaries. Rank 0 decides, at boundaries known in
advance, and what it hands over there is all that they exchange. Steps that stage host experts move nothing: they keep the link
busy, and one of them takes as long as many small ones.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from spillway.placement.exchange import ExchangeTensor, Slot, Spares, remap_all
from spillway.placement.follow import Following, Swap, SwapCost, begin, decide
from spillway.placement.journal import AuditRecord, EndRecord, Journal, Outcome, SwapRecord, TrafficRecord
from spillway.placement.layout import Memory
from spillway.placement.pages import LostPages, PageError, Pages
from spillway.placement.proof import AUDIT_EVERY
from spillway.placement.staging import Staging

_TRAFFIC_EVERY_S = 1.0
_FIRST_PAUSE_S = 1e-3  # until swaps were timed


@dataclass
class ExchangeLayer:
    """A layer whose experts can change places: `row` is its row in the counts, `index` its place in the staging order."""

    name: str
    row: int
    index: int
    tensors: Mapping[str, ExchangeTensor]
    checksums: Mapping[tuple[str, int], str]
    """Of every expert of every tensor, as loaded."""
    read_back: Callable[[str, int], tuple[Memory, str]]
    """Memory and checksum of an expert of a tensor as the layer's kernels read it now."""

    @property
    def classes(self) -> int:
        return max(tensor.layout.classes for tensor in self.tensors.values())


@dataclass(frozen=True)
class Proposal:
    """What a rank brings to a decision: why it cannot go on, if so, and, from rank 0, what to swap."""

    failure: str | None
    swaps: tuple[Swap, ...]


@dataclass
class _Move:
    """A swap under way."""

    swap: Swap
    layer: ExchangeLayer
    spares: dict[str, Slot]
    copies: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    host: dict[str, tuple[Slot, Slot | None]] = field(default_factory=dict)
    """Once promoted: the host and staging slot that the demoted expert gets."""
    bytes: int = 0
    map_s: float = 0.0

    @contextmanager
    def copying(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Add a pair of events around the copies inside, unless one of them fails."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(stream)
        yield
        end.record(stream)
        self.copies.append((start, end))

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Add the time inside to `map_s`, failed or not."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.map_s += time.perf_counter() - start


class Follower:
    """Swaps of one rank; `before_step` is called before every step that runs the model."""

    def __init__(
        self,
        following: Following,
        layers: Sequence[ExchangeLayer],
        spares: Mapping[str, Spares],
        pages: Pages,
        staging: Staging | None,
        on_host: NDArray[np.bool_],
        reads: Callable[[], NDArray[np.int64]],
        cost: SwapCost,
        journal: Journal,
        rank: int,
        agree: Callable[[Proposal], list[Proposal]],
        stages: Callable[[int], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_host` and what `reads` returns are `[layers, experts]`; `agree` gives every rank all ranks' proposals.

        `stages` says whether a step of so many rows reads staged copies, and must say the same on every rank.
        """
        self.following = following
        self.on_host = on_host.copy()
        self.agree, self.stages = agree, stages
        self.step = 0
        self.moving: list[_Move] = []
        self.stopped: str | None = None
        self.swaps_done = 0
        self._layers = {layer.row: layer for layer in layers}
        self.classes = max((layer.classes for layer in layers), default=1)
        self._spares, self._pages, self._staging = spares, pages, staging
        self._reads, self._cost, self._journal = reads, cost, journal
        self._rank, self._clock = rank, clock
        self._stream = torch.cuda.Stream()
        self._queue: list[Swap] = []
        self._started: list[Swap] = []
        self._failure: str | None = None
        self._ending: str | None = None
        self._decider = begin(on_host.shape, clock())
        self._last_reads = reads().copy()
        self._pause_s = 0.0
        self._unreported = np.zeros(2, dtype=np.int64)
        self._reported_s = clock()

    def before_step(self, rows: int) -> None:
        """Finish what was copied, decide where a decision is due, start copies; a step of `rows` rows comes next.

        Raises LostPages where a range was left without memory: no kernel may run after that.
        """
        self.step += 1
        if self.stopped is not None or self.stages(rows):
            return
        if self.moving:
            self._land()
        if self._ending is None:
            # All ranks end at one decision, so that none waits for another's proposal afterwards.
            if self.step % self.following.decide_steps == 0:
                self._decide()
            self._start()
        elif not self.moving:
            self.stopped = self._ending
            self._journal.write(EndRecord(step=self.step, t_s=self._clock(), reason=self.stopped))

    def spare_slots(self) -> int:
        """Spare slots that no swap holds, all tensors together; constant while none is under way."""
        return sum(spares.count() for spares in self._spares.values())

    # What moved

    def _land(self) -> None:
        """Map what the boundary before this one started to copy."""
        # Kernels of the step before may still read the pages, and no rank may be ahead of its copies.
        torch.cuda.synchronize()
        for move in list(self.moving):
            try:
                if not move.host:
                    self._promote(move)
                    if self.following.host_copy:
                        self._demote(move)
                    else:
                        self._send_back(move)
                else:
                    self._demote(move)
            except LostPages:
                raise
            except PageError as error:
                self._give_up(move, str(error))

    def _promote(self, move: _Move) -> None:
        up = move.swap.promote
        with move.timing():
            remap_all(
                self._pages,
                [c for key, t in move.layer.tensors.items() for c in t.promotion(up, move.spares[key])],
            )
        for key, tensor in move.layer.tensors.items():
            move.host[key] = tensor.promoted(up, move.spares[key])
        self.on_host[move.swap.layer, up] = False

    def _send_back(self, move: _Move) -> None:
        with move.copying(self._stream):
            for key, tensor in move.layer.tensors.items():
                tensor.put_back(move.swap.demote, move.host[key][0], self._stream)
                move.bytes += tensor.layout.expert_bytes

    def _demote(self, move: _Move) -> None:
        down, tensors = move.swap.demote, move.layer.tensors
        to = {
            key: (tensor.host_slots[down] if self.following.host_copy else move.host[key][0], move.host[key][1])
            for key, tensor in tensors.items()
        }
        with move.timing():
            remap_all(self._pages, [c for key, t in tensors.items() for c in t.demotion(down, *to[key])])
        for key, tensor in tensors.items():
            self._give_back(key, tensor, down, tensor.demoted(down, *to[key]))
        self.on_host[move.swap.layer, down] = True
        if self._staging is not None:
            self._staging.forget(move.layer.index)
        self.swaps_done += 1
        self._pause_s += move.map_s
        self._end(move, "done", None)
        if self.swaps_done % AUDIT_EVERY == 0:
            self._audit(move)

    def _give_up(self, move: _Move, reason: str) -> None:
        """Leave everything where it is, and stop following at the next decision, on all ranks."""
        if not move.host:
            for key, slot in move.spares.items():
                self._give_back(key, move.layer.tensors[key], move.swap.promote, slot)
        self._end(move, "not demoted" if move.host else "not promoted", reason)
        self._failure = self._failure or reason

    def _end(self, move: _Move, outcome: Outcome, reason: str | None) -> None:
        self.moving.remove(move)
        self._journal.write(
            SwapRecord(
                step=self.step,
                t_s=self._clock(),
                layer=move.layer.name,
                promoted=move.swap.promote,
                demoted=move.swap.demote,
                bytes=move.bytes,
                copy_s=sum(start.elapsed_time(end) for start, end in move.copies) / 1e3,
                map_s=move.map_s,
                outcome=outcome,
                reason=reason,
            )
        )

    def _audit(self, move: _Move) -> None:
        for key in move.layer.tensors:
            for expert in (move.swap.promote, move.swap.demote):
                memory, found = move.layer.read_back(key, expert)
                if found != move.layer.checksums[key, expert]:
                    self._failure = f"{move.layer.name}.{key}: expert {expert} differs from what was loaded"
                self._journal.write(
                    AuditRecord(
                        step=self.step,
                        t_s=self._clock(),
                        layer=move.layer.name,
                        tensor=key,
                        expert=expert,
                        memory=memory,
                        loaded=move.layer.checksums[key, expert],
                        in_place=found,
                    )
                )

    # What moves next

    def _decide(self) -> None:
        now, reads = self._clock(), self._reads().copy()
        made = reads - self._last_reads
        self._last_reads = reads
        self._report(now, made)
        swaps: list[Swap] = []
        if self._rank == 0 and self._failure is None:
            cost = replace(self._cost, pause_s=self._pause_s / self.swaps_done if self.swaps_done else _FIRST_PAUSE_S)
            busy = np.zeros_like(self.on_host)
            for move in self.moving:
                busy[move.swap.layer, [move.swap.promote, move.swap.demote]] = True
            self._decider, swaps = decide(
                self._decider,
                self.following,
                cost,
                now,
                made.astype(np.float64),
                self.on_host,
                busy,
                self._started,
                self.classes,
            )
        self._started = []
        proposals = self.agree(Proposal(self._failure, tuple(swaps)))
        failed = [f"rank {rank}: {p.failure}" for rank, p in enumerate(proposals) if p.failure is not None]
        self._ending = "; ".join(failed) or None
        self._queue = [] if failed else list(proposals[0].swaps)  # what was not started of the last ones is stale

    def _report(self, now: float, made: NDArray[np.int64]) -> None:
        rows = list(self._layers)
        placed, on_host = made[rows], self.on_host[rows]
        self._unreported += (int(placed.sum()), int(placed[on_host].sum()))
        if now - self._reported_s >= _TRAFFIC_EVERY_S:
            every, host = map(int, self._unreported)
            self._journal.write(TrafficRecord(step=self.step, t_s=now, reads=every, host_reads=host))
            self._unreported[:] = 0
            self._reported_s = now

    def _start(self) -> None:
        for _ in range(self.following.swaps_per_step):
            if not self._queue:
                return
            swap = self._queue[0]
            layer = self._layers[swap.layer]
            rooms = {key: self._spares[key].free[swap.promote % tensor.layout.classes] for key, tensor in layer.tensors.items()}
            if not all(rooms.values()):
                return
            del self._queue[0]
            self._started.append(swap)
            move = _Move(swap, layer, {key: room.pop() for key, room in rooms.items()})
            self.moving.append(move)
            try:
                with move.copying(self._stream):
                    for key, tensor in layer.tensors.items():
                        tensor.fetch(swap.promote, move.spares[key], self._stream)
                        move.bytes += tensor.layout.expert_bytes
            except PageError as error:
                self._give_up(move, str(error))

    def _give_back(self, key: str, tensor: ExchangeTensor, expert: int, slot: Slot) -> None:
        self._spares[key].free[expert % tensor.layout.classes].append(slot)
