"""One question about seats: who, how busy, on what server, at what price; as published, or from one's own logs."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spillway.seats.cost import Prices
from spillway.seats.demand import check_q, independent
from spillway.seats.distributions import student_t_quantile
from spillway.seats.errors import SeatsError
from spillway.seats.overload import check_streams, clock_overload, experienced_overload, most_developers
from spillway.spec.shown import shown

HOURS_OF_A_MONTH = 730.0
"""A server rented day and night: 365.25 x 24 / 12, rounded; the only number of hours that gives the published bill."""
HOURS_OF_A_WEEK = 168.0
WORKING_DAYS = 5
KIB = 1024
"""The article writes 128K tokens for 128 x 1024."""
LEVELS = (0.01, 0.05)
"""The two shares of time for which the article gives seats."""


@dataclass(frozen=True)
class Case:
    """What a seat count depends on.

    name: published, or what it is called in the tables. q: mean busy streams of a developer within `window_hours` a day.
    k: streams that one server holds at the floor. teams: sizes to give servers for. speed_tok_per_s: of one stream by
    streams busy. q_draws: plausible values of q (a bootstrap), and q_draws_from: how they were made; None if nothing is
    known. prefill_tok_per_s, kv_cache_tokens: of one server; None where not known.
    """

    name: str
    q: float
    window_hours: float
    k: int
    prices: Prices
    currency: str
    teams: tuple[int, ...]
    speed_tok_per_s: Mapping[int, float] | None = None
    q_draws: NDArray[np.float64] | None = None
    q_draws_from: str | None = None
    prefill_tok_per_s: float | None = None
    kv_cache_tokens: float | None = None

    def __post_init__(self) -> None:
        check_q(self.q)
        check_streams(self.k)

    def clock_seats(self, level: float) -> int:
        """Largest n with P(Bin(n, q) > k) <= level: `level` of clock time."""
        return most_developers(lambda n: clock_overload(independent(n, self.q), self.k), level)

    def experienced_seats(self, level: float) -> int:
        """Largest n with at most `level` of generated stream time in overload."""
        return most_developers(lambda n: experienced_overload(independent(n, self.q), self.k), level)


_SPEED, _TEAM = re.compile(r"agents\.s([0-9]{1,4})_median"), re.compile(r"fleet\.developers_([0-9]{1,6})_servers")


def published_values(figures: pd.DataFrame) -> dict[str, str]:
    """Value of each published figure as it was printed, by id; raises SeatsError if it is not such a table."""
    if missing := [name for name in ("id", "value") if name not in figures]:
        raise SeatsError(
            f"published figures: found the columns {', '.join(map(str, figures))[:400]}; missing {', '.join(missing)}"
        )
    pairs = zip(figures["id"], figures["value"], strict=True)
    return {str(name): str(value) for name, value in pairs if pd.notna(value)}


def published_case(figures: pd.DataFrame, q_draws: NDArray[np.float64] | None, q_draws_from: str | None) -> Case:
    """The article's case, every value from its published figures; raises SeatsError naming an absent id."""
    values = published_values(figures)

    def number(name: str) -> float:
        if name not in values:
            raise SeatsError(f"published figures: {name}: found nothing; expected a value")
        try:
            value = float(values[name])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise SeatsError(f"published figures: {name}: found {shown(values[name])}; expected a number above 0")
        return value

    speeds = {int(found[1]): number(name) for name in values if (found := _SPEED.fullmatch(name))}
    return Case(
        name="published",
        q=number("usage.q") / 100,
        window_hours=number("usage.window"),
        k=int(number("agents.capacity")),
        prices=Prices(number("cost.server_hour"), number("cost.subscription"), HOURS_OF_A_MONTH),
        currency="EUR",
        teams=tuple(sorted(int(found[1]) for name in values if (found := _TEAM.fullmatch(name)))),
        speed_tok_per_s=speeds,
        q_draws=q_draws,
        q_draws_from=q_draws_from,
        prefill_tok_per_s=128 * KIB / number("ttft.context_128k"),
        kv_cache_tokens=number("agents.kv_contexts") * 128 * KIB / (number("agents.kv_usage_max") / 100),
    )


def measured_speeds(requests: pd.DataFrame) -> dict[int, float]:
    """Median token/s of one stream by streams at once, from a `requests` table of several numbers of agents.

    Only measured requests that succeeded and have a rate count; raises SeatsError if there are none.
    """
    good = requests[(requests["phase"] == "measured") & (requests["outcome"] == "ok") & requests["rate_tok_per_s"].notna()]
    by_streams = good[good["streams"].notna()].groupby("streams")["rate_tok_per_s"].median()
    if by_streams.empty:
        raise SeatsError(f"requests: found {len(requests)}, none measured with streams and a rate; expected a closed-loop cell")
    return {int(str(streams).removesuffix(".0")): float(speed) for streams, speed in by_streams.items()}


def assumed_q_draws(q: float, days: int, day_cv: float) -> tuple[NDArray[np.float64], str]:
    """Values of q at equal steps of probability, if `days` days gave q and differ with coefficient of variation day_cv.

    Student t around q with standard error day_cv q / sqrt(days). For a q that was published without its days.
    """
    check_q(q)
    error = day_cv * q / np.sqrt(days)
    steps = (np.arange(999) + 1) / 1000
    draws = np.array([q + error * student_t_quantile(float(p), days - 1) for p in steps])
    text = f"assumed: {days} days with a coefficient of variation of {day_cv:g} between days, Student t"
    return np.clip(draws, 1e-4, 1 - 1e-4), text
