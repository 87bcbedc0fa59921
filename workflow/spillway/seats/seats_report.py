"""The answer of `spillway seats` for a terminal."""

from collections.abc import Callable
from typing import Any

from spillway.seats.case import LEVELS, Case
from spillway.seats.demand import parallel
from spillway.seats.experiments import Tables
from spillway.seats.overload import clock_overload, most_developers

Row = dict[str, Any]


def text_of(case: Case, tables: Tables, own_streams: list[float] | None) -> str:
    """Both seat counts beside the break-even, then every table that there is; own_streams: of a profile, if it has them."""
    clock = case.clock_seats(LEVELS[0])
    lines = _seats(case)
    if own_streams is not None:
        seats = most_developers(lambda n: clock_overload(parallel(n, own_streams), case.k), LEVELS[0])
        lines.append(f"with the parallel streams of the profile: {seats} at 1 % of clock time")
    sections: list[tuple[str, str, Callable[[Row], str]]] = [
        ("published and recomputed", "seats_published", _published),
        (f"95 % intervals; q from: {case.q_draws_from}", "seats_interval", _interval),
        ("servers and saving", "seats_servers", _servers),
        ("cost settings", "seats_cost", _cost),
        (f"seats when one assumption changes (from {clock})", "seats_assumptions", _assumption),
        ("replayed: overload of one server", "seats_episodes", _episodes),
        ("replayed: routing", "seats_routing", _routing),
        ("KV cache", "seats_residency", _residency),
    ]
    for title, table, line in sections:
        if tables.get(table):
            lines += ["", title, *(f"  {line(row)}" for row in tables[table])]
    return "\n".join(lines)


def _seats(case: Case) -> list[str]:
    break_even = case.prices.break_even()
    clock, experienced = (seats(LEVELS[0]) for seats in (case.clock_seats, case.experienced_seats))
    pays = "does not pay"
    if clock >= break_even:
        pays = "pays under both" if experienced >= break_even else "pays by clock time only"
    return [
        f"q = {case.q:.2%}, {case.k} streams at the floor, one server {case.prices.server_month:,.2f} {case.currency} a month",
        f"seats of one server: {clock} at 1 % of clock time ({case.clock_seats(LEVELS[1])} at 5 %)",
        f"                     {experienced} at 1 % of generated stream time ({case.experienced_seats(LEVELS[1])} at 5 %)",
        f"break-even: {break_even:.1f} subscriptions; a full server alone {pays}",
    ]


def _published(row: Row) -> str:
    verdict = "agrees" if row["agrees"] else "DIFFERS"
    return f"{row['figure']:<30} {row['published']:>9g} {row['recomputed']:>11.4f}  {verdict}  {row['reading']}"


def _interval(row: Row) -> str:
    return f"{row['quantity']:<26} {row['value']:>8.4g}  [{row['low']:.4g}, {row['high']:.4g}]"


def _servers(row: Row) -> str:
    team = f"{row['developers']:>6} developers, {row['reading']:<58}"
    return f"{team} {row['servers']:>4} servers  {row['saving_fraction']:>6.1%}"


def _cost(row: Row) -> str:
    team = f"{row['developers']:>6} developers, {row['setting']:<34}"
    return f"{team} break-even {row['break_even_developers']:>6.1f}, saving {row['saving_fraction']:>6.1%}"


def _assumption(row: Row) -> str:
    return f"{row['seats']:>4}  {row['assumption']}: {row['setting']}"


def _episodes(row: Row) -> str:
    overload = (
        f"clock {row['clock_fraction']:.2%} (formula {row['clock_exact_fraction']:.2%}), "
        f"experienced {row['experienced_fraction']:.2%} ({row['experienced_exact_fraction']:.2%})"
    )
    lengths = f"mean {_seconds(row['episode_mean_s'])}, p95 {_seconds(row['episode_p95_s'])}"
    return f"{row['developers']:>4} developers: {overload}, {row['episodes_per_window']:.0f} episodes a window, {lengths}"


def _routing(row: Row) -> str:
    team = f"{row['developers']:>4} on {row['servers']:<3} {row['routing']:<16}"
    overload, cold = row["experienced_fraction"], row["cold_fraction"]
    return f"{team} overloaded {overload:>6.2%} of stream time, cold prefix {cold:>6.1%} of turns"


def _residency(row: Row) -> str:
    contexts = f"{row['resident_developers']} contexts stay with probability {1 - row['level_fraction']:.0%}"
    tighter = "the KV cache" if row["resident_developers"] < row["clock_seats"] else "the streams"
    return f"{contexts}, seats by streams {row['clock_seats']}: {tighter} first; {row['mean_contexts']:.1f} mean contexts fit"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f} s"
