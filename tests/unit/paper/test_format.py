"""The one formatter."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.paper.format import FormatError, convert, number


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (2.675, 2, "2.68"), (0.5, 0, "1"), (1.5, 0, "2"), (2.5, 0, "3"), (1234, 0, "1234"), (12345.678, 1, "12,345.7"),
        (-0.04, 1, "0.0"), (-0.05, 1, "−0.1"), (1e-7, 2, "0.00"), (763.2e9, 0, "763,200,000,000"), (0.1 + 0.2, 1, "0.3"),
    ],
)  # fmt: skip
def test_rounding_is_half_up_on_the_decimal_text(value: float, decimals: int, text: str) -> None:
    assert number(value, decimals) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_printed(value: float) -> None:
    with pytest.raises(FormatError, match="finite"):
        number(value, 1)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15), st.integers(0, 6))
def test_the_text_is_within_half_a_digit_of_the_value(value: float, decimals: int) -> None:
    assert (
        abs(float(number(value, decimals).replace(",", "").replace("−", "-")) - value)
        <= 0.5 * 10**-decimals + abs(value) * 1e-15
    )


def test_units_follow_from_the_column() -> None:
    assert convert(0.0076, "tpot_s", "ms") == pytest.approx(7.6)
    assert convert(2**30, "weights_bytes", "GiB") == 1
    assert convert(59, "rate_tok_per_s", "token/s") == 59
    assert convert(0.48, "kv_usage_fraction", "%") == 48
    with pytest.raises(FormatError, match=r"found 'GB' for 'tpot_s'; expected one of: s, ms"):
        convert(1, "tpot_s", "GB")
