"""The capacity rule: the article's levels give the article's capacity, and what a distrustful reader would try."""

from pathlib import Path

import pandas as pd
import pytest

from spillway.load.capacity import Capacity, Level, capacity, holds, level
from spillway.load.latency import TooFewSamples

FIGURES = Path(__file__).resolve().parents[3] / "data" / "published" / "figures.csv"


def published() -> dict[str, float]:
    figures = pd.read_csv(FIGURES).set_index("id").value
    return {name: float(value) for name, value in figures.items() if str(name).startswith("agents.")}


def test_the_articles_levels_give_its_capacity() -> None:
    figures = published()
    levels = [Level(n, figures[f"agents.s{n}_median"], figures[f"agents.s{n}_p5"]) for n in (1, 2, 3, 4, 6, 8)]
    found = capacity(levels, floor_tok_per_s=figures["agents.floor"], margin_fraction=figures["agents.margin"] / 100)
    assert found == Capacity(4, at_least=False)
    assert found.streams == figures["agents.capacity"]


def test_the_margin_is_on_the_median_and_the_floor_on_p5() -> None:
    rule = {"floor_tok_per_s": 40.0, "margin_fraction": 0.1}
    assert holds(Level(1, 44.0, 40.0), **rule) is True
    assert holds(Level(1, 43.9, 40.0), **rule) is False
    assert holds(Level(1, 60.0, 39.9), **rule) is False


def test_a_level_above_one_that_fails_does_not_count() -> None:
    levels = [Level(4, 90.0, 80.0), Level(1, 90.0, 80.0), Level(2, 30.0, 20.0)]
    assert capacity(levels, floor_tok_per_s=40.0) == Capacity(1, at_least=False)


def test_a_capacity_that_was_not_exhausted_is_a_lower_bound() -> None:
    assert capacity([Level(2, 90.0, 80.0)], floor_tok_per_s=40.0) == Capacity(2, at_least=True)
    assert capacity([Level(1, 9.0, 8.0)], floor_tok_per_s=40.0) == Capacity(0, at_least=False)


def test_too_few_samples_decide_nothing() -> None:
    few, enough = level(2, [50.0] * 58), level(1, [50.0] * 59)
    assert few.p5_tok_per_s == TooFewSamples(58, 59)
    assert capacity([enough, few], floor_tok_per_s=40.0) == Capacity(1, at_least=True, undecided=2)
    # A median that misses the floor needs no p5 to be judged.
    assert capacity([enough, level(2, [30.0] * 10)], floor_tok_per_s=40.0) == Capacity(1, at_least=False)


def test_levels_must_be_distinct_and_some() -> None:
    for levels in ([], [Level(1, 1.0, 1.0), Level(1, 2.0, 2.0)]):
        with pytest.raises(ValueError, match="levels"):
            capacity(levels, floor_tok_per_s=40.0)
