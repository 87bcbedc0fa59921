"""The few distributions that the demand models need, summed from exact terms."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]
"""P(X = x) at index x."""


@lru_cache(maxsize=64)
def log_gamma(first: float, count: int) -> NDArray[np.float64]:
    """log Gamma(first + i) for i < count."""
    return np.array([math.lgamma(first + i) for i in range(count)])


def binomial(n: int, q: float) -> Probabilities:
    """P(Bin(n, q) = x) for x = 0..n; n >= 0, 0 < q < 1."""
    x = np.arange(n + 1)
    log_factorial = log_gamma(1.0, n + 1)
    log_choose = log_factorial[n] - log_factorial - log_factorial[::-1]
    return _exp(log_choose + x * math.log(q) + (n - x) * math.log1p(-q))


def poisson(mean: float, largest: int) -> Probabilities:
    """P(Poisson(mean) = x) for x = 0..largest; the rest of the mass is missing from the array."""
    x = np.arange(largest + 1)
    return _exp(x * math.log(mean) - mean - log_gamma(1.0, largest + 1))


def beta_binomial(n: int, q: float, rho: float) -> Probabilities:
    """P(X = x) for x = 0..n, where X counts n exchangeable indicators of mean q and pairwise correlation rho > 0.

    a = q (1 - rho) / rho, b = (1 - q) (1 - rho) / rho; P(x) = C(n, x) B(x + a, n - x + b) / B(a, b).
    """
    a, b = q * (1 - rho) / rho, (1 - q) * (1 - rho) / rho
    log_factorial = log_gamma(1.0, n + 1)
    log_choose = log_factorial[n] - log_factorial - log_factorial[::-1]
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    log_rising = log_gamma(a, n + 1) + log_gamma(b, n + 1)[::-1] - math.lgamma(a + b + n)
    return _exp(log_choose + log_rising - log_beta)


def _exp(log_terms: NDArray[np.float64]) -> Probabilities:
    terms: Probabilities = np.exp(log_terms)
    return terms


def sum_of(terms: Sequence[Probabilities]) -> Probabilities:
    """The distribution of a sum of independent counts with the given distributions."""
    if not terms:
        return np.ones(1)
    queue = list(terms)
    while len(queue) > 1:  # pairwise, so that both factors of a convolution stay about equally long
        pairs = zip(queue[::2], queue[1::2], strict=False)
        queue = [np.convolve(one, other) for one, other in pairs] + queue[len(queue) - len(queue) % 2 :]
    return queue[0]


def student_t_quantile(p: float, degrees: int) -> float:
    """The value that a Student t variable with `degrees` >= 1 degrees of freedom stays below with probability p.

    By bisection of the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if not 0 < p < 1:
        raise ValueError(f"p: found {p}; expected between 0 and 1")
    if p < 0.5:
        return -student_t_quantile(1 - p, degrees)
    low, high = 0.0, math.pi / 2  # bisect the angle, whose tangent covers the whole half line
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + _central(middle, degrees)) / 2 < p else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _central(angle: float, degrees: int) -> float:
    """P(|T| < sqrt(degrees) tan(angle))."""
    cos, sin = math.cos(angle), math.sin(angle)
    odd = degrees % 2 == 1
    if degrees == 1:
        return 2 * angle / math.pi
    term = total = cos if odd else 1.0
    for j in range(2 if odd else 1, degrees - 2, 2):
        term *= cos * cos * j / (j + 1)
        total += term
    return 2 / math.pi * (angle + sin * total) if odd else sin * total
