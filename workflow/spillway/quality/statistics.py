"""Intervals and tests for one system's score and for paired differences of two.

A binary pair is one item that both systems answered: `wins` are the items that only the first one solved, `losses` those
that only the second one did, and the difference is (wins - losses) / n. Nothing here reads or writes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist, fmean

NORMAL = NormalDist()
LEVEL = 0.95
POWER = 0.8
Interval = tuple[float, float]


def wilson(successes: int, n: int, level: float = LEVEL) -> Interval:
    """Score interval of one proportion (E. B. Wilson, JASA 22, 1927); raises ValueError for counts that are none."""
    _check_counts(successes, 0, n)
    z = _two_sided(level)
    centre = (successes + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(successes * (n - successes) / n + z * z / 4)
    # The root of the exact ends loses digits; 0 and 1 are known.
    return (0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half)


def clopper_pearson(successes: int, n: int, level: float = LEVEL) -> Interval:
    """Exact interval of one proportion (C. Clopper, E. Pearson, Biometrika 26, 1934), each tail (1 - level) / 2."""
    _check_counts(successes, 0, n)
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else _root(lambda p: tail - _binomial_above(successes - 1, n, p), 0.0, 1.0)
    high = 1.0 if successes == n else _root(lambda p: 1 - _binomial_above(successes, n, p) - tail, 0.0, 1.0)
    return low, high


def tango_z(wins: int, losses: int, n: int, difference: float) -> float:
    """Score statistic of the hypothesis that the paired difference is `difference`, normal under it.

    The nuisance parameter is estimated under the hypothesis (T. Tango, Statistics in Medicine 17, 1998, p. 891-908).
    """
    _check_counts(wins, losses, n)
    # Tango's A, B and C: the likeliest share of items that only the second system solved is a root of a quadratic.
    a = 2 * n
    b = -wins - losses + (2 * n - wins + losses) * difference
    c = -losses * difference * (1 - difference)
    only_second = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = n * (2 * only_second + difference * (1 - difference))
    distance = wins - losses - n * difference
    if variance <= 0:
        return math.copysign(math.inf, distance) if abs(distance) > 1e-9 else 0.0
    return distance / math.sqrt(variance)


def tango(wins: int, losses: int, n: int, level: float = LEVEL) -> Interval:
    """Score interval of a paired difference of proportions: all differences that the score test does not reject."""
    _check_counts(wins, losses, n)
    z = _two_sided(level)
    observed = (wins - losses) / n
    low = -1.0 if observed == -1 else _root(lambda d: tango_z(wins, losses, n, d) - z, -1.0, observed)
    high = 1.0 if observed == 1 else _root(lambda d: tango_z(wins, losses, n, d) + z, observed, 1.0)
    return low, high


def mcnemar(wins: int, losses: int) -> float:
    """Exact two-sided p that wins and losses are equally likely; 1 without any. It is no evidence of equality."""
    discordant = wins + losses
    if discordant == 0:
        return 1.0
    return min(1.0, 2 * (1 - _binomial_above(min(wins, losses), discordant, 0.5)))


def clustered(differences: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error of differences, one for each item: its mean over all runs of both systems.

    SE^2 = sum (d_i - mean)^2 / (n (n - 1)): runs of one item are not independent, so the item is the unit
    (E. Miller, arXiv:2411.00640, 2024). Raises ValueError for fewer than two items.
    """
    n = len(differences)
    if n < 2:
        raise ValueError(f"a standard error needs two items or more, found {n}")
    mean = fmean(differences)
    return mean, math.sqrt(sum((each - mean) ** 2 for each in differences) / (n * (n - 1)))


