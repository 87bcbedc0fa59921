"""Sets of time spans: how much of them lies before an instant, their union, and how many run at once."""

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


class SpanTime:
    """Seconds of some spans that lie before any instant; spans may overlap, then their time counts once for each."""

    def __init__(self, start_s: Times, end_s: Times) -> None:
        self._origin = float(start_s.min()) if len(start_s) else 0.0  # sums of seconds since 1970 would lose the fractions
        self._starts, self._ends = np.sort(start_s - self._origin), np.sort(end_s - self._origin)
        self._start_sums = np.concatenate([[0.0], np.cumsum(self._starts)])
        self._end_sums = np.concatenate([[0.0], np.cumsum(self._ends)])

    def before(self, instants: Times) -> Times:
        """Seconds of the spans before each instant."""
        at = np.asarray(instants, dtype=float) - self._origin
        begun, ended = np.searchsorted(self._starts, at), np.searchsorted(self._ends, at)
        total: Times = (begun * at - self._start_sums[begun]) - (ended * at - self._end_sums[ended])
        return total

    def between(self, low: Times, high: Times) -> Times:
        """Seconds of the spans between two instants each."""
        return self.before(high) - self.before(low)


def union(start_s: Times, end_s: Times) -> tuple[Times, Times]:
    """The same instants covered by spans that do not overlap, in order."""
    if len(start_s) == 0:
        return start_s, end_s
    order = np.argsort(start_s, kind="stable")
    starts, reach = start_s[order], np.maximum.accumulate(end_s[order])
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return starts[first], reach[last]


def seconds_at_once(start_s: Times, end_s: Times) -> Times:
    """Seconds during which exactly x spans run, at index x; index 0 is the idle time between the first and the last."""
    if len(start_s) == 0:
        return np.zeros(1)
    times = np.concatenate([end_s, start_s])
    change = np.concatenate([-np.ones(len(end_s), int), np.ones(len(start_s), int)])
    order = np.lexsort((change, times))
    running = np.cumsum(change[order])
    lengths = np.diff(times[order])
    seconds: Times = np.bincount(np.maximum(running[:-1], 0), weights=lengths).astype(float)
    return seconds
