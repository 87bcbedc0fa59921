"""Send a plan's requests from one event loop: closed-loop streams or arrivals, warm-up, measured part, cool-down.

A stream that has warmed up goes on until all streams have, and one that is through with its measured requests goes on
until all are: so every measured request meets the batch that the workload asks for, and nothing drains before or within
the window. What is still open when the last measured request ends is cancelled.
"""

import asyncio
import contextlib
import gc
import itertools
import math
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from typing import Literal

from spillway.load.client import Client, Reply
from spillway.load.turns import Plan, Turn

Phase = Literal["warmup", "measured", "cooldown"]

WATCH_S = 0.05  # how soon the end of the cell is noticed by what waits or is in flight
FAILED_PAUSE_S = 0.5  # of a stream after a failure: a dead server must be noticed first, one that refuses not be flooded
DEATH_GRACE_S = 1.0  # for connections to break by themselves when the server has died
LIMIT_OVER = "limit_s of the workload was over"


@dataclass
class Exchange:
    """One request, planned or sent, and what became of it."""

    stream: int | None
    turn: int
    phase: Phase
    scheduled_s: float | None  # time.monotonic()
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int
    reply: Reply = field(default_factory=Reply)
    cancelled: bool = False


class Tally:
    """What the processes of one cell know of each other; the context must be "spawn" for it to reach them."""

    def __init__(self, warming: int, measured: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._warming: Synchronized[int] = context.Value("i", warming)  # streams not warm yet
        self._left: Synchronized[int] = context.Value("i", measured)  # measured requests not over yet
        self._stopped: Synchronized[int] = context.Value("i", 0)
        self._ready: Synchronized[int] = context.Value("i", 0)
        self._start_s: Synchronized[float] = context.Value("d", 0.0)

    def one_is_warm(self) -> None:
        with self._warming.get_lock():
            self._warming.value -= 1

    def measured_over(self, requests: int = 1) -> None:
        with self._left.get_lock():
            self._left.value -= requests

    @property
    def all_warm(self) -> bool:
        return self._warming.value <= 0

    @property
    def left(self) -> int:
        return self._left.value

    def stop(self) -> None:
        """No more requests: the server is gone."""
        self._stopped.value = 1

    @property
    def stopped(self) -> bool:
        return bool(self._stopped.value)

    def one_is_ready(self) -> None:
        with self._ready.get_lock():
            self._ready.value += 1

    @property
    def ready(self) -> int:
        return self._ready.value

    def start(self) -> float:
        """Start the cell's clock; returns its zero on time.monotonic(), which all processes of a machine share."""
        self._start_s.value = time.monotonic()
        return self._start_s.value

    async def started(self) -> float:
        """Wait for `start`; returns what it returned."""
        while not self._start_s.value:
            await asyncio.sleep(0.001)
        return self._start_s.value


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Without garbage collection, which stops all streams for as long as the heap is large."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def prime(client: Client, plan: Plan, exchanges: list[Exchange]) -> None:
    """Send what must be answered before any stream starts, one after the other, and record it in `exchanges`."""
    for number, turn in enumerate(plan.prime):
        exchange = _exchange(None, number, "warmup", time.monotonic(), turn)
        exchanges.append(exchange)
        await _send(client, exchange, turn)


async def drive(
    client: Client, plan: Plan, tally: Tally, *, share: tuple[int, int] = (0, 1), limit_s: float | None = None
) -> list[Exchange]:
    """Send this process's share (index, of how many) of the streams or arrivals, until the cell is over.

    Returns every request in the order in which it was made; measured ones that were never sent stand at the end of their
    stream with the class not_sent.
    """
    run = _Run(client, plan, tally, await tally.started(), limit_s)
    index, processes = share
    if plan.arrivals is None:
        streams = list(enumerate(plan.streams))[index::processes]
        senders = [asyncio.create_task(run.stream(number, turns)) for number, turns in streams]
    else:
        arrivals = itertools.islice(enumerate(plan.arrivals), index, None, processes)
        senders = [asyncio.create_task(run.arrivals(arrivals))]
    try:
        pending = set(senders)
        while pending and tally.left > 0 and not tally.stopped:
            done, pending = await asyncio.wait(pending, timeout=WATCH_S, return_when=asyncio.FIRST_EXCEPTION)
            for sender in done:
                sender.result()
        if pending and tally.stopped:
            await asyncio.wait(pending, timeout=DEATH_GRACE_S)
    finally:
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
    return run.exchanges


class _Run:
    """One process's part of a cell while it runs."""

    def __init__(self, client: Client, plan: Plan, tally: Tally, start_s: float, limit_s: float | None) -> None:
        self.client, self.plan, self.tally, self.start_s = client, plan, tally, start_s
        self.end_s = math.inf if limit_s is None else start_s + limit_s
        self.exchanges: list[Exchange] = []

    async def stream(self, stream: int, turns: Iterator[Turn]) -> None:
        """A chain of requests, each after the answer before and its pause; ends when the cell does."""
        warmup, unsent = self.plan.warmup, self.plan.measured
        number, turn, answered_s = 0, next(turns), self.start_s
        sending = False
        try:
            while True:
                due_s = answered_s + turn.wait_s
                await self._until(due_s)
                warm = number >= warmup and self.tally.all_warm
                phase: Phase = "warmup" if not warm else "measured" if unsent else "cooldown"
                if not self._may_send(phase):
                    return
                unsent -= phase == "measured"
                sending = True
                await self._send(_exchange(stream, number, phase, due_s, turn), turn)
                sending = False
                answered_s = time.monotonic()
                number, turn = number + 1, next(turns)
                if number == warmup:
                    self.tally.one_is_warm()
        finally:
            if sending:  # cancelled: this request has a record already
                number, turn = number + 1, next(turns)
            for later in range(unsent):
                self._not_sent(_exchange(stream, number + later, "measured", None, turn))
                turn = next(turns)

    async def arrivals(self, turns: Iterator[tuple[int, Turn]]) -> None:
        """Requests by the clock; goes on after the measured ones until those are answered."""
        first, last = self.plan.warmup, self.plan.warmup + self.plan.measured
        async with asyncio.TaskGroup() as requests:
            number, turn = next(turns)
            try:
                while True:
                    due_s = self.start_s + _at_s(turn)
                    await self._until(due_s)
                    phase: Phase = "warmup" if number < first else "measured" if number < last else "cooldown"
                    if not self._may_send(phase):
                        return
                    requests.create_task(self._send(_exchange(None, number, phase, due_s, turn), turn))
                    number, turn = next(turns)
            finally:
                while number < last:
                    if number >= first:
                        self._not_sent(_exchange(None, number, "measured", self.start_s + _at_s(turn), turn))
                    number, turn = next(turns)

    async def _until(self, due_s: float) -> None:
        """Sleep until a request is due, or until none may be sent any more."""
        await asyncio.sleep(min(due_s, self.end_s) - time.monotonic())

    def _may_send(self, phase: Phase) -> bool:
        cell_is_over = self.tally.stopped or (phase == "cooldown" and self.tally.left <= 0)
        return not cell_is_over and time.monotonic() < self.end_s

    async def _send(self, exchange: Exchange, turn: Turn) -> None:
        self.exchanges.append(exchange)
        await _send(self.client, exchange, turn, self.end_s)
        if exchange.reply.sent_s is None:  # the limit was over before the client had a slot for it
            if exchange.phase == "measured":
                exchange.reply.fail("not_sent", LIMIT_OVER)
            else:
                exchange.cancelled = True
        if exchange.phase == "measured":
            self.tally.measured_over()
        if exchange.reply.error is not None:
            await asyncio.sleep(FAILED_PAUSE_S)

    def _not_sent(self, exchange: Exchange) -> None:
        """Record a measured request that will not be sent, so that what the workload asked for stays countable."""
        exchange.reply.fail("not_sent", "the server had died" if self.tally.stopped else LIMIT_OVER)
        self.exchanges.append(exchange)
        self.tally.measured_over()


async def _send(client: Client, exchange: Exchange, turn: Turn, until_s: float = math.inf) -> None:
    try:
        await client.send(turn.prompt, turn.output_tokens, exchange.reply, until_s)
    except asyncio.CancelledError:
        exchange.cancelled = True
        raise


def _at_s(turn: Turn) -> float:
    if turn.at_s is None:
        raise ValueError("an arrival needs a time")
    return turn.at_s


def _exchange(stream: int | None, number: int, phase: Phase, due_s: float | None, turn: Turn) -> Exchange:
    return Exchange(stream, number, phase, due_s, turn.prompt_tokens, turn.output_tokens, turn.shared_tokens)
