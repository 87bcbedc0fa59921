"""Teams over many windows, batch by batch: overload, its episodes, what a person notices, and what moving costs."""

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
from numpy.typing import NDArray

from spillway.seats.demand import stream_speed
from spillway.seats.errors import SeatsError
from spillway.seats.occupancy import MOST_SERVERS, noticed, occupancy
from spillway.seats.overload import check_streams
from spillway.seats.replay import Ring, draw, thinned
from spillway.seats.routing import Routing, away_from_home, cold, route

Floats = NDArray[np.float64]
LENGTH_EDGES_S: Floats = np.concatenate([[0.0], np.geomspace(1e-3, 1e5, 1601)])
"""Bins for lengths of episodes: each 1.2 % wide, so that a quantile read from them is within that."""
TURNS_OF_A_BATCH = {"pooled": 400_000, "fixed": 400_000, "random": 400_000, "round-robin": 400_000}
TURNS_OF_A_STATEFUL_BATCH = 4_000_000
"""Routing by state steps through all teams of a batch together: few, large batches. About 0.7 GB."""


@dataclass(frozen=True)
class Setting:
    """`developers` developers of one team on `servers` servers of k streams each, for windows of `window_s` seconds.

    levels: common day profile, in equal parts of the window; draw from a ring with `replay.peak_q` then. speed: of one
    stream with 1, 2, ... busy on its server (any unit), for the work lost; None leaves what turns notice out.
    """

    developers: int
    servers: int
    k: int
    routing: Routing
    window_s: float
    levels: Sequence[float] | None = None
    speed: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_streams(self.k)
        if self.developers < 1 or self.servers < 1:
            raise SeatsError(f"found {self.developers} developers, {self.servers} servers; expected at least 1 of both")
        if self.speed is not None and len(self.speed) < self.k:
            raise SeatsError(f"speed: found {len(self.speed)} values; expected one for each of 1..{self.k} streams busy")

    @property
    def limit(self) -> int:
        """Streams that one queue holds at the floor: k, or k for each server if they are pooled."""
        return self.k * self.servers if self.routing == "pooled" else self.k


@dataclass(frozen=True)
class Outcome:
    """Sums over all windows of all teams; add outcomes of different windows with `+`.

    seconds_at: server-seconds by streams busy. episodes: counts by LENGTH_EDGES_S. The turn counts are of turns that begin
    inside a window: arrives_full those that found k others busy, touched those that ran in overload at any time.
    """

    windows: int
    developer_s: float
    seconds_at: Floats
    episodes: NDArray[np.int64]
    episode_s: float
    turns: int
    arrives_full: int
    touched: int
    overloaded_s: float
    lost_s: float
    away: int
    cold: int
    cold_tokens: int

    def __add__(self, other: "Outcome") -> "Outcome":
        longest = max(len(self.seconds_at), len(other.seconds_at))
        padded = [np.pad(o.seconds_at, (0, longest - len(o.seconds_at))) for o in (self, other)]
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "seconds_at"}
        return Outcome(seconds_at=padded[0] + padded[1], **sums)

    @property
    def busy(self) -> Floats:
        """P(X = x streams busy) on one server, over clock time."""
        shares: Floats = self.seconds_at / self.seconds_at.sum()
        return shares

    @property
    def q(self) -> float:
        """Mean number of busy streams of one developer."""
        return float((np.arange(len(self.seconds_at)) * self.seconds_at).sum() / self.developer_s)

    def episode_quantile_s(self, share: float) -> float | None:
        """Length that `share` of the episodes do not exceed (upper edge of its bin); None without episodes."""
        count = int(self.episodes.sum())
        if count == 0:
            return None
        return float(LENGTH_EDGES_S[1:][np.searchsorted(np.cumsum(self.episodes), share * count)])


def simulate(ring: Ring, setting: Setting, windows: int, seed: int, workers: int = 1) -> Outcome:
    """`windows` windows of one team, all independent; the same seed gives the same outcome for any number of workers."""
    if windows < 1:
        raise SeatsError(f"windows: found {windows}; expected at least 1")
    turns_of_a_window = setting.developers * setting.window_s * len(ring.start_s) / ring.period_s
    size = max(1, int(TURNS_OF_A_BATCH.get(setting.routing, TURNS_OF_A_STATEFUL_BATCH) / max(turns_of_a_window, 1)))
    size = min(size, MOST_SERVERS // setting.servers)
    batches = [size] * (windows // size) + [windows % size] * bool(windows % size)
    run = partial(_batch, ring, setting)
    seeds = np.random.SeedSequence(seed).spawn(len(batches))
    if workers > 1 and len(batches) > 1:
        with ProcessPoolExecutor(workers) as pool:
            outcomes = pool.map(run, batches, seeds, chunksize=math.ceil(len(batches) / workers / 8))
            return _total(list(outcomes))
    return _total([run(windows, seed) for windows, seed in zip(batches, seeds, strict=True)])


def _total(outcomes: list[Outcome]) -> Outcome:
    total = outcomes[0]
    for outcome in outcomes[1:]:
        total = total + outcome
    return total


def _batch(ring: Ring, setting: Setting, windows: int, seed: np.random.SeedSequence) -> Outcome:
    random = np.random.default_rng(seed)
    turns = draw(ring, windows, setting.developers, setting.window_s, random)
    if setting.levels is not None:
        turns = thinned(turns, setting.levels, random)
    pooled = setting.routing == "pooled"
    servers = 1 if pooled else setting.servers
    chosen = route(turns, setting.routing, servers, setting.k, random)
    place = turns.team * servers + chosen
    found = occupancy(turns, place, windows * servers)
    lengths = found.episodes_s(setting.limit)
    counts = {"arrives_full": 0, "touched": 0, "overloaded_s": 0.0, "lost_s": 0.0}
    if setting.speed is not None:
        busiest = max(int(found.level.max(initial=0)), setting.limit)
        speed = stream_speed(setting.speed, math.ceil(busiest / (setting.servers if pooled else 1)))
        notice = noticed(turns, place, found, setting.limit, np.repeat(speed, setting.servers) if pooled else speed)
        counts = {
            "arrives_full": int(notice.arrives_full.sum()), "touched": int((notice.overloaded_s > 0).sum()),
            "overloaded_s": float(notice.overloaded_s.sum()), "lost_s": float(notice.lost_s.sum()),
        }  # fmt: skip
    homes = setting.routing in ("home-with-spill", "fixed")
    unprepared = cold(turns, chosen, servers, homes)
    return Outcome(
        windows=windows,
        developer_s=turns.developers * turns.window_s,
        seconds_at=found.seconds_at(),
        episodes=np.histogram(np.minimum(lengths, LENGTH_EDGES_S[-1]), LENGTH_EDGES_S)[0],
        episode_s=float(lengths.sum()),
        turns=int(turns.begins.sum()),
        away=int(away_from_home(turns, chosen, servers)[turns.begins].sum()) if homes else 0,
        cold=int(unprepared[turns.begins].sum()),
        cold_tokens=int(turns.reused_tokens[unprepared & turns.begins].sum()),
        **counts,  # type: ignore[arg-type]
    )
