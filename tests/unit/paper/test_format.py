"""The one formatter."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.paper.format import (
    LANGUAGES,
    SYMBOLS,
    WORDS,
    FormatError,
    check_unit,
    convert,
    number,
    quotient,
    texts,
    with_unit,
)


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


def test_bytes_over_a_rate_are_a_time_in_whatever_units_both_are_printed() -> None:
    assert quotient(3, "ms", 2, "ms", "x") == 1.5
    assert quotient(3, "ms", 2, "ms", "%") == 150
    assert quotient(1, "GiB", 2**30 / 1e9, "GB/s", "ms") == pytest.approx(1000)
    assert quotient(50, "MB", 0.5, "GB/s", "s") == pytest.approx(0.1)


@pytest.mark.parametrize("units", [("ms", "s", "x"), ("GiB", "GB/s", "x"), ("GB/s", "GiB", "s"), ("tokens", "GB/s", "s")])
def test_a_quotient_of_two_units_that_has_no_unit_of_its_own_is_refused(units: tuple[str, str, str]) -> None:
    above, below, unit = units
    with pytest.raises(
        FormatError, match=f"found '{above}' over '{below}' in '{unit}'; expected one unit, or bytes over a rate"
    ):
        quotient(1.0, above, 2.0, below, unit)


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (7.65, 1, "7,7"), (1234.5, 1, "1234,5"), (12345.678, 1, "12\u202f345,7"),
        (1234567, 0, "1\u202f234\u202f567"), (-0.05, 1, "−0,1"),
    ],
)  # fmt: skip
def test_spanish_has_a_decimal_comma_and_groups_from_five_digits_on(value: float, decimals: int, text: str) -> None:
    assert number(value, decimals, "es") == text


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12), st.integers(0, 6))
def test_all_languages_print_the_same_digits(value: float, decimals: int) -> None:
    printed = texts(value, decimals)
    assert set(printed) == set(LANGUAGES)
    assert printed["en"].translate({ord(","): "\u202f", ord("."): ","}) == printed["es"]


@pytest.mark.parametrize(
    ("text", "unit", "language", "printed"),
    [
        ("48", "%", "es", "48\u202f%"), ("48", "%", "en", "48\u202f%"), ("7,6", "ms", "es", "7,6\u202fms"),
        ("3", "us", "en", "3\u202fµs"),
        ("1.17", "x", "en", "1.17×"), ("1", "tokens", "en", "1\u00a0token"), ("4096", "tokens", "es", "4096\u00a0tokens"),
        ("59", "token/s", "es", "59\u00a0tokens/s"),
        ("763,2", "billion parameters", "es", "763,2\u00a0miles de millones de parámetros"),
        ("4", "", "es", "4"),
    ],
)  # fmt: skip
def test_units_are_symbols_or_words_of_the_language(text: str, unit: str, language: str, printed: str) -> None:
    assert with_unit(text, unit, language) == printed


def test_every_unit_can_be_printed_in_every_language() -> None:
    assert {frozenset(words) for words in WORDS.values()} == {frozenset(WORDS["en"])}
    for unit in [*SYMBOLS, *WORDS["en"]]:
        check_unit(unit)
    with pytest.raises(FormatError, match=r"found 'GiBs'; expected one of: s, ms"):
        check_unit("GiBs")
