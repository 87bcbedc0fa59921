"""Busy streams over time, exactly: every start and end of a turn as one event, all servers of all teams in one sort."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spillway.seats.errors import SeatsError
from spillway.seats.replay import Turns

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TICKS_PER_S = 1_000_000
_TIME_BITS = 42
"""Microseconds of a window in the event key: 51 days; the bits above hold the server, the lowest one tells start from end."""
MOST_SERVERS = 1 << 62 - _TIME_BITS
"""Servers that the bits above the time can number."""


@dataclass(frozen=True)
class Occupancy:
    """Events of all servers in order, server by server.

    key: server, time in microseconds, 1 for a start. level: streams busy on the server after the event.
    lasts_s: until the server's next event; 0 after its last.
    """

    key: Integers
    level: Integers
    lasts_s: Floats
    servers: int
    window_s: float

    def seconds_at(self) -> Floats:
        """Server-seconds with exactly x streams busy, at index x."""
        seconds: Floats = np.bincount(self.level, weights=self.lasts_s, minlength=1).astype(float)
        seconds[0] = self.servers * self.window_s - seconds[1:].sum()
        return seconds

    def episodes_s(self, k: int) -> Floats:
        """Lengths of the periods in which a server has more than k streams, in order of server and time."""
        starting = (self.key & 1) == 1
        up, down = (self.level == k + 1) & starting, (self.level == k) & ~starting
        lengths: Floats = ((self.key[down] >> 1) - (self.key[up] >> 1)) / TICKS_PER_S
        return lengths

    def before(self, per_level: Floats) -> Floats:
        """For each event the sum so far of per_level[level] x seconds, over all servers; differences are what counts."""
        weighted = per_level[np.minimum(self.level, len(per_level) - 1)] * self.lasts_s
        return np.concatenate([[0.0], np.cumsum(weighted)[:-1]])


def occupancy(turns: Turns, server: Integers, servers: int) -> Occupancy:
    """Busy streams of each server (numbered over all teams, one for each turn); raises SeatsError for too long a window."""
    if servers > MOST_SERVERS:
        raise SeatsError(f"servers: found {servers} in one batch; expected at most {MOST_SERVERS}")
    if turns.window_s * TICKS_PER_S >= 1 << _TIME_BITS:
        raise SeatsError(f"window: found {turns.window_s} s; expected at most {(1 << _TIME_BITS) // TICKS_PER_S} s")
    key = np.sort(np.concatenate([start_keys(turns, server), end_keys(turns, server)]))
    level = np.cumsum((key & 1) * 2 - 1)
    lasts = np.zeros(len(key))
    lasts[:-1] = np.diff(key >> 1) / TICKS_PER_S
    lasts[level == 0] = 0.0  # idle, or the step to the next server: neither is busy time
    return Occupancy(key, level, lasts, servers, turns.window_s)


def start_keys(turns: Turns, server: Integers) -> Integers:
    """Event keys of the starts of the turns. A turn of no length gets one microsecond, so that it ends after it starts."""
    return (server << _TIME_BITS + 1) | (_ticks(turns.start_s) << 1) | 1


def end_keys(turns: Turns, server: Integers) -> Integers:
    """Event keys of the ends; at the same instant an end comes before a start."""
    ticks = np.maximum(_ticks(turns.end_s), _ticks(turns.start_s) + 1)
    return (server << _TIME_BITS + 1) | (ticks << 1)


def _ticks(seconds: Floats) -> Integers:
    return np.rint(seconds * TICKS_PER_S).astype(np.int64)


@dataclass(frozen=True)
class Notice:
    """What the turns that begin inside the window meet; arrays have one entry for each turn."""

    arrives_full: NDArray[np.bool_]
    overloaded_s: Floats
    lost_s: Floats


def noticed(turns: Turns, server: Integers, found: Occupancy, k: int, speed: Floats) -> Notice:
    """For each turn: whether it starts on a server with k or more other streams, its seconds among more than k, and the
    seconds of work lost there, sum of (1 - speed(x) / speed(k)) dt.

    speed[x - 1]: speed of one stream with x busy, any unit, up to the highest level found and at least k entries.
    """
    over, lost = np.zeros(len(speed) + 1), np.zeros(len(speed) + 1)
    over[k + 1 :] = 1
    lost[k + 1 :] = 1 - speed[k:] / speed[k - 1]
    at_start = np.searchsorted(found.key, start_keys(turns, server))
    at_end = np.searchsorted(found.key, end_keys(turns, server))
    spent, wasted = (found.before(values) for values in (over, lost))
    return Notice(
        (found.level[at_start] > k)[turns.begins],
        (spent[at_end] - spent[at_start])[turns.begins],
        (wasted[at_end] - wasted[at_start])[turns.begins],
    )