def clustered_interval(differences: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Normal interval of the mean of item-wise differences; None where all are equal: their spread is then not known."""
    if len(differences) < 2:
        return None
    mean, error = clustered(differences)
    if error == 0:
        return None
    half = _two_sided(level) * error
    return mean - half, mean + half


def non_inferiority(wins: int, losses: int, n: int, margin: float) -> float:
    """One-sided p of the hypothesis that the first system is worse by `margin` or more, by the score test."""
    if not 0 < margin < 1:
        raise ValueError(f"a margin lies between 0 and 1, found {margin}")
    return 1 - NORMAL.cdf(tango_z(wins, losses, n, -margin))


def clustered_non_inferiority(differences: Sequence[float], margin: float) -> float | None:
    """The same for fractional scores, by the clustered standard error; None where the spread is not known."""
    if len(differences) < 2:
        return None
    mean, error = clustered(differences)
    return 1 - NORMAL.cdf((mean + margin) / error) if error > 0 else None


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p of several hypotheses, each comparable with the one level (S. Holm, Scand. J. Stat. 6, 1979)."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return adjusted


def standard_error(discordant_fraction: float, n: int) -> float:
    """Standard error of a paired difference of binary scores that is 0, for a share of discordant items."""
    return math.sqrt(discordant_fraction / n)


def detectable(discordant_fraction: float, n: int, level: float = LEVEL, power: float = POWER) -> float:
    """Smallest difference that a two-sided test finds with `power`, for a share of discordant items."""
    return (_two_sided(level) + NORMAL.inv_cdf(power)) * standard_error(discordant_fraction, n)


def items_needed(discordant_fraction: float, margin: float, alpha: float = 0.05, power: float = POWER) -> int:
    """Items that show non-inferiority with `power` at a one-sided `alpha` if the two systems are equal."""
    z = NORMAL.inv_cdf(1 - alpha) + NORMAL.inv_cdf(power)
    return math.ceil(z * z * discordant_fraction / margin**2)


def percentile_bootstrap(wins: int, losses: int, n: int, level: float = LEVEL) -> Interval:
    """The interval to which a percentile bootstrap over items converges with its resamples; exact, so without a seed.

    A resample draws n items with replacement: its wins and losses are multinomial. With no discordant item it is [0, 0],
    which is why it is not the interval that this project reports. Published intervals may be of this kind.
    """
    _check_counts(wins, losses, n)
    chance: dict[int, float] = {}
    for won in range(n + 1):
        p_won = _binomial_at(won, n, wins / n)
        if p_won < 1e-15:
            continue
        for lost in range(n - won + 1):
            p_lost = _binomial_at(lost, n - won, losses / (n - wins) if n > wins else 0.0)
            chance[won - lost] = chance.get(won - lost, 0.0) + p_won * p_lost
    tail = (1 - level) / 2
    total, low, high = 0.0, None, None
    for difference in sorted(chance):
        total += chance[difference]
        low = difference if low is None and total >= tail else low
        high = difference if high is None and total >= 1 - tail else high
    assert low is not None and high is not None
    return low / n, high / n


def _two_sided(level: float) -> float:
    return NORMAL.inv_cdf(0.5 + level / 2)


def _binomial_at(successes: int, n: int, p: float) -> float:
    if p in (0.0, 1.0):
        return float(successes == n * p)
    log = math.lgamma(n + 1) - math.lgamma(successes + 1) - math.lgamma(n - successes + 1)
    return math.exp(log + successes * math.log(p) + (n - successes) * math.log1p(-p))


def _binomial_above(successes: int, n: int, p: float) -> float:
    """Probability of more than `successes`."""
    return math.fsum(_binomial_at(count, n, p) for count in range(successes + 1, n + 1))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a monotone function changes its sign between two points, by bisection to the last digit."""
    rising = function(high) > function(low)
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if (function(middle) > 0) == rising:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _check_counts(wins: int, losses: int, n: int) -> None:
    if n < 1 or wins < 0 or losses < 0 or wins + losses > n:
        raise ValueError(f"found {wins} and {losses} of {n} items; expected counts of at most all items, and at least one item")
