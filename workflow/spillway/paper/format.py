"""The one formatter: every number that is printed anywhere passes through here."""

import decimal
import math

# unit of a column (the end of its name) -> unit that may be printed -> factor; the longest end that fits counts
CONVERSIONS: dict[str, dict[str, float]] = {
    "tok_per_s": {"token/s": 1},
    "bytes_per_s": {"MB/s": 1e-6, "GB/s": 1e-9},
    "s": {"s": 1, "ms": 1e3, "us": 1e6, "min": 1 / 60, "h": 1 / 3600},
    "bytes": {"B": 1, "kB": 1e-3, "MB": 1e-6, "GB": 1e-9, "KiB": 2**-10, "MiB": 2**-20, "GiB": 2**-30},
    "tokens": {"tokens": 1},
    "fraction": {"": 1, "%": 100},
}
SYMBOLS = {"us": "µs", "x": "×"}
SEPARATORS = {"en": (".", ",")}


class FormatError(Exception):
    """A value cannot be printed as asked; the message says what was found and what is possible."""


def convert(value: float, column: str, unit: str) -> float:
    """A value of a column in the unit to be printed; a column without a unit in its name keeps its value.

    Raises FormatError if the column's unit does not convert to that one.
    """
    for suffix, factors in CONVERSIONS.items():
        if column == suffix or column.endswith(f"_{suffix}"):
            if unit not in factors:
                raise FormatError(f"unit: found {unit!r} for {column!r}; expected one of: {', '.join(factors)}")
            return value * factors[unit]
    return value


def number(value: float, decimals: int, language: str = "en") -> str:
    """A value with fixed decimals, rounded half up on its shortest decimal text, digits grouped from 10,000 on.

    Raises FormatError for NaN and infinity: they are never printed.
    """
    if not math.isfinite(value):
        raise FormatError(f"found {value}; expected a finite number")
    point, group = SEPARATORS[language]
    exact = decimal.Decimal(repr(value) if isinstance(value, float) else str(value))
    rounded = exact.quantize(decimal.Decimal(1).scaleb(-decimals), rounding=decimal.ROUND_HALF_UP)
    whole, _, fraction = f"{abs(rounded):f}".partition(".")
    if len(whole) > 4:
        whole = f"{int(whole):,}".replace(",", group)
    sign = "−" if rounded < 0 else ""
    return sign + whole + (point + fraction if fraction else "")


def unit(symbol: str) -> str:
    """How a unit is printed."""
    return SYMBOLS.get(symbol, symbol)
