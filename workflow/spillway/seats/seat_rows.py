"""Rows of experiment e11_seats that follow from formulas: published and recomputed, models, assumptions, servers, money."""

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from spillway.seats import demand
from spillway.seats.case import HOURS_OF_A_WEEK, LEVELS, WORKING_DAYS, Case, published_values
from spillway.seats.cost import Prices, servers_by_home, servers_pooled
from spillway.seats.distributions import Probabilities
from spillway.seats.intervals import carried, range_of_q
from spillway.seats.overload import (
    clock_overload,
    engset_call_congestion,
    engset_time_congestion,
    erlang_b,
    erlang_c,
    experienced_overload,
    most_developers,
    slow_tokens,
)
from spillway.seats.teams import seats_for_most_teams

Row = dict[str, Any]
Model = Callable[[int], Probabilities]

RHOS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
TWO_HUMPS = (0.7, 1.3, 1.5, 0.6, 0.6, 1.3, 1.3, 0.7)
"""A day of eight hours with a lunch dip, whose busiest hour is 1.5 times the mean. An example, not a measurement."""
HALF_DAY = (1, 1, 1, 1, 0, 0, 0, 0)
FAN = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
FAN_STREAMS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
TEAMS_DRAWN, TEAM_CONFIDENCE = 2000, 0.95


def published_rows(case: Case, figures: pd.DataFrame) -> list[Row]:
    """Table seats_published: each published figure of seats and cost beside its recomputation from the published inputs."""
    values = published_values(figures)
    hours = WORKING_DAYS * case.window_hours
    k, q, prices = case.k, case.q, case.prices
    recomputed: dict[str, tuple[float, str]] = {
        "usage.generating_hours_week": (q * hours, f"q x {WORKING_DAYS} days x {case.window_hours:g} h"),
        "usage.generating_share_week": (100 * q * hours / HOURS_OF_A_WEEK, f"q x {hours:g} h / {HOURS_OF_A_WEEK:g} h"),
        "seats.one_percent": (case.clock_seats(0.01), f"largest n with P(Bin(n, q) > {k}) <= 1 %"),
        "seats.five_percent": (case.clock_seats(0.05), f"largest n with P(Bin(n, q) > {k}) <= 5 %"),
        "cost.server_month": (prices.server_month, f"hourly rent x {prices.hours_paid:g} h"),
        "cost.break_even": (prices.break_even(), "monthly rent / price of a subscription"),
    }
    for team in case.teams:
        servers = servers_pooled(team, k, LEVELS[0], lambda streams, n: clock_overload(demand.independent(n, q), streams))
        reading = f"smallest m with P(Bin({team}, q) > {k} m) <= 1 %: servers pooled"
        recomputed[f"fleet.developers_{team}_servers"] = (servers, reading)
        saving = 100 * prices.saving(team, servers)
        recomputed[f"fleet.developers_{team}_saving"] = (saving, f"1 - {servers} x monthly rent / ({team} x subscription)")
    ranges = {f"seats.{name}_percent": range_of_q(lambda q, p=level: _clock_seats(k, q, p), q)  # type: ignore[misc]
              for name, level in (("one", 0.01), ("five", 0.05))}  # fmt: skip
    rows = []
    for name, (value, reading) in recomputed.items():
        printed = Decimal(values[name])
        low, high = ranges.get(name, (None, None))
        rows.append(
            {
                "figure": name, "published": float(printed), "recomputed": float(value), "reading": reading,
                "agrees": Decimal(repr(float(value))).quantize(Decimal(1).scaleb(printed.as_tuple().exponent)) == printed,  # type: ignore[arg-type]
                "q_low_fraction": low, "q_high_fraction": high,
            }
        )  # fmt: skip
    return rows


def _clock_seats(k: int, q: float, level: float) -> int:
    return most_developers(lambda n: clock_overload(demand.independent(n, q), k), level)


