"""The arithmetic of the article's pictures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.paper.article_charts import NARROW, WIDE, Scale, _up_to, draw_bar, ticks


@pytest.mark.parametrize(
    ("high", "most", "at"),
    [(6, 6, [0, 1, 2, 3, 4, 5, 6]), (208.3, 5, [0, 50, 100, 150, 200]), (502, 5, [0, 200, 400]), (0.9, 3, [0, 0.5])],
)
def test_ticks_are_round(high: float, most: int, at: list[float]) -> None:
    assert ticks(high, most) == pytest.approx(at)


@given(st.floats(1e-3, 1e6), st.integers(1, 10))
def test_ticks_are_few_and_reach_no_further_than_asked(high: float, most: int) -> None:
    at = ticks(high, most)
    assert at[0] == 0
    assert at[-1] <= high * (1 + 1e-6)
    assert len(at) <= most + 1


def test_scale_puts_the_ends_on_the_ends() -> None:
    scale = Scale(0, 6, 282, 34)
    assert (scale(0), scale(6), scale(3)) == (282, 34, 158)


def test_a_curve_is_cut_where_it_leaves_the_picture() -> None:
    assert _up_to([(0, 0), (1, 2), (2, 6), (3, 9)], 4) == [(0, 0), (1, 2), (1.5, 4)]
    assert _up_to([(0, 0), (1, 2)], 4) == [(0, 0), (1, 2)]


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize(("stools", "guests", "seated"), [(4, 19, 1), (1, 3, 1), (8, 60, 4), (4, 4, 4)])
def test_the_bar_has_its_stools_and_guests(width: float, stools: int, guests: int, seated: int) -> None:
    drawn = "".join(draw_bar(width, stools, guests, seated).parts)
    assert drawn.count('class="seat"') == stools
    assert drawn.count('<circle class="person lit"') == seated
    assert drawn.count('<circle class="person idle"') == guests - seated
