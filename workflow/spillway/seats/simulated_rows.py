"""Rows of experiment e11_seats that need a replay of recorded sessions: routing, episodes, KV cache."""

import math
from typing import Any

import numpy as np
import pandas as pd

from spillway.seats import demand
from spillway.seats.case import LEVELS, Case
from spillway.seats.overload import clock_overload, experienced_overload, fewest_servers
from spillway.seats.replay import Ring
from spillway.seats.residency import contexts_that_fit, mean_contexts
from spillway.seats.routing import ROUTINGS, Routing
from spillway.seats.seat_rows import server_row
from spillway.seats.simulation import LENGTH_EDGES_S, Outcome, Setting, simulate

Row = dict[str, Any]
EPISODE_WINDOWS = 200
ROUTING_WINDOWS = 40
SEARCH_WINDOWS = 10
RESIDENCY_DRAWS = 4000
SEARCHED: tuple[Routing, ...] = ("home-with-spill", "round-robin", "fixed")


def episodes(case: Case, ring: Ring, seed: int, workers: int = 1) -> dict[int, Outcome]:
    """One server, replayed with as many developers as the seat counts are about: outcome by number of developers."""
    speed = demand.speed_curve(dict(case.speed_tok_per_s)) if case.speed_tok_per_s else None
    window_s = case.window_hours * 3600
    sizes = sorted({seats(level) for seats in (case.clock_seats, case.experienced_seats) for level in LEVELS} - {0})
    return {
        n: simulate(ring, Setting(n, 1, case.k, "pooled", window_s, speed=speed), EPISODE_WINDOWS, seed, workers) for n in sizes
    }


def episode_rows(case: Case, outcomes: dict[int, Outcome]) -> list[Row]:
    """Table seats_episodes: what the share of time looks like: how often, how long, what turns notice; beside the formula."""
    rows: list[Row] = []
    for n, outcome in outcomes.items():
        exact = demand.independent(n, case.q)
        count = int(outcome.episodes.sum())
        rows.append(
            {
                "case": case.name, "developers": n, "windows": outcome.windows, "q_fraction": outcome.q,
                "clock_fraction": clock_overload(outcome.busy, case.k), "clock_exact_fraction": clock_overload(exact, case.k),
                "experienced_fraction": experienced_overload(outcome.busy, case.k),
                "experienced_exact_fraction": experienced_overload(exact, case.k),
                "episodes_per_window": count / outcome.windows, "episode_mean_s": outcome.episode_s / count if count else None,
                "episode_median_s": outcome.episode_quantile_s(0.5), "episode_p95_s": outcome.episode_quantile_s(0.95),
                "turns_per_developer_window": outcome.turns / outcome.windows / n,
                "arrives_full_fraction": outcome.arrives_full / outcome.turns if case.speed_tok_per_s else None,
                "touched_fraction": outcome.touched / outcome.turns if case.speed_tok_per_s else None,
                "lost_s_per_turn": outcome.lost_s / outcome.turns if case.speed_tok_per_s else None,
            }
        )  # fmt: skip
    return rows


def episode_length_rows(case: Case, outcomes: dict[int, Outcome]) -> list[Row]:
    """Table seats_episode_lengths: share of overload episodes that last at most so long."""
    rows: list[Row] = []
    for n, outcome in outcomes.items():
        share = np.cumsum(outcome.episodes) / max(1, outcome.episodes.sum())
        for length_s in np.geomspace(0.1, 100, 61):
            bin_ = int(np.searchsorted(LENGTH_EDGES_S[1:], length_s))
            edge_s = float(LENGTH_EDGES_S[1:][bin_])
            rows.append({"case": case.name, "developers": n, "length_s": edge_s, "cumulative_fraction": float(share[bin_])})
    return rows


def routing_rows(case: Case, ring: Ring, servers: dict[int, int], seed: int, workers: int = 1) -> list[Row]:
    """Table seats_routing: overload and cold prefixes of each routing, for teams (keys) on so many servers (values)."""
    rows: list[Row] = []
    for team, count in servers.items():
        for routing in ROUTINGS:
            setting = Setting(team, count, case.k, routing, case.window_hours * 3600)
            outcome = simulate(ring, setting, ROUTING_WINDOWS, seed, workers)
            reread = outcome.cold_tokens / outcome.turns
            reread_s = reread / case.prefill_tok_per_s if case.prefill_tok_per_s else None
            homes = routing in ("home-with-spill", "fixed")
            q_with = case.q + reread_s * outcome.turns / outcome.developer_s if reread_s is not None else None
            rows.append(
                {
                    "case": case.name, "developers": team, "servers": count, "routing": routing, "windows": ROUTING_WINDOWS,
                    "clock_fraction": clock_overload(outcome.busy, setting.limit),
                    "experienced_fraction": experienced_overload(outcome.busy, setting.limit),
                    "away_fraction": outcome.away / outcome.turns if homes else None,
                    "cold_fraction": outcome.cold / outcome.turns, "reread_tokens_per_turn": reread,
                    "reread_s_per_turn": reread_s, "q_with_reread_fraction": q_with,
                }
            )  # fmt: skip
    return rows


def routed_server_rows(case: Case, ring: Ring, seed: int, workers: int = 1) -> list[Row]:
    """Further rows of table seats_servers: fewest servers at 1 % of experienced time, found by simulating each routing."""
    rows: list[Row] = []
    for team in case.teams:
        for routing in SEARCHED:

            def overload(servers: int, team: int = team, routing: Routing = routing) -> float:
                setting = Setting(team, servers, case.k, routing, case.window_hours * 3600)
                return experienced_overload(simulate(ring, setting, SEARCH_WINDOWS, seed, workers).busy, case.k)

            servers = fewest_servers(overload, LEVELS[0], most=math.ceil(team / case.k))
            rows.append(server_row(case, team, f"{routing}, 1 % of experienced time (simulated)", servers))
    return rows


def residency_rows(case: Case, trace: pd.DataFrame, seed: int) -> list[Row]:
    """Table seats_residency: how many contexts the KV cache keeps, beside the seats by streams; none without its size."""
    if case.kv_cache_tokens is None:
        return []
    contexts = trace["context_tokens"].to_numpy(np.int64)
    contexts = contexts[contexts > 0]
    return [
        {
            "case": case.name, "kv_cache_tokens": int(case.kv_cache_tokens), "context_mean_tokens": float(contexts.mean()),
            "mean_contexts": mean_contexts(case.kv_cache_tokens, contexts), "level_fraction": level,
            "resident_developers": contexts_that_fit(case.kv_cache_tokens, contexts, level, RESIDENCY_DRAWS, seed),
            "clock_seats": case.clock_seats(level), "experienced_seats": case.experienced_seats(level),
        }
        for level in LEVELS
    ]  # fmt: skip
