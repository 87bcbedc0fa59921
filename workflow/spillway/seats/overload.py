"""When a server is too full, and how many developers fit: criteria on the number of busy streams.

k is the number of streams that the server holds at the floor of speed. A seat count is the largest number of developers
for which a criterion stays at or below a level such as 0.01.
"""

from collections.abc import Callable, Sequence

import numpy as np

from spillway.seats.demand import check_developers, check_q, stream_speed
from spillway.seats.distributions import Probabilities, binomial
from spillway.seats.errors import SeatsError

MOST_DEVELOPERS = 1_000_000
"""A seat count beyond this means a wrong q or k, not a larger team."""


def check_streams(k: int) -> None:
    """Raise SeatsError unless the server holds at least one stream at its floor."""
    if k < 1:
        raise SeatsError(
            f"streams: found {k}; expected at least 1: a server that holds no stream at the floor seats nobody. "
            "Lower the floor, or measure another server"
        )


def clock_overload(busy: Probabilities, k: int) -> float:
    """P(X > k): the share of clock time in which more than k streams are busy."""
    check_streams(k)
    return float(busy[k + 1 :].sum())


def experienced_overload(busy: Probabilities, k: int) -> float:
    """Share of generated stream time that shares the server with more than k streams: sum_{x>k} x p(x) / sum x p(x).

    For independent developers it equals P(Bin(n - 1, q) >= k), what a developer meets who is generating. 0 if nobody is.
    """
    check_streams(k)
    stream_time = np.arange(len(busy)) * busy
    total = stream_time.sum()
    return float(stream_time[k + 1 :].sum() / total) if total > 0 else 0.0


def slow_tokens(busy: Probabilities, k: int, speed: Sequence[float]) -> float:
    """Share of tokens written while more than k streams are busy, for the `closed` model: weights x speed(x) p(x)."""
    check_streams(k)
    n = len(busy) - 1
    tokens = np.arange(1, n + 1) * stream_speed(speed, n) * busy[1:]
    total = tokens.sum()
    return float(tokens[k:].sum() / total) if total > 0 else 0.0


def engset_time_congestion(k: int, n: int, q: float) -> float:
    """Share of time in which all k streams are taken if a developer who finds them so gives up (Engset, finite sources)."""
    check_streams(k)
    check_q(q)
    check_developers(n)
    if n < k:
        return 0.0
    # Engset's truncated distribution is the binomial one, cut at k: the common factor cancels.
    busy = binomial(n, q)[: k + 1]
    return float(busy[k] / busy.sum())


def engset_call_congestion(k: int, n: int, q: float) -> float:
    """Share of attempts that find all k streams taken: the time congestion that the n - 1 others cause."""
    return engset_time_congestion(k, n - 1, q) if n > 0 else 0.0


def erlang_b(k: int, load: float) -> float:
    """Share of attempts lost with k streams and Poisson arrivals of `load` Erlang (n q); the stable recurrence."""
    check_streams(k)
    if not load >= 0:
        raise SeatsError(f"load: found {load}; expected 0 Erlang or more")
    blocking = 1.0
    for streams in range(1, k + 1):
        blocking = load * blocking / (streams + load * blocking)
    return blocking


def erlang_c(k: int, load: float) -> float:
    """Share of attempts that wait with k streams and Poisson arrivals of `load` Erlang; 1 if the load is k or more."""
    blocking = erlang_b(k, load)
    return 1.0 if load >= k else blocking / (1 - load / k * (1 - blocking))


def most_developers(overload: Callable[[int], float], level: float) -> int:
    """The largest n with overload(n) <= level, for an overload that grows with n; 0 if one developer is too many.

    Raises SeatsError for a level outside (0, 1), or if more than MOST_DEVELOPERS would fit.
    """
    if not 0 < level < 1:
        raise SeatsError(f"level: found {level}; expected a share between 0 and 1, such as 0.01")
    fits, beyond = 0, 1
    while overload(beyond) <= level:
        fits, beyond = beyond, beyond * 2
        if fits > MOST_DEVELOPERS:
            raise SeatsError(f"seats: found more than {MOST_DEVELOPERS:,} developers at level {level}; check q and the streams")
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        fits, beyond = (middle, beyond) if overload(middle) <= level else (fits, middle)
    return fits


def fewest_servers(overload: Callable[[int], float], level: float, most: int) -> int:
    """The smallest number m of servers with overload(m) <= level, for an overload that falls with m.

    Raises SeatsError if `most` servers are not enough.
    """
    if overload(most) > level:
        raise SeatsError(f"servers: found that {most} are not enough at level {level}; expected fewer; check q and the streams")
    short, enough = 0, most
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if overload(middle) <= level else (middle, enough)
    return enough
