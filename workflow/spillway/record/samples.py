"""How many samples a percentile needs: the one rule for tables, marks and the paper."""

import math


def samples_needed(fraction: float) -> int:
    """Smallest sample whose extreme value bounds a quantile with 95 % confidence: 5 for the median, 59 for p5 and p95.

    The n with max(fraction, 1 - fraction) ** n <= 0.05 (S. S. Wilks, Annals of Mathematical Statistics 12, 1941).
    """
    if not 0 < fraction < 1:
        raise ValueError(f"a quantile lies between 0 and 1, found {fraction}")
    return math.ceil(math.log(0.05) / math.log(max(fraction, 1 - fraction)))
