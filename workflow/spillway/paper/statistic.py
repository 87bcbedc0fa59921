"""The arithmetic behind a number: from the rows that its filter leaves to one value. No files here."""

import math
from typing import Any

import pandas as pd

from spillway.paper.format import ONE_BOOT, TOO_FEW
from spillway.record.samples import samples_needed
from spillway.seats.distributions import student_t_quantile

EXTREMES = ("@min", "@max")
KNOWN = "@known"
BOOT = "boot"
CONFIDENCE = 0.95
# With fewer samples the paper says so in the percentile's place.
FEWEST = {"p5": samples_needed(0.05), "p95": samples_needed(0.95)}


class StatisticError(Exception):
    """The rows do not give the value that is asked for; the message says what was found."""


class NoValue(Exception):
    """The rows are too few for the statistic; the outputs print `texts` in its place."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__(texts["en"])
        self.texts = texts


def select(rows: pd.DataFrame, where: dict[str, Any]) -> pd.DataFrame:
    """The rows that fulfil all conditions, extremes last; raises StatisticError for the first condition that none fulfils."""
    selected = rows
    for column, wanted in sorted(where.items(), key=lambda item: item[1] in EXTREMES):
        before = selected
        if wanted == KNOWN:
            selected = before[before[column].notna()]
        else:
            selected = before[before[column] == (before[column].agg(wanted[1:]) if wanted in EXTREMES else wanted)]
        if selected.empty:
            present = ", ".join(str(value) for value in before[column].drop_duplicates().head(12))
            others = " among those that the other conditions leave" if len(where) > 1 else ""
            raise StatisticError(f"no row of it has {column} = {wanted!r}{others}; there: {present or 'nothing'}")
    return selected


def name(statistic: str, column: pd.Series) -> str:
    """The text of `only`, or the texts of `distinct` in the order of the file; raises StatisticError."""
    return ", ".join(dict.fromkeys(map(str, column))) if statistic == "distinct" else str(only(column))


def only(column: pd.Series) -> Any:
    """The one value of a column; raises StatisticError if it has several."""
    distinct = column.drop_duplicates()
    if len(distinct) != 1:
        raise StatisticError(
            f"`only` expects one value in {column.name}; found {len(distinct)}: {', '.join(map(str, distinct[:6]))}"
        )
    return distinct.iloc[0]


def value(statistic: str, column: pd.Series) -> float:
    """A statistic of a column without gaps; raises NoValue for too few samples of a percentile, StatisticError for text."""
    if len(column) < FEWEST.get(statistic, 1):
        raise NoValue({language: f"{words} ({len(column)})" for language, words in TOO_FEW.items()})
    try:
        match statistic:
            case "only":
                found = float(only(column))
            case "distinct":
                found = float(column.nunique())
            case "p5" | "p95":
                found = float(column.quantile(int(statistic[1:]) / 100))
            case _:
                found = float(getattr(column, statistic)())
    except (TypeError, ValueError):
        raise StatisticError(f"{column.name} is not a number, but {column.iloc[0]!r}; set `text: true`") from None
    if not math.isfinite(found):
        raise StatisticError(f"the {statistic} of {column.name} is {found}; expected a finite number")
    return found


def over_boots(end: str, statistic: str, rows: pd.DataFrame, column: str) -> float:
    """One end (`low`, `high`) of Student's 95 % interval for the mean over boots of a statistic within each boot.

    Boots are the unit: requests of one boot share its memory layout and warm-up, and are no independent samples of the
    server. Raises NoValue for one boot, whose spread nobody knows, and as `value` does.
    """
    each = pd.Series([value(statistic, part[column]) for _, part in rows.groupby(BOOT)])
    if len(each) < 2:
        raise NoValue(dict(ONE_BOOT))
    half = student_t_quantile((1 + CONFIDENCE) / 2, len(each) - 1) * float(each.std(ddof=1)) / math.sqrt(len(each))
    return float(each.mean()) + (half if end == "high" else -half)
