"""How many streams a server holds at a floor speed: the rule, without any I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from spillway.load.latency import TooFewSamples, percentile


@dataclass(frozen=True)
class Level:
    """Output speed of each stream, in tokens per second, with so many streams at once."""

    streams: int
    median_tok_per_s: float | TooFewSamples
    p5_tok_per_s: float | TooFewSamples


@dataclass(frozen=True)
class Capacity:
    """`streams` is the largest level that holds, 0 if none does.

    `at_least` is true if no level was found that fails: the capacity may be larger than what was measured. `undecided` is
    the level that has too few samples to be judged, if that is what ended the search.
    """

    streams: int
    at_least: bool
    undecided: int | None = None


def level(streams: int, rates_tok_per_s: Sequence[float]) -> Level:
    """The level of a sample of speeds, one for each request: 1 / TPOT."""
    return Level(streams, percentile(rates_tok_per_s, 0.5), percentile(rates_tok_per_s, 0.05))


def holds(level: Level, *, floor_tok_per_s: float, margin_fraction: float) -> bool | TooFewSamples:
    """Whether a level holds the floor: its median with the margin on top, and its p5 without."""
    if isinstance(level.median_tok_per_s, TooFewSamples):
        return level.median_tok_per_s
    if level.median_tok_per_s < floor_tok_per_s * (1 + margin_fraction):
        return False
    if isinstance(level.p5_tok_per_s, TooFewSamples):
        return level.p5_tok_per_s
    return level.p5_tok_per_s >= floor_tok_per_s


def capacity(levels: Sequence[Level], *, floor_tok_per_s: float, margin_fraction: float = 0.1) -> Capacity:
    """The largest level that holds, with every smaller one that was measured holding too.

    A level above one that fails does not count, though it may hold by chance. Raises ValueError if two levels have the
    same number of streams, or if there is none.
    """
    ordered = sorted(levels, key=lambda each: each.streams)
    counts = [each.streams for each in ordered]
    if not counts or len(set(counts)) != len(counts):
        raise ValueError(f"levels: found {counts} streams; expected at least one level, and each once")
    held = 0
    for each in ordered:
        verdict = holds(each, floor_tok_per_s=floor_tok_per_s, margin_fraction=margin_fraction)
        if isinstance(verdict, TooFewSamples):
            return Capacity(held, at_least=True, undecided=each.streams)
        if not verdict:
            return Capacity(held, at_least=False)
        held = each.streams
    return Capacity(held, at_least=True)
