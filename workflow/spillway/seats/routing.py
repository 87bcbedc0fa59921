"""Which server a turn goes to: wherever there is room, home with spill, round-robin, random, or a fixed home."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from spillway.seats.errors import SeatsError
from spillway.seats.occupancy import end_keys, start_keys
from spillway.seats.overload import check_streams
from spillway.seats.replay import Turns

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Routing = Literal["pooled", "least-loaded", "home-with-spill", "round-robin", "random", "fixed"]
ROUTINGS: dict[Routing, str] = {
    "pooled": "no routing: the servers count as one that holds the streams of all; beyond that all of them are overloaded",
    "least-loaded": "each turn to the server with the fewest busy streams",
    "home-with-spill": "each developer has a home; a turn that finds it full goes to the server with the fewest busy streams",
    "round-robin": "turns in turn",
    "random": "each turn to a random server",
    "fixed": "each developer has a home and stays there",
}


def route(turns: Turns, routing: Routing, servers: int, k: int, random: np.random.Generator) -> Integers:
    """The server of each turn, 0..servers - 1 within its team. Homes are dealt out evenly.

    Routing looks at the state in the moment that a turn starts; turns never move while they run.
    """
    check_streams(k)
    if servers < 1:
        raise SeatsError(f"servers: found {servers}; expected at least 1")
    home = turns.developer % servers
    match routing:
        case "pooled":
            return np.zeros(len(home), dtype=np.int64)
        case "fixed":
            return home
        case "random":
            return random.integers(0, servers, size=len(home))
        case "round-robin":
            order = np.argsort(start_keys(turns, turns.team), kind="stable")
            number = np.empty(len(order), dtype=np.int64)
            number[order] = np.arange(len(order))
            first = np.searchsorted(turns.team[order], np.arange(turns.teams))
            return (number - first[turns.team]) % servers
        case "least-loaded":
            return _by_state(turns, home, servers, k=0)
        case "home-with-spill":
            return _by_state(turns, home, servers, k)


def _by_state(turns: Turns, home: Integers, servers: int, k: int) -> Integers:
    """Home while it has fewer than k streams, else least loaded; event i of every team is one step for all teams together."""
    count = len(home)
    keys = np.concatenate([start_keys(turns, turns.team), end_keys(turns, turns.team)])
    order = np.argsort(keys)
    team = np.concatenate([turns.team, turns.team])[order]
    events = np.bincount(team, minlength=turns.teams)
    longest_first = np.argsort(-events, kind="stable")  # so that the teams that still have events are the first ones
    offset = (np.cumsum(events) - events)[longest_first]
    active = np.searchsorted(-events[longest_first], -np.arange(events.max(initial=0)), side="left")
    load = np.zeros((turns.teams, servers), dtype=np.int16)
    server = np.empty(count, dtype=np.int64)
    for step, teams in enumerate(active):
        event = order[offset[:teams] + step]
        arrives = event < count
        row, turn = np.flatnonzero(arrives), event[arrives]
        chosen = home[turn]
        full = load[row, chosen] >= k
        chosen[full] = load[row[full]].argmin(axis=1)
        server[turn] = chosen
        load[row, chosen] += 1
        row, turn = np.flatnonzero(~arrives), event[~arrives] - count
        load[row, server[turn]] -= 1
    return server


def away_from_home(turns: Turns, server: Integers, servers: int) -> Flags:
    """Whether each turn ran elsewhere than on its developer's home."""
    away: Flags = server != turns.developer % servers
    return away


def cold(turns: Turns, server: Integers, servers: int, homes: bool) -> Flags:
    """Whether a turn's server lacks the prefix: not the server of the developer's turn before, nor (with homes) the home.

    A home keeps what it has read; other servers are taken to have dropped it by the developer's next turn but one. The
    first turn of a developer is cold in no routing.
    """
    same_developer = np.concatenate([[False], turns.developer[1:] == turns.developer[:-1]])
    moved = same_developer & np.concatenate([[False], server[1:] != server[:-1]])
    unprepared: Flags = moved & away_from_home(turns, server, servers) if homes else moved
    return unprepared
