"""The one formatter: every number that is printed anywhere, in any language, passes through here."""

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

NARROW, WIDE = "\u202f", "\u00a0"  # spaces at which no line breaks

# language -> decimal mark, mark between groups of digits. `es` is es_ES, where both marks are a matter of country: the Real
# Academia's decimal comma, and a space between groups, from five digits on.
MARKS = {"en": (".", ","), "es": (",", NARROW)}
LANGUAGES = tuple(MARKS)

# Units that are the same in every language, as they are printed.
SYMBOLS = {
    **{name: name for name in ("s", "ms", "min", "h", "B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "MB/s", "GB/s")},
    **{name: name for name in ("GiB/s", "%", "W", "kW", "J", "kWh", "GB/GPU", "GiB/GPU", "EUR", "EUR/h", "USD", "USD/h")},
    "us": "µs",
    "x": "×",
}
# Units that are words: language -> unit -> (beside 1, beside all else).
WORDS = {
    "en": {
        "tokens": ("token", "tokens"),
        "token/s": ("token/s", "token/s"),
        "billion parameters": ("billion parameters", "billion parameters"),
        "percentage points": ("percentage point", "percentage points"),
        "EUR/month": ("EUR/month", "EUR/month"),
        "USD/month": ("USD/month", "USD/month"),
        "h/week": ("h/week", "h/week"),
    },
    "es": {
        "tokens": ("token", "tokens"),
        "token/s": ("token/s", "tokens/s"),
        "billion parameters": ("mil millones de parámetros", "miles de millones de parámetros"),
        "percentage points": ("punto porcentual", "puntos porcentuales"),
        "EUR/month": ("EUR/mes", "EUR/mes"),
        "USD/month": ("USD/mes", "USD/mes"),
        "h/week": ("h/semana", "h/semana"),
    },
}
# What stands in a number's place where the samples do not give one.
TOO_FEW = {"en": "too few samples", "es": "muestras insuficientes"}
ONE_BOOT = {"en": "one boot", "es": "un solo arranque"}


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


def quotient(above: float, above_unit: str, below: float, below_unit: str, unit: str) -> float:
    """One printed value over another in the unit to be printed: a proportion of two in one unit, or the time that bytes take.

    Raises FormatError for two units whose quotient is neither.
    """
    if above_unit == below_unit:
        return above / below * (100 if unit == "%" else 1)
    sizes, rates, times = (CONVERSIONS[name] for name in ("bytes", "bytes_per_s", "s"))
    if above_unit in sizes and below_unit in rates and unit in times:
        return (above / sizes[above_unit]) / (below / rates[below_unit]) * times[unit]
    raise FormatError(
        f"unit: found {above_unit!r} over {below_unit!r} in {unit!r}; expected one unit, or bytes over a rate as a time"
    )


def rounded(value: float, decimals: int) -> decimal.Decimal:
    """A value with fixed decimals, rounded half up on its shortest decimal text: the one rounding of all languages.

    Raises FormatError for NaN and infinity: they are never printed.
    """
    if not math.isfinite(value):
        raise FormatError(f"found {value}; expected a finite number")
    exact = decimal.Decimal(repr(value) if isinstance(value, float) else str(value))
    return exact.quantize(decimal.Decimal(1).scaleb(-decimals), rounding=decimal.ROUND_HALF_UP)


def localised(exact: decimal.Decimal, language: str) -> str:
    """A rounded value in the marks of a language; digits are grouped from 10,000 on, the sign is a minus, not a hyphen."""
    mark, group = MARKS[language]
    whole, _, fraction = f"{abs(exact):f}".partition(".")
    if len(whole) > 4:
        whole = f"{int(whole):,}".replace(",", group)
    sign = "−" if exact < 0 else ""
    return sign + whole + (mark + fraction if fraction else "")


def number(value: float, decimals: int, language: str = "en") -> str:
    """A value as it is printed in a language; raises FormatError as `rounded` does."""
    return localised(rounded(value, decimals), language)


def texts(value: float, decimals: int) -> dict[str, str]:
    """Language -> a value as it is printed there: rounded once, then written in each."""
    exact = rounded(value, decimals)
    return {language: localised(exact, language) for language in LANGUAGES}


def check_unit(unit: str) -> None:
    """Raise FormatError for a unit that cannot be printed in all languages."""
    if unit and unit not in SYMBOLS and not all(unit in words for words in WORDS.values()):
        known = ", ".join([*SYMBOLS, *WORDS["en"]])
        raise FormatError(f"unit: found {unit!r}; expected one of: {known} (workflow/spillway/paper/format.py lists them)")


def with_unit(text: str, unit: str, language: str) -> str:
    """A number's text and its unit: `×` joined to it, symbols after a narrow space, words after a wide one."""
    if not unit:
        return text
    if unit == "x":
        return text + SYMBOLS[unit]
    if unit in SYMBOLS:
        return text + NARROW + SYMBOLS[unit]
    one, many = WORDS[language][unit]
    return text + WIDE + (one if text == "1" else many)


def words(cell: str) -> str:
    """A cell's name as English words: `decode cold_share=0.05,streams=4` is `decode: 5 % cold, 4 streams`."""
    before, _, last = cell.rpartition(" ")
    name, settings = (before, last.split(",")) if "=" in last else (cell, [])
    told = ", ".join(_setting(*setting.split("=", 1)) for setting in settings)
    return ": ".join(filter(None, [name.replace("_", " "), told]))


def _setting(name: str, value: str) -> str:
    match name:
        case "cold_share":
            return with_unit(f"{100 * float(value):.3g}", "%", "en") + " cold"
        case "streams":
            return f"{value} stream" if value == "1" else f"{value} streams"
        case "context_tokens" | "prompt_tokens" | "prefix_tokens":
            return with_unit(number(int(value), 0), "tokens", "en")
    return f"{name.replace('_', ' ')} {value}"