def models(case: Case) -> dict[str, Model]:
    """The demand models that are compared, by name, each n -> distribution of busy streams."""
    q = case.q
    found: dict[str, Model] = {
        "independent (binomial)": lambda n: demand.independent(n, q),
        "Poisson": lambda n: demand.poisson(n, q),
        "correlated, rho 0.01": lambda n: demand.correlated(n, q, 0.01),
        "correlated, rho 0.05": lambda n: demand.correlated(n, q, 0.05),
        "day with two humps": lambda n: demand.day_profile(n, q, TWO_HUMPS),
        "all work in half of the window": lambda n: demand.day_profile(n, q, HALF_DAY),
        "10 % of busy time in 3 streams": lambda n: demand.parallel(n, subagents(q, 0.1, 3)),
    }
    if case.speed_tok_per_s is not None:
        speed = relative_speed(case)
        found["server slows down (closed)"] = lambda n: demand.closed(n, q, speed)
    return found


def subagents(q: float, share: float, streams: int) -> list[float]:
    """A developer who is busy a share q of the window, and of that a share with `streams` streams at once, else one."""
    return [1 - q, q * (1 - share), *[0.0] * (streams - 2), q * share]


def relative_speed(case: Case) -> list[float]:
    """Measured per-stream speed with 1, 2, ... busy, relative to that with k: q holds for a server at its capacity."""
    assert case.speed_tok_per_s is not None
    curve = demand.speed_curve(dict(case.speed_tok_per_s))
    return [value / demand.stream_speed(curve, case.k)[case.k - 1] for value in curve]


def overload_rows(case: Case, most: int) -> list[Row]:
    """Table seats_overload: overload of one server for 1..most developers, by model."""
    return [
        {
            "case": case.name, "model": name, "developers": n, "clock_fraction": clock_overload(model(n), case.k),
            "experienced_fraction": experienced_overload(model(n), case.k),
        }
        for name, model in models(case).items() for n in range(1, most + 1)
    ]  # fmt: skip


def model_rows(case: Case) -> list[Row]:
    """Table seats_models: seats of one server by model, criterion and level, with the overload at the published seats."""
    k, q = case.k, case.q
    criteria: dict[tuple[str, str], Callable[[int], float]] = {}
    for name, model in models(case).items():
        criteria[name, "clock time"] = lambda n, m=model: clock_overload(m(n), k)  # type: ignore[misc]
        criteria[name, "experienced"] = lambda n, m=model: experienced_overload(m(n), k)  # type: ignore[misc]
    if case.speed_tok_per_s is not None:
        speed = relative_speed(case)
        criteria["server slows down (closed)", "tokens"] = lambda n: slow_tokens(demand.closed(n, q, speed), k, speed)
    criteria["day with two humps", "busiest hour"] = lambda n: clock_overload(demand.busiest_part(n, q, TWO_HUMPS), k)
    criteria["loss, finite sources (Engset)", "clock time"] = lambda n: engset_time_congestion(k, n, q)
    criteria["loss, finite sources (Engset)", "attempts"] = lambda n: engset_call_congestion(k, n, q)
    criteria["loss, Poisson arrivals (Erlang B)", "attempts"] = lambda n: erlang_b(k, n * q)
    criteria["waiting, Poisson arrivals (Erlang C)", "attempts"] = lambda n: erlang_c(k, n * q)
    reference = case.clock_seats(LEVELS[0])
    return [
        {
            "case": case.name, "model": name, "criterion": criterion, "level_fraction": level,
            "seats": most_developers(overload, level),
            "reference_developers": reference, "reference_fraction": overload(reference),
        }
        for (name, criterion), overload in criteria.items() for level in LEVELS
    ]  # fmt: skip


def correlation_rows(case: Case) -> list[Row]:
    """Table seats_correlation: seats by intra-class correlation, with the break-even that they must reach."""
    return [
        {
            "case": case.name, "rho": rho, "criterion": name, "level_fraction": level,
            "seats": most_developers(lambda n, r=rho, c=criterion: c(demand.correlated(n, case.q, r), case.k), level),  # type: ignore[misc]
            "break_even_developers": case.prices.break_even(),
        }
        for rho in RHOS for name, criterion in (("clock time", clock_overload), ("experienced", experienced_overload))
        for level in LEVELS
    ]  # fmt: skip


