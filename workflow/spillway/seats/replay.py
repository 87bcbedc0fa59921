"""Recorded sessions as an endless stream of turns, from which developers with random phases are drawn.

Sessions are joined end to end; idle gaps are cut to one length (or all stretched) so that the share of busy time is a wanted
q. A developer of a window is a piece of that ring from a random place on, so the share busy at any instant is exactly q
and developers are independent, while lengths of turns and pauses stay those that were recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spillway.seats.demand import check_peak, check_q, scaled_levels
from spillway.seats.errors import SeatsError
from spillway.seats.spans import union

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Ring:
    """Turns on a ring of `period_s` seconds, sorted by start.

    reach_s: the latest end of any turn up to each one. reused_tokens: prefix that a server which has served the session
    need not read again. idle_cap_s, stretch: what was done to the gaps.
    """

    start_s: Floats
    end_s: Floats
    context_tokens: Integers
    reused_tokens: Integers
    reach_s: Floats
    period_s: float
    idle_cap_s: float
    stretch: float

    @property
    def q(self) -> float:
        """Mean number of busy streams of one developer."""
        return float((self.end_s - self.start_s).sum() / self.period_s)


@dataclass(frozen=True)
class Turns:
    """Turns of several teams over one window of `window_s` seconds: developer numbers the developers of all teams.

    A turn that begins before the window or ends after it is cut; `begins` marks those that start inside.
    """

    team: Integers
    developer: Integers
    start_s: Floats
    end_s: Floats
    context_tokens: Integers
    reused_tokens: Integers
    begins: NDArray[np.bool_]
    teams: int
    developers: int
    window_s: float


def ring(turns: pd.DataFrame, q: float, seed: int) -> Ring:
    """The sessions of a trace (`trace.read_trace`) in random order on a ring that is busy a share q of the time.

    Raises SeatsError if even without idle gaps the sessions are busy less than q.
    """
    check_q(q)
    timed = turns[turns["end_s"].notna()]
    sessions = [part for _, part in timed.groupby("session")]
    if not sessions:
        raise SeatsError("turns: found none with a start and an end; expected at least one session")
    order = np.random.default_rng(seed).permutation(len(sessions))
    spans = [_runs(sessions[i]) for i in order]
    gaps = np.concatenate([span.gap_before_s for span in spans])
    stream_s = sum(span.stream_s for span in spans)
    union_s = sum(span.union_s for span in spans)
    wanted_idle_s = stream_s / q - union_s
    if wanted_idle_s <= 0:
        raise SeatsError(f"q: found {q}; expected less than {stream_s / union_s:.3f}, the sessions without any idle time")
    cap = _cap(gaps, wanted_idle_s)
    idle = np.minimum(gaps, cap)
    stretch = wanted_idle_s / float(idle.sum())
    idle *= stretch
    starts, ends, at, used = [], [], 0.0, 0
    for span in spans:
        own = idle[used : used + len(span.gap_before_s)]
        used += len(own)
        # Each run of overlapping turns keeps its inner offsets and moves by the idle time and the runs before it.
        shift = at + np.cumsum(own) + np.concatenate([[0.0], np.cumsum(span.run_s)[:-1]])
        starts.append(span.offset_s + shift[span.run])
        ends.append(starts[-1] + span.length_s)
        at += float(own.sum() + span.run_s.sum())
    frame = pd.concat([sessions[i] for i in order], ignore_index=True)
    start_s, end_s = np.concatenate(starts), np.concatenate(ends)
    return Ring(
        start_s, end_s, frame["context_tokens"].to_numpy(np.int64), frame["reused_tokens"].to_numpy(np.int64),
        np.maximum.accumulate(end_s), at, cap, stretch,
    )  # fmt: skip


@dataclass(frozen=True)
class _Runs:
    """A session as runs of overlapping turns: of each turn its run, offset in it and length; of each run the gap before it."""

    run: Integers
    offset_s: Floats
    length_s: Floats
    run_s: Floats
    gap_before_s: Floats
    stream_s: float
    union_s: float


def _runs(session: pd.DataFrame) -> _Runs:
    start_s, end_s = session["start_s"].to_numpy(float), session["end_s"].to_numpy(float)
    starts, ends = union(start_s, end_s)
    run = np.searchsorted(starts, start_s, side="right") - 1
    # What lies between two sessions was not recorded: as long as the longest gap that is kept.
    gaps = np.concatenate([[np.inf], starts[1:] - ends[:-1]])
    length_s, run_s = end_s - start_s, ends - starts
    return _Runs(run, start_s - starts[run], length_s, run_s, gaps, float(length_s.sum()), float(run_s.sum()))


def _cap(gaps: Floats, wanted_s: float) -> float:
    """The cap c with sum(min(gaps, c)) = wanted, or the longest finite gap if even that is not enough."""
    finite = gaps[np.isfinite(gaps)]
    longest = float(finite.max()) if len(finite) and finite.max() > 0 else 1.0
    low, high = 0.0, longest
    if np.minimum(gaps, longest).sum() <= wanted_s:
        return longest
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(gaps, middle).sum() < wanted_s else (low, middle)
    return high


def draw(source: Ring, teams: int, developers: int, window_s: float, random: np.random.Generator) -> Turns:
    """`developers` developers in each of `teams` independent teams, each from a random place on the ring for one window."""
    if not 0 < window_s <= source.period_s:
        raise SeatsError(f"window: found {window_s} s; expected at most the ring's {source.period_s:.0f} s, or a longer trace")
    count = teams * developers
    phase = random.random(count) * source.period_s
    pieces = [_piece(source, phase, window_s, 0.0), _piece(source, phase, window_s, source.period_s)]
    developer, index = (np.concatenate(parts) for parts in zip(*[piece[:2] for piece in pieces], strict=True))
    begin = np.concatenate([piece[2] for piece in pieces])
    start_s = np.maximum(begin, 0.0)
    end_s = np.minimum(begin + source.end_s[index] - source.start_s[index], window_s)
    order = np.argsort(developer, kind="stable")  # turns of one developer stand together, in their order
    developer, index, begin = developer[order], index[order], begin[order]
    return Turns(
        developer // developers, developer, start_s[order], end_s[order], source.context_tokens[index],
        source.reused_tokens[index], begin >= 0, teams, count, window_s,
    )  # fmt: skip


def _piece(source: Ring, phase: Floats, window_s: float, lap_s: float) -> tuple[Integers, Integers, Floats]:
    """Developer, turn and start (relative to the phase) of the turns that touch the window, on one lap of the ring."""
    low = np.searchsorted(source.reach_s, phase - lap_s, side="right")
    high = np.searchsorted(source.start_s, phase + window_s - lap_s, side="left")
    counts = np.maximum(high - low, 0)
    developer = np.repeat(np.arange(len(phase)), counts)
    index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - low, counts)
    begin = source.start_s[index] + lap_s - phase[developer]
    touches = begin + source.end_s[index] - source.start_s[index] > 0  # a long turn may hide shorter ones that are over
    return developer[touches], index[touches], begin[touches]


def thinned(turns: Turns, levels: Sequence[float], random: np.random.Generator) -> Turns:
    """Turns under one common day profile: each is kept with the level of its part of the window over the highest level.

    Draw the turns from a ring whose q is `peak_q(q, levels)`; then the mean over the window is q again.
    """
    scaled = scaled_levels(levels)
    part = np.minimum((turns.start_s / turns.window_s * len(scaled)).astype(int), len(scaled) - 1)
    keep = random.random(len(turns.start_s)) < scaled[part] / scaled.max()
    return Turns(
        turns.team[keep], turns.developer[keep], turns.start_s[keep], turns.end_s[keep], turns.context_tokens[keep],
        turns.reused_tokens[keep], turns.begins[keep], turns.teams, turns.developers, turns.window_s,
    )  # fmt: skip


def peak_q(q: float, levels: Sequence[float]) -> float:
    """Busy share in the part of the window with the highest level."""
    check_q(q)
    peak = float(q * scaled_levels(levels).max())
    check_peak(peak)
    return peak
