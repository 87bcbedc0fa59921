"""Worked values: each interval and test against figures that are known from elsewhere, and properties that must hold."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.quality import statistics
from spillway.quality.published import published_rows
from spillway.record import parquet
from tests.conftest import ROOT


def rounded(pair: tuple[float, float], digits: int = 3) -> tuple[float, float]:
    return round(pair[0], digits), round(pair[1], digits)


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 400))
    wins = draw(st.integers(0, n))
    return wins, draw(st.integers(0, n - wins)), n


@pytest.mark.parametrize(
    ("wins", "losses", "n", "interval"),
    [(0, 0, 150, (-0.025, 0.025)), (4, 2, 150, (-0.024, 0.055)), (2, 5, 164, (-0.059, 0.017))],
)
def test_tango_interval_of_the_articles_tasks(wins: int, losses: int, n: int, interval: tuple[float, float]) -> None:
    assert rounded(statistics.tango(wins, losses, n)) == interval


@pytest.mark.parametrize("case", [(4, 2, 150, -0.05), (0, 0, 150, 0.02), (2, 5, 164, -0.03), (0, 1, 44, 0.05), (9, 1, 20, 0.1)])
def test_nuisance_parameter_is_the_likeliest_one_under_the_hypothesis(case: tuple[int, int, int, float]) -> None:
    wins, losses, n, d = case

    def likelihood(only_second: float) -> float:
        cells = ((wins, only_second + d), (losses, only_second), (n - wins - losses, 1 - 2 * only_second - d))
        if any(p < 0 or (count and p == 0) for count, p in cells):
            return -math.inf
        return sum(count * math.log(p) for count, p in cells if count)

    steps = 40_000
    best = max((max(0.0, -d) + step / steps * (1 - abs(d)) / 2 for step in range(steps + 1)), key=likelihood)
    expected = (wins - losses - n * d) / math.sqrt(n * (2 * best + d - d * d))
    assert statistics.tango_z(*case) == pytest.approx(expected, rel=1e-3)


def test_no_discordant_item_bounds_the_discordance_at_2_4_percent_of_150() -> None:
    assert round(statistics.clopper_pearson(0, 150)[1], 3) == 0.024


@given(counts())
def test_tango_contains_what_was_observed_and_mirrors(case: tuple[int, int, int]) -> None:
    wins, losses, n = case
    low, high = statistics.tango(wins, losses, n)
    assert -1 <= low <= (wins - losses) / n <= high <= 1
    assert statistics.tango(losses, wins, n) == pytest.approx((-high, -low), abs=1e-9)


@given(counts())
def test_tango_interval_is_where_the_score_test_rejects(case: tuple[int, int, int]) -> None:
    wins, losses, n = case
    low, high = statistics.tango(wins, losses, n)
    for end, z in ((low, 1.959964), (high, -1.959964)):
        if -1 < end < 1:
            assert statistics.tango_z(wins, losses, n, end) == pytest.approx(z, abs=1e-3)


def test_articles_humaneval_by_its_own_method() -> None:
    assert rounded(statistics.percentile_bootstrap(2, 5, 164)) == (-0.049, 0.012)
    assert round(-3 / 164, 3) == -0.018
    assert round(statistics.mcnemar(2, 5), 2) == 0.45


def test_bootstrap_without_discordant_items_is_the_degenerate_interval() -> None:
    assert statistics.percentile_bootstrap(0, 0, 150) == (0, 0)


def test_exact_bootstrap_is_what_resampling_converges_to() -> None:
    import numpy as np

    scores = np.array([1] * 4 + [-1] * 2 + [0] * 144)
    means = np.random.default_rng(1).choice(scores, (20_000, 150)).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    assert statistics.percentile_bootstrap(4, 2, 150) == pytest.approx((low, high), abs=1e-9)


def test_published_figures_of_the_article_are_recomputed() -> None:
    figures = parquet.read(ROOT / "data/published/figures.csv").query("group == 'quality'").set_index("id")
    columns = figures[["value", "low", "high"]].astype(float)
    rows = {row["task"]: row for row in published_rows({str(name): dict(columns.loc[name]) for name in columns.index})}
    assert rows["humaneval"]["reproduced"] is True
    assert rows["ifeval"]["reproduced"] is False, "no exact percentile bootstrap of binary scores gives that interval"
    assert rows["gsm8k"]["reproduced"] is None, "no interval is stated"
    assert round(rows["gsm8k"]["score_high_fraction"], 3) == 0.025


@pytest.mark.parametrize(
    ("right", "n", "interval"), [(144, 150, (0.915, 0.982)), (0, 10, (0.0, 0.278)), (10, 10, (0.722, 1.0))]
)
def test_wilson(right: int, n: int, interval: tuple[float, float]) -> None:
    assert rounded(statistics.wilson(right, n)) == interval


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_exact_interval_holds_the_share_and_lies_within_0_and_1(case: tuple[int, int]) -> None:
    low, high = statistics.clopper_pearson(*case)
    assert 0 <= low <= case[0] / case[1] <= high <= 1


@pytest.mark.parametrize(
    ("share", "n", "error", "detectable"),
    [(0.045, 150, 0.0173, 0.0485), (0.043, 164, 0.0162, 0.0454), (0.04, 541, 0.0086, 0.0241), (0.03, 1319, 0.0048, 0.0134)],
)
def test_power_table(share: float, n: int, error: float, detectable: float) -> None:
    assert round(statistics.standard_error(share, n), 4) == error
    assert round(statistics.detectable(share, n), 4) == detectable


@pytest.mark.parametrize(("margin", "items"), [(0.05, 112), (0.03, 310), (0.02, 696), (0.01, 2783)])
def test_items_needed_for_a_margin(margin: float, items: int) -> None:
    assert statistics.items_needed(0.045, margin) == items


def test_mcnemar_worked_values() -> None:
    assert statistics.mcnemar(0, 0) == 1
    assert statistics.mcnemar(1, 8) == pytest.approx(2 * 10 / 512)  # (1 + 9) / 2^9 in one tail
    assert statistics.mcnemar(3, 3) == 1


@given(counts(), st.floats(0.005, 0.5))
def test_non_inferiority_agrees_with_the_interval_of_twice_its_level(case: tuple[int, int, int], margin: float) -> None:
    wins, losses, n = case
    low, _ = statistics.tango(wins, losses, n, level=0.90)
    p = statistics.non_inferiority(wins, losses, n, margin)
    if abs(low + margin) > 1e-6:
        assert (p < 0.05) == (low > -margin)


def test_a_margin_outside_of_0_and_1_is_refused() -> None:
    with pytest.raises(ValueError, match="found 5"):
        statistics.non_inferiority(1, 2, 150, 5)


def test_clustered_standard_error_of_item_means() -> None:
    # Two items, differences 0 and 1: SE^2 = (0.25 + 0.25) / (2 * 1).
    assert statistics.clustered([0.0, 1.0]) == pytest.approx((0.5, 0.5))
    assert statistics.clustered_interval([0.5, 0.5, 0.5]) is None, "no spread is no certainty"
    assert statistics.clustered_non_inferiority([0.5, 0.5], 0.1) is None
    with pytest.raises(ValueError, match="found 1"):
        statistics.clustered([1.0])


def test_clustered_error_of_binary_pairs_is_the_usual_one() -> None:
    # b wins, c losses of n: SE^2 = (b + c - (b - c)^2 / n) / (n (n - 1)), the paired Wald error.
    b, c, n = 4, 2, 150
    _, error = statistics.clustered([1.0] * b + [-1.0] * c + [0.0] * (n - b - c))
    assert error**2 == pytest.approx((b + c - (b - c) ** 2 / n) / (n * (n - 1)))


def test_holm_worked_values() -> None:
    adjusted = statistics.holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert adjusted == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert statistics.holm({"only": 0.2}) == {"only": 0.2}


@pytest.mark.parametrize("case", [(-1, 0, 5), (3, 3, 5), (0, 0, 0)])
def test_counts_that_are_none_are_refused(case: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="counts"):
        statistics.tango(*case)