def assumption_rows(case: Case, seed: int) -> list[Row]:
    """Table seats_assumptions: seats at 1 % of clock time when one assumption is changed and the others stay (tornado)."""
    k, q, level = case.k, case.q, LEVELS[0]
    base = case.clock_seats(level)

    def clock(model: Model, streams: int = k, at: float = level) -> int:
        return most_developers(lambda n: clock_overload(model(n), streams), at)

    def of_q(value: float) -> int:
        return _clock_seats(k, value, level)

    changes: list[tuple[str, str, int]] = [
        ("criterion", "1 % of stream time, not of clock time", case.experienced_seats(level)),
        ("level", "0.1 % of the time", clock(lambda n: demand.independent(n, q), at=0.001)),
        ("level", "5 % of the time", clock(lambda n: demand.independent(n, q), at=0.05)),
        ("streams at the floor", f"{k + 1}", clock(lambda n: demand.independent(n, q), streams=k + 1)),
        ("correlation", "rho 0.01", clock(lambda n: demand.correlated(n, q, 0.01))),
        ("correlation", "rho 0.05", clock(lambda n: demand.correlated(n, q, 0.05))),
        ("common day", "two humps", clock(lambda n: demand.day_profile(n, q, TWO_HUMPS))),
        ("common day", "two humps, busiest hour", clock(lambda n: demand.busiest_part(n, q, TWO_HUMPS))),
        ("common day", "all work in half of the window", clock(lambda n: demand.day_profile(n, q, HALF_DAY))),
        ("parallel streams", "5 % of busy time in 3 streams", clock(lambda n: demand.parallel(n, subagents(q, 0.05, 3)))),
        ("parallel streams", "20 % of busy time in 3 streams", clock(lambda n: demand.parallel(n, subagents(q, 0.2, 3)))),
        ("speed", "generation takes 0.75 times as long", of_q(demand.rescaled_q(q, 0.75))),
        ("speed", "generation takes 1.5 times as long", of_q(demand.rescaled_q(q, 1.5))),
        ("developers differ", "95 % of teams within the level (CV 0.5)",
         seats_for_most_teams(k, q, 0.5, level, TEAM_CONFIDENCE, TEAMS_DRAWN, seed)),
    ]  # fmt: skip
    if k > 1:
        changes.append(("streams at the floor", f"{k - 1}", clock(lambda n: demand.independent(n, q), streams=k - 1)))
    if case.q_draws is not None:
        low, high = np.quantile(case.q_draws, [0.025, 0.975])
        changes += [("95 % interval of q", f"{value:.1%}", of_q(float(value))) for value in (low, high)]
    if case.speed_tok_per_s is not None:
        speed = relative_speed(case)
        changes.append(("speed", "as measured, by streams busy (closed)", clock(lambda n: demand.closed(n, q, speed))))
    return [
        {"case": case.name, "assumption": assumption, "setting": setting, "seats": seats, "base_seats": base,
         "break_even_developers": case.prices.break_even()}
        for assumption, setting, seats in changes
    ]  # fmt: skip


def server_rows(case: Case) -> list[Row]:
    """Table seats_servers: servers, bill and saving by team size under each reading of "enough" that a formula covers."""
    k, q, level = case.k, case.q, LEVELS[0]
    pooled: dict[str, Callable[[int, int], float]] = {
        "pooled, 1 % of clock time": lambda streams, n: clock_overload(demand.independent(n, q), streams),
        "pooled, 1 % of experienced time": lambda streams, n: experienced_overload(demand.independent(n, q), streams),
        "pooled, busiest hour of two humps": lambda streams, n: clock_overload(demand.busiest_part(n, q, TWO_HUMPS), streams),
        "pooled, rho 0.01": lambda streams, n: clock_overload(demand.correlated(n, q, 0.01), streams),
        "pooled, rho 0.05": lambda streams, n: clock_overload(demand.correlated(n, q, 0.05), streams),
    }
    homes = {
        "fixed home, seats by clock time": case.clock_seats(level),
        "fixed home, seats by experienced time": case.experienced_seats(level),
    }
    rows: list[Row] = []
    for team in case.teams:
        counts = {name: servers_pooled(team, k, level, overload) for name, overload in pooled.items()}
        counts |= {name: servers_by_home(team, seats) for name, seats in homes.items() if seats > 0}
        rows += [server_row(case, team, name, servers) for name, servers in counts.items()]
    return rows


