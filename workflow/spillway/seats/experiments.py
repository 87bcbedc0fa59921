"""All rows of the experiments e10_activity and e11_seats, by the name of their table in `record.tables`."""

from typing import Any

import pandas as pd

from spillway.seats import activity_rows, seat_rows, simulated_rows
from spillway.seats.activity_rows import Logs
from spillway.seats.case import LEVELS, Case
from spillway.seats.cost import servers_pooled
from spillway.seats.demand import independent
from spillway.seats.overload import clock_overload
from spillway.seats.replay import ring

Tables = dict[str, list[dict[str, Any]]]


def activity_tables(case: Case, figures: pd.DataFrame, trace: pd.DataFrame | None, logs: Logs | None, seed: int) -> Tables:
    """e10_activity: how busy a developer's stream is, as published, in a trace and in logs, as far as there are any."""
    tables: Tables = {"activity_profile": activity_rows.profile_rows(case, figures, trace, logs, seed)}
    if trace is not None or logs is not None:
        tables["activity_concurrency"] = activity_rows.concurrency_rows(trace, logs)
        tables["activity_turns"] = activity_rows.turn_rows(trace, logs)
    if logs is not None:
        tables["activity_hours"] = activity_rows.hour_rows(logs)
        tables["activity_days"] = activity_rows.day_rows(logs)
        tables["activity_flags"] = activity_rows.flag_rows(logs)
    return tables


def seat_tables(case: Case, figures: pd.DataFrame | None, trace: pd.DataFrame | None, seed: int, workers: int = 1) -> Tables:
    """e11_seats: seats, servers and money of one case; with `figures` the published ones beside it, with a trace replays."""
    tables: Tables = {
        "seats_overload": seat_rows.overload_rows(case, seat_rows.most_shown(case)),
        "seats_models": seat_rows.model_rows(case),
        "seats_correlation": seat_rows.correlation_rows(case),
        "seats_assumptions": seat_rows.assumption_rows(case, seed),
        "seats_servers": seat_rows.server_rows(case),
        "seats_cost": seat_rows.cost_rows(case),
    }
    if figures is not None:
        tables["seats_published"] = seat_rows.published_rows(case, figures)
    if case.q_draws is not None:
        tables["seats_fan"] = seat_rows.fan_rows(case)
        tables["seats_interval"] = seat_rows.interval_rows(case)
    if trace is not None:
        replayed = ring(trace, case.q, seed)
        outcomes = simulated_rows.episodes(case, replayed, seed, workers)
        tables["seats_episodes"] = simulated_rows.episode_rows(case, outcomes)
        tables["seats_episode_lengths"] = simulated_rows.episode_length_rows(case, outcomes)
        tables["seats_routing"] = simulated_rows.routing_rows(case, replayed, pooled_servers(case), seed, workers)
        tables["seats_servers"] += simulated_rows.routed_server_rows(case, replayed, seed, workers)
        if case.kv_cache_tokens is not None:
            tables["seats_residency"] = simulated_rows.residency_rows(case, trace, seed)
    return tables


def pooled_servers(case: Case) -> dict[int, int]:
    """Servers of each team if they are pooled and 1 % of clock time may be overload."""

    def overload(streams: int, developers: int) -> float:
        return clock_overload(independent(developers, case.q), streams)

    return {team: servers_pooled(team, case.k, LEVELS[0], overload) for team in case.teams}
