"""How many streams are busy at once: the distribution over time, under one assumption about the developers each.

n developers; q is the share of the working window in which one developer's stream is busy, measured at the speed of the
service that the logs come from. Every function returns P(X = x streams busy) at index x.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spillway.seats import distributions
from spillway.seats.distributions import Probabilities
from spillway.seats.errors import SeatsError


def check_q(q: float) -> None:
    """Raise SeatsError unless q is a share strictly between 0 and 1, saying what 0 and 1 would mean."""
    if not math.isfinite(q) or q < 0:
        raise SeatsError(f"q: found {q}; expected a share of the working window between 0 and 1, such as 0.07")
    if q > 1:
        raise SeatsError(
            f"q: found {q}, more than one busy stream on average; expected less than 1: split the streams by developer"
        )
    if q == 0:
        raise SeatsError("q: found 0, a developer who is never busy; no number of seats follows. Check logs and window")
    if q == 1:
        raise SeatsError("q: found 1, a stream never idle; then seats = streams of the server. Check the window")


def check_developers(n: int) -> None:
    """Raise SeatsError unless n is at least 0."""
    if n < 0:
        raise SeatsError(f"developers: found {n}; expected 0 or more")


def independent(n: int, q: float) -> Probabilities:
    """Developers start and stop independently of each other: binomial(n, q). The article's model."""
    check_q(q)
    check_developers(n)
    return distributions.binomial(n, q)


def poisson(n: int, q: float) -> Probabilities:
    """Infinitely many sources with the same mean n q (M/G/infinity), cut where less than 1e-15 of the mass is left."""
    check_q(q)
    check_developers(n)
    mean = n * q
    if mean == 0:
        return np.ones(1)
    return distributions.poisson(mean, math.ceil(mean + 12 * math.sqrt(mean) + 40))


def correlated(n: int, q: float, rho: float) -> Probabilities:
    """Any two developers are busy together more often than by chance: beta-binomial with intra-class correlation rho."""
    check_q(q)
    check_developers(n)
    if not 0 <= rho < 1:
        raise SeatsError(f"rho: found {rho}; expected 0 (independent) or more, and less than 1")
    return distributions.binomial(n, q) if rho == 0 else distributions.beta_binomial(n, q, rho)


def day_profile(n: int, q: float, levels: Sequence[float]) -> Probabilities:
    """All developers follow one profile: in equal parts of the window the share busy is q times each level.

    Levels are scaled to mean 1. Raises SeatsError if a level is negative or would make the share 1 or more.
    """
    check_q(q)
    check_developers(n)
    total: Probabilities = np.zeros(n + 1)
    for share in q * scaled_levels(levels):
        check_peak(float(share))
        total += distributions.binomial(n, float(share)) if share > 0 else np.eye(1, n + 1)[0]
    mean: Probabilities = total / len(levels)
    return mean


def busiest_part(n: int, q: float, levels: Sequence[float]) -> Probabilities:
    """As `day_profile`, but only in the part of the window with the highest level."""
    check_q(q)
    peak = float(q * scaled_levels(levels).max())
    check_peak(peak)
    return distributions.binomial(n, peak)


def scaled_levels(levels: Sequence[float]) -> NDArray[np.float64]:
    """Levels divided by their mean; raises SeatsError if there are none, one is negative or all are 0."""
    values: NDArray[np.float64] = np.asarray(levels, dtype=float)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all() or (values < 0).any() or values.sum() == 0:
        raise SeatsError(f"day profile: found {list(levels)}; expected numbers of 0 or more, one for each part, not all 0")
    scaled: NDArray[np.float64] = values / values.mean()
    return scaled


def check_peak(share: float) -> None:
    """Raise SeatsError if the busiest part of a day profile leaves no idle time."""
    if share >= 1:
        raise SeatsError(f"day profile: found a busy share of {share:.2f} in one part; expected less than 1: a flatter profile")


def heterogeneous(shares: Sequence[float]) -> Probabilities:
    """Independent developers, each with a busy share of their own (Poisson binomial)."""
    for share in shares:
        check_q(share)
    return distributions.sum_of([np.array([1 - share, share]) for share in shares])


def parallel(n: int, own_streams: Sequence[float]) -> Probabilities:
    """Independent developers who each keep 0, 1, 2, ... streams busy with the given shares of the window (they sum to 1)."""
    check_developers(n)
    own = np.asarray(own_streams, dtype=float)
    if len(own) < 2 or (own < 0).any() or not math.isclose(own.sum(), 1, abs_tol=1e-9):
        raise SeatsError(f"own streams: found {list(own_streams)}; expected shares of the window with 0, 1, ... streams, sum 1")
    return distributions.sum_of([own] * n)


def closed(n: int, q: float, speed: Sequence[float]) -> Probabilities:
    """A server whose streams slow each other down: think times stay, generation takes 1/speed as long.

    speed[j - 1]: speed of one stream with j busy, relative to the speed at which q was measured; for more than
    len(speed) busy the total speed stays that of the last. Product form p(x) ~ C(n, x) a^x / prod_{j<=x} speed(j) with
    a = q / (1 - q), insensitive to the distribution of turn lengths (closed processor sharing with one think state).
    """
    check_q(q)
    check_developers(n)
    slow = np.log(stream_speed(speed, n))
    x = np.arange(n + 1)
    log_factorial = distributions.log_gamma(1.0, n + 1)
    log_weight = log_factorial[n] - log_factorial - log_factorial[::-1] + x * math.log(q / (1 - q))
    log_weight[1:] -= np.cumsum(slow)
    weight = np.exp(log_weight - log_weight.max())
    scaled: Probabilities = weight / weight.sum()
    return scaled


def stream_speed(speed: Sequence[float], n: int) -> NDArray[np.float64]:
    """Relative speed of one stream with 1..n busy, the curve continued at constant total speed."""
    known = np.asarray(speed, dtype=float)
    if len(known) == 0 or not np.isfinite(known).all() or (known <= 0).any():
        raise SeatsError(f"speed: found {list(speed)}; expected positive relative speeds with 1, 2, ... streams busy")
    busy = np.arange(1, n + 1)
    beyond: NDArray[np.float64] = known[-1] * len(known) / busy
    beyond[: len(known)] = known[:n]
    return beyond


def speed_curve(measured: dict[int, float]) -> list[float]:
    """Per-stream speeds with 1, 2, ... streams busy from some measured ones (streams -> speed), in the same unit.

    Between measured points the time per token is interpolated linearly, as it grows about linearly with the batch. The
    first point must be 1 stream.
    """
    if not measured or min(measured) != 1 or any(not math.isfinite(v) or v <= 0 for v in measured.values()):
        raise SeatsError(f"speed: found {measured}; expected positive speeds by number of streams, starting with 1 stream")
    streams = sorted(measured)
    wanted = np.arange(1, streams[-1] + 1)
    return [float(v) for v in 1 / np.interp(wanted, streams, [1 / measured[s] for s in streams])]


def rescaled_q(q: float, slower: float) -> float:
    """q when generation takes `slower` times as long and think time stays: q s / (q s + 1 - q)."""
    check_q(q)
    if not math.isfinite(slower) or slower <= 0:
        raise SeatsError(f"slower: found {slower}; expected a positive ratio of generation times")
    return q * slower / (q * slower + 1 - q)