def server_row(case: Case, team: int, reading: str, servers: int) -> Row:
    """One row of seats_servers."""
    return {
        "case": case.name, "developers": team, "reading": reading, "servers": servers,
        "servers_paid": servers + case.prices.spare_servers, "bill_month": case.prices.fleet_month(servers),
        "currency": case.currency, "saving_fraction": case.prices.saving(team, servers),
    }  # fmt: skip


def cost_rows(case: Case) -> list[Row]:
    """Table seats_cost: break-even of one server and savings when hours paid, spare servers or operations change.

    Operations are given in subscriptions' worth, so that the rows hold in any currency.
    """
    prices, k, q = case.prices, case.k, case.q
    settings = {
        f"{prices.hours_paid:g} h paid": prices,
        "220 h paid": Prices(prices.server_hour, prices.subscription_month, 220.0),
        "176 h paid (22 days x 8 h)": Prices(prices.server_hour, prices.subscription_month, 176.0),
        "one spare server": Prices(prices.server_hour, prices.subscription_month, prices.hours_paid, spare_servers=1),
        "operations worth 10 subscriptions": Prices(
            prices.server_hour, prices.subscription_month, prices.hours_paid, operations_month=10 * prices.subscription_month
        ),
    }
    rows: list[Row] = []
    for team in case.teams:
        servers = servers_pooled(team, k, LEVELS[0], lambda streams, n: clock_overload(demand.independent(n, q), streams))
        rows += [
            {
                "case": case.name, "setting": name, "developers": team, "servers": servers + changed.spare_servers,
                "break_even_developers": changed.break_even(), "saving_fraction": changed.saving(team, servers),
                "clock_seats": case.clock_seats(LEVELS[0]), "experienced_seats": case.experienced_seats(LEVELS[0]),
            }
            for name, changed in settings.items()
        ]  # fmt: skip
    return rows


def fan_rows(case: Case) -> list[Row]:
    """Table seats_fan: seats by streams of the server for quantiles of q; none if nothing is known about how sure q is."""
    if case.q_draws is None:
        return []
    rows: list[Row] = []
    for quantile in FAN:
        q = float(np.quantile(case.q_draws, 1 - quantile))  # a high q gives few seats
        for k in FAN_STREAMS:
            at = replace(case, q=q, k=k)
            rows.append(
                {"case": case.name, "q_from": case.q_draws_from, "quantile": quantile, "q_fraction": q, "streams": k,
                 "clock_seats": at.clock_seats(LEVELS[0]), "experienced_seats": at.experienced_seats(LEVELS[0])}
            )  # fmt: skip
    return rows


def interval_rows(case: Case) -> list[Row]:
    """Table seats_interval: 95 % intervals of seats, servers and savings that follow from the draws of q."""
    if case.q_draws is None:
        return []
    k, level, prices = case.k, LEVELS[0], case.prices

    def servers(team: int) -> Callable[[float], float]:
        return lambda q: servers_pooled(team, k, level, lambda streams, n: clock_overload(demand.independent(n, q), streams))

    quantities: dict[str, Callable[[float], float]] = {
        "q": lambda q: q,
        "clock seats at 1 %": lambda q: _clock_seats(k, q, level),
        "experienced seats at 1 %": lambda q: most_developers(
            lambda n: experienced_overload(demand.independent(n, q), k), level
        ),
    }
    for team in case.teams:
        quantities[f"servers for {team}"] = servers(team)
        quantities[f"saving for {team}"] = lambda q, t=team: prices.saving(t, int(servers(t)(q)))  # type: ignore[misc]
    rows = []
    for name, of_q in quantities.items():
        low, middle, high = np.quantile(carried(case.q_draws, of_q), [0.025, 0.5, 0.975], method="inverted_cdf")
        rows.append(
            {"case": case.name, "q_from": case.q_draws_from, "quantity": name, "value": float(of_q(case.q)), "low": float(low),
             "median": float(middle), "high": float(high)}
        )  # fmt: skip
    return rows


def most_shown(case: Case) -> int:
    """Developers up to which overload is worth drawing: half more than the seats at 5 %."""
    return math.ceil(1.5 * case.clock_seats(LEVELS[1]))
