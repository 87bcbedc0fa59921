"""Demand models against values computed independently (scipy 1.17) for q = 0.071 and four streams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.seats import demand
from spillway.seats.errors import SeatsError
from spillway.seats.overload import (
    clock_overload,
    engset_call_congestion,
    engset_time_congestion,
    erlang_b,
    erlang_c,
    experienced_overload,
    fewest_servers,
    most_developers,
    slow_tokens,
)
from spillway.seats.teams import correlation, drawn_shares, overload_by_team, seats_for_most_teams

Q, K = 0.071, 4


def seats(model, criterion=clock_overload, k=K):
    return tuple(most_developers(lambda n: criterion(model(n), k), level) for level in (0.01, 0.05))


@pytest.mark.parametrize(
    ("n", "clock", "experienced"),
    [(12, 0.000935, 0.005587), (13, 0.001430, 0.007913), (14, 0.002095, 0.010795), (18, 0.007061, 0.028630),
     (19, 0.009030, 0.034792), (20, 0.011346, 0.041662), (27, 0.039166, 0.108995), (28, 0.044986, 0.121139),
     (29, 0.051294, 0.133831)],
)  # fmt: skip
def test_independent_developers(n, clock, experienced):
    busy = demand.independent(n, Q)
    assert clock_overload(busy, K) == pytest.approx(clock, abs=5e-7)
    assert experienced_overload(busy, K) == pytest.approx(experienced, abs=5e-7)


@pytest.mark.parametrize(
    ("k", "one", "five", "experienced"),
    [(1, 2, 5, 1), (2, 6, 12, 3), (3, 12, 20, 7), (4, 19, 28, 13), (5, 26, 38, 20), (6, 34, 47, 27), (8, 51, 67, 44),
     (12, 88, 110, 80), (16, 128, 155, 119)],
)  # fmt: skip
def test_seats_by_streams(k, one, five, experienced):
    assert seats(lambda n: demand.independent(n, Q), k=k) == (one, five)
    assert seats(lambda n: demand.independent(n, Q), experienced_overload, k)[0] == experienced


@pytest.mark.parametrize(("level", "expected"), [(0.001, 12), (0.005, 16), (0.01, 19), (0.02, 22), (0.05, 28), (0.1, 35)])
def test_seats_by_level(level, expected):
    assert most_developers(lambda n: clock_overload(demand.independent(n, Q), K), level) == expected


MODELS = {
    "Poisson": (demand.poisson, (18, 27), 0.0123),
    "processor sharing": (lambda n, q: demand.closed(n, q, [1.0] * K), (18, 25), 0.0126),
    "root": (lambda n, q: demand.closed(n, q, [1.0] * K + [(K / x) ** 0.5 for x in range(K + 1, 200)]), (18, 27), 0.0106),
    "half of the window": (lambda n, q: demand.day_profile(n, q, [1] * 4 + [0] * 4), (12, 17), 0.061),
    "quarter of the window": (lambda n, q: demand.day_profile(n, q, [1] * 2 + [0] * 6), (7, 11), 0.166),
    "5 % three streams": (lambda n, q: demand.parallel(n, [1 - q, q * 0.95, 0, q * 0.05]), (12, 22), 0.031),
    "10 % three streams": (lambda n, q: demand.parallel(n, [1 - q, q * 0.9, 0, q * 0.1]), (10, 18), 0.052),
    "20 % three streams": (lambda n, q: demand.parallel(n, [1 - q, q * 0.8, 0, q * 0.2]), (7, 14), 0.090),
    "10 % five streams": (lambda n, q: demand.parallel(n, [1 - q, q * 0.9, 0, 0, 0, q * 0.1]), (1, 7), 0.132),
}


@pytest.mark.parametrize("name", MODELS)
def test_other_models(name):
    model, expected, overload = MODELS[name]
    assert seats(lambda n: model(n, Q)) == expected
    assert clock_overload(model(19, Q), K) == pytest.approx(overload, abs=5e-4)


@pytest.mark.parametrize(
    ("rho", "expected", "overload"),
    [(0.005, (17, 27), 0.0128), (0.01, (16, 25), 0.0167), (0.02, (15, 23), 0.0247), (0.03, (13, 21), 0.0325),
     (0.05, (11, 19), 0.0469), (0.1, (9, 15), 0.0734), (0.2, (6, 12), 0.0992), (0.3, (5, 10), 0.107)],
)  # fmt: skip
def test_correlated_developers(rho, expected, overload):
    assert seats(lambda n: demand.correlated(n, Q, rho)) == expected
    assert clock_overload(demand.correlated(19, Q, rho), K) == pytest.approx(overload, abs=5e-4)


def test_closed_model_counts_tokens_too():
    flat = [1.0] * K
    assert slow_tokens(demand.closed(19, Q, flat), K, flat) == pytest.approx(0.0374, abs=5e-5)
    assert tuple(most_developers(lambda n: slow_tokens(demand.closed(n, Q, flat), K, flat), p) for p in (0.01, 0.05)) == (
        13,
        20,
    )


@pytest.mark.parametrize(
    ("formula", "expected", "at_19"),
    [(lambda n: engset_time_congestion(K, n, Q), (13, 21), 0.0329),
     (lambda n: engset_call_congestion(K, n, Q), (14, 22), 0.0279),
     (lambda n: erlang_b(K, n * Q), (12, 21), 0.0363), (lambda n: erlang_c(K, n * Q), (11, 18), 0.0537)],
)  # fmt: skip
def test_loss_and_waiting_formulas(formula, expected, at_19):
    assert tuple(most_developers(formula, level) for level in (0.01, 0.05)) == expected
    assert formula(19) == pytest.approx(at_19, abs=5e-5)


@pytest.mark.parametrize(
    ("slower", "q", "expected"),
    [(0.75, 0.054, (25, 37)), (1.25, 0.087, (16, 23)), (1.5, 0.103, (13, 20)), (2, 0.133, (11, 15))],
)
def test_q_at_another_speed(slower, q, expected):
    other = demand.rescaled_q(Q, slower)
    assert other == pytest.approx(q, abs=5e-4)
    assert seats(lambda n: demand.independent(n, other)) == expected


def test_heterogeneous_teams():
    assert [seats_for_most_teams(K, Q, cv, 0.01, 0.95, 4000, 1) for cv in (0.25, 0.5, 1.0)] == [17, 16, 14]


@pytest.mark.parametrize(("cv", "over"), [(0.25, 0.30), (0.5, 0.34), (0.75, 0.33), (1.0, 0.30)])
def test_a_third_of_the_teams_of_19_are_over_the_level(cv, over):
    assert (overload_by_team(K, drawn_shares(Q, cv, 20000, 19, 2)) > 0.01).mean() == pytest.approx(over, abs=0.012)


shares = st.floats(0.005, 0.9)


@given(st.integers(1, 40), shares, st.integers(1, 10))
def test_experienced_overload_is_what_a_busy_developer_meets(n, q, k):
    others = demand.independent(n - 1, q)[k:].sum()
    assert experienced_overload(demand.independent(n, q), k) == pytest.approx(others, abs=1e-10)


@given(st.integers(0, 30), shares)
def test_models_that_add_nothing_equal_the_independent_one(n, q):
    plain = demand.independent(n, q)
    for other in (demand.correlated(n, q, 0), demand.day_profile(n, q, [2.0]), demand.heterogeneous([q] * n),
                  demand.parallel(n, [1 - q, q]), demand.closed(n, q, [1.0] * max(1, n))):  # fmt: skip
        assert other == pytest.approx(plain, abs=1e-9)


@given(st.lists(shares, min_size=1, max_size=8), st.integers(1, 6))
def test_a_team_of_known_shares_is_the_same_by_both_ways(own, k):
    assert overload_by_team(k, np.array([own]))[0] == pytest.approx(clock_overload(demand.heterogeneous(own), k), abs=1e-9)


@given(st.integers(1, 25), st.floats(0.01, 0.5), st.integers(1, 6), st.floats(0.001, 0.3))
def test_correlation_widens_the_distribution(n, q, k, rho):
    """The mean stays n q and the variance grows by 1 + (n - 1) rho."""
    busy, x = demand.correlated(n, q, rho), np.arange(n + 1)
    assert (busy * x).sum() == pytest.approx(n * q)
    plain = demand.independent(n, q)
    assert (busy * (x - n * q) ** 2).sum() == pytest.approx((plain * (x - n * q) ** 2).sum() * (1 + (n - 1) * rho), rel=1e-6)


@given(st.dictionaries(st.integers(2, 12), st.floats(1, 100), max_size=4), st.floats(1, 200))
def test_speed_curve_keeps_the_measured_points(points, single):
    measured = {1: single} | points
    curve = demand.speed_curve(measured)
    assert len(curve) == max(measured)
    assert {s: curve[s - 1] for s in measured} == pytest.approx(measured)


def test_beyond_the_last_measured_point_the_total_speed_stays():
    assert demand.stream_speed([10.0, 6.0], 4) == pytest.approx([10, 6, 4, 3])


def test_correlation_of_observed_developers():
    random = np.random.default_rng(3)
    level = random.beta(0.071 * 19, 0.929 * 19, size=400_000)  # rho = 1 / (a + b + 1) = 0.05
    busy = random.random((6, len(level))) < level
    assert correlation(busy) == pytest.approx(0.05, abs=0.005)
    assert correlation(random.random((6, 400_000)) < 0.071) == pytest.approx(0, abs=0.002)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: demand.independent(5, 0), "q: found 0, a developer who is never busy"),
        (lambda: demand.independent(5, 1), "q: found 1, a stream never idle"),
        (lambda: demand.independent(5, 1.4), "more than one busy stream"),
        (lambda: demand.independent(5, float("nan")), "q: found nan"),
        (lambda: demand.independent(-1, Q), "developers: found -1"),
        (lambda: clock_overload(demand.independent(5, Q), 0), "streams: found 0"),
        (lambda: demand.correlated(5, Q, 1.0), "rho: found 1.0"),
        (lambda: demand.day_profile(5, 0.3, [4, 0, 0, 0]), "busy share of 1.20"),
        (lambda: demand.day_profile(5, Q, []), "day profile: found"),
        (lambda: demand.day_profile(5, Q, [1, -1, 3]), "day profile: found"),
        (lambda: demand.parallel(5, [0.5, 0.6]), "own streams: found"),
        (lambda: demand.closed(5, Q, []), "speed: found"),
        (lambda: demand.speed_curve({2: 5.0}), "starting with 1 stream"),
        (lambda: most_developers(lambda n: 0.0, 0.01), "more than 1,000,000 developers"),
        (lambda: most_developers(lambda n: 1.0, 1.0), "level: found 1.0"),
        (lambda: fewest_servers(lambda m: 1.0, 0.01, 3), "3 are not enough"),
        (lambda: drawn_shares(Q, 9.0, 10, 3, 1), "cv: found 9.0"),
        (lambda: correlation(np.zeros((1, 5), bool)), "found 1 developer"),
        (lambda: erlang_b(4, -1), "load: found -1"),
    ],
)  # fmt: skip
def test_wrong_values_are_named(call, said):
    with pytest.raises(SeatsError, match=said):
        call()


def test_one_developer_may_already_be_too_many():
    assert most_developers(lambda n: 0.5, 0.01) == 0
