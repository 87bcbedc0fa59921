"""Distributions against values from tables and against sums that must hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.seats.distributions import beta_binomial, binomial, poisson, student_t_quantile, sum_of


@given(st.integers(0, 300), st.floats(1e-3, 0.8))
def test_binomial_terms_are_the_exact_ones(n, q):
    expected = [math.comb(n, x) * q**x * (1 - q) ** (n - x) for x in range(min(n, 30) + 1)]
    assert binomial(n, q)[: len(expected)] == pytest.approx(expected, rel=1e-9, abs=1e-250)
    assert binomial(n, q).sum() == pytest.approx(1, abs=1e-10)


def test_binomial_holds_for_a_hundred_thousand_developers():
    terms = binomial(100_000, 0.071)
    assert terms.sum() == pytest.approx(1, abs=1e-7)
    assert (terms * np.arange(100_001)).sum() == pytest.approx(7100, rel=1e-7)


@given(st.integers(1, 60), st.floats(0.01, 0.9), st.floats(0.001, 0.6))
def test_beta_binomial_has_the_asked_mean_and_correlation(n, q, rho):
    terms, x = beta_binomial(n, q, rho), np.arange(n + 1)
    mean = (terms * x).sum()
    variance = (terms * (x - mean) ** 2).sum()
    assert terms.sum() == pytest.approx(1, abs=1e-8)
    assert mean == pytest.approx(n * q, rel=1e-7)
    assert variance == pytest.approx(n * q * (1 - q) * (1 + (n - 1) * rho), rel=1e-6)


@pytest.mark.parametrize(("n", "expected"), [(11, 0.007383), (12, 0.010430), (19, 0.046877)])
def test_beta_binomial_tail_matches_worked_values(n, expected):
    assert beta_binomial(n, 0.071, 0.05)[5:].sum() == pytest.approx(expected, abs=1e-6)


def test_poisson_terms():
    assert poisson(2.0, 3) == pytest.approx([math.exp(-2) * term for term in (1, 2, 2, 4 / 3)])


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=1, max_size=4), max_size=7))
def test_sum_of_independent_counts_is_a_distribution_with_the_sum_of_means(weights):
    terms = [np.array(w) / sum(w) for w in weights]
    total = sum_of(terms)
    mean = sum((t * np.arange(len(t))).sum() for t in terms)
    assert total.sum() == pytest.approx(1)
    assert (total * np.arange(len(total))).sum() == pytest.approx(mean)


@pytest.mark.parametrize(
    ("p", "degrees", "table"),
    [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 3, 3.182), (0.975, 4, 2.776), (0.95, 5, 2.015), (0.995, 9, 3.250),
     (0.975, 30, 2.042), (0.975, 120, 1.980), (0.025, 4, -2.776)],
)  # fmt: skip
def test_student_quantiles_match_the_printed_table(p, degrees, table):
    assert student_t_quantile(p, degrees) == pytest.approx(table, abs=5e-4)
