"""Divergences with known values, where two texts part, and reading what vLLM answers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.quality import agreement
from spillway.quality.agreement import Position, Reading
from spillway.quality.teacher import positions

HALF, QUARTER = math.log(0.5), math.log(0.25)


def test_divergence_of_two_coins() -> None:
    # 1/2, 1/2 against 1/4, 3/4: 1/2 ln 2 + 1/2 ln(2/3).
    p, q = {1: HALF, 2: HALF}, {1: QUARTER, 2: math.log(0.75)}
    assert agreement.divergence(p, q) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))


def test_the_rest_of_the_vocabulary_counts_as_one_token() -> None:
    assert agreement.divergence({1: HALF}, {1: QUARTER}) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert agreement.divergence({1: HALF, 7: QUARTER}, {1: HALF, 8: QUARTER}) == 0.0, "only what both name"


weights = st.lists(st.floats(0.01, 1), min_size=4, max_size=4)


@given(weights, weights)
def test_naming_fewer_tokens_gives_a_lower_bound_and_never_less_than_0(a: list[float], b: list[float]) -> None:
    p = {token: math.log(value / sum(a)) for token, value in enumerate(a)}
    q = {token: math.log(value / sum(b)) for token, value in enumerate(b)}
    whole = agreement.divergence(p, q)
    part = agreement.divergence({token: p[token] for token in (0, 1)}, {token: q[token] for token in (0, 1)})
    assert 0 <= part <= whole + 1e-9
    assert agreement.divergence(p, p) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "place"), [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 9, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [], None)]
)
def test_first_divergence(a: list[int], b: list[int], place: int | None) -> None:
    assert agreement.first_divergence(a, b) == place


def reading(*logprobs: float, written: tuple[int, ...] = (5, 6)) -> Reading:
    places = [Position(token, logprob, {token: logprob, 99: QUARTER}, token) for token, logprob in enumerate(logprobs)]
    return Reading(places, written)


def test_rows_of_a_text_and_of_all_of_them() -> None:
    a, b = reading(HALF, HALF), reading(HALF, QUARTER, written=(5, 7))
    tokens = agreement.token_rows("t", a, b)
    assert [row["position"] for row in tokens] == [0, 1]
    row = agreement.text_row("t", a, b, tokens)
    assert row["a_nll_nats"] == pytest.approx(math.log(2)) and row["b_nll_nats"] == pytest.approx(1.5 * math.log(2))
    assert row["diverges_after_tokens"] == 1 and row["identical"] is False
    same = agreement.text_row("u", a, a, agreement.token_rows("u", a, a))
    assert same["identical"] is True and same["divergence_nats"] == pytest.approx(0, abs=1e-12)
    all_ = agreement.comparison_row(tokens + agreement.token_rows("u", a, a), [row, same])
    assert all_["difference_nats"] == pytest.approx(0.25 * math.log(2)), "b less a, mean over texts"
    assert all_["identical_texts"] == 1 and not all_["identical"] and all_["diverged_texts"] == 1
    assert all_["largest_difference_nats"] == pytest.approx(math.log(2))


def test_a_difference_in_the_last_bit_is_not_identical() -> None:
    a, b = reading(HALF), reading(math.nextafter(HALF, 0))
    assert agreement.text_row("t", a, b, agreement.token_rows("t", a, b))["identical"] is False


def test_other_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="one tokenizer"):
        agreement.token_rows("t", reading(HALF), reading(HALF, HALF))


def test_positions_of_vllms_prompt_logprobs() -> None:
    told = [None, {"7": {"logprob": -2.0, "rank": 9}, "3": {"logprob": -0.5, "rank": 1}}]
    [at] = positions([4, 7], told)
    assert at == Position(token=7, logprob=-2.0, top={7: -2.0, 3: -0.5}, first=3)
    with pytest.raises(KeyError):
        positions([4, 8], told)
    with pytest.raises(ValueError):
        positions([4, 7, 8], told)
    with pytest.raises(ValueError, match="behind the first"):
        positions([4, 7, 8], [None, told[1], None])
