"""`spillway seats`: how many developers one server carries, how many servers a team needs, and what it costs.

Exit status 0: an answer. 2: the question is wrong, and the message says what to change.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveFloat, ValidationError

from spillway.record.parquet import RecordError, read
from spillway.seats.activity import activity, as_trace
from spillway.seats.activity_rows import DRAWS
from spillway.seats.case import HOURS_OF_A_MONTH, Case, measured_speeds, published_case
from spillway.seats.cost import Prices
from spillway.seats.errors import SeatsError
from spillway.seats.experiments import seat_tables
from spillway.seats.intervals import bootstrap_q
from spillway.seats.logs import default_workers, read_logs
from spillway.seats.seats_report import text_of
from spillway.seats.trace import read_trace
from spillway.seats.usage_command import PROFILE
from spillway.spec.json_text import parse_json
from spillway.spec.shown import shown
from spillway.spec.workload import seed_option

LONGEST_CALL_S = 600.0


def main(argv: list[str]) -> int:
    """Run the command; prints the answer, or one message on standard error with status 2."""
    options = _parser().parse_args(argv)
    try:
        figures = read(options.published) if options.published else None
        profile = _profile(options.profile) if options.profile else None
        case = case_of(options, figures, profile)
        trace = _trace(options.replay, options.workers) if options.replay else None
        shown = figures if case.name == "published" else None
        tables = seat_tables(case, shown, trace, options.seed, options.workers)
    except (SeatsError, RecordError) as error:
        print(f"spillway seats: {error}", file=sys.stderr)
        return 2
    own_streams = profile["own_streams"] if profile else None
    print(json.dumps(tables, indent=1) if options.json else text_of(case, tables, own_streams))
    return 0


class _Day(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False, strict=True)
    developer: int
    day: str
    stream_s: NonNegativeFloat
    window_s: PositiveFloat


class _UsedOfProfile(BaseModel):
    """What of a profile this command uses."""

    model_config = ConfigDict(allow_inf_nan=False, strict=True)
    q: float
    days: list[_Day]
    own_streams: list[NonNegativeFloat] | None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spillway seats",
        description="Seats of one server, servers of a team, and their cost. Give --published for the article's case, or your "
        "own values; what is given here replaces what --published says.",
    )
    parser.add_argument("--published", type=Path, help="published figures, data/published/figures.csv")
    parser.add_argument("--profile", type=Path, help="profile that `spillway usage --out` wrote: q and its interval")
    parser.add_argument("--q", type=float, help="share of the working window in which a developer's stream is busy")
    parser.add_argument("--streams", type=int, help="streams that one server holds at the floor")
    parser.add_argument("--server-hour", type=float, help="rent of one server for an hour")
    parser.add_argument("--subscription", type=float, help="price of one subscription for a month")
    parser.add_argument("--currency", default="EUR", help="of both prices; default EUR")
    parser.add_argument("--hours-paid", type=float, default=HOURS_OF_A_MONTH, help="hours a month; default 730, day and night")
    parser.add_argument("--spare", type=int, default=0, help="servers rented for failures; default 0")
    parser.add_argument(
        "--operations", type=float, default=0.0, help="work on the fleet for a month, in the currency; default 0"
    )
    parser.add_argument("--developers", type=_sizes, help="team sizes, such as 100,250")
    parser.add_argument("--speeds", type=_speeds, help="token/s of one stream by streams busy, such as 1:186,2:95,4:59")
    parser.add_argument("--requests", type=Path, help="requests table of e13_agents, from which the speeds are taken instead")
    parser.add_argument("--prefill", type=float, help="token/s at which the server reads a prompt")
    parser.add_argument("--kv-cache", type=float, help="tokens that the server's KV cache holds")
    parser.add_argument(
        "--window-hours", type=float, default=8.0, help="hours of a working day that q is a share of; default 8"
    )
    parser.add_argument("--replay", type=Path, help="trace (.parquet) or logs whose turns are replayed through the routings")
    parser.add_argument("--seed", type=seed_option, default=1, help="of draws and replays")
    parser.add_argument("--workers", type=int, default=default_workers(), help="processes; default: all processors")
    parser.add_argument("--json", action="store_true", help="print every table as JSON")
    return parser


def case_of(options: argparse.Namespace, figures: pd.DataFrame | None, profile: dict[str, Any] | None) -> Case:
    """The case that parsed options describe; raises SeatsError naming what is missing or given twice."""
    if profile is not None and options.q is not None:
        raise SeatsError("--q: found beside --profile; expected one of the two")
    if options.requests is not None and options.speeds is not None:
        raise SeatsError("--speeds: found beside --requests; expected one of the two")
    draws, draws_from = _draws(profile, options.seed)
    base = published_case(figures, None, None) if figures is not None else None
    given = {
        "q": profile["q"] if profile is not None else options.q,
        "k": options.streams,
        "teams": options.developers,
        "speed_tok_per_s": measured_speeds(read(options.requests)) if options.requests else options.speeds,
        "prefill_tok_per_s": options.prefill,
        "kv_cache_tokens": options.kv_cache,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if base is not None:
        server_hour, subscription = base.prices.server_hour, base.prices.subscription_month
    else:
        server_hour, subscription = options.server_hour, options.subscription
        wanted = {"--q or --profile": "q", "--streams": "k", "--developers": "teams"}
        missing = [option for option, name in wanted.items() if name not in given]
        missing += [
            option for option, value in (("--server-hour", server_hour), ("--subscription", subscription)) if value is None
        ]
        if missing:
            raise SeatsError(f"found nothing for {', '.join(missing)}; expected a value for each, or --published")
    prices = Prices(
        options.server_hour if options.server_hour is not None else server_hour,
        options.subscription if options.subscription is not None else subscription,
        options.hours_paid, options.spare, options.operations,
    )  # fmt: skip
    if base is None:
        return Case(
            name="own", window_hours=options.window_hours, prices=prices, currency=options.currency, q_draws=draws,
            q_draws_from=draws_from, **given,
        )  # fmt: skip
    own = bool(given) or prices != base.prices
    name = "own" if own else base.name
    return replace(base, name=name, prices=prices, q_draws=draws, q_draws_from=draws_from, **given)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected whole numbers, such as 100,250") from None
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected at least 1 developer in each team")
    return sizes


def _speeds(text: str) -> dict[int, float]:
    try:
        return {int(streams): float(speed) for streams, speed in (part.split(":") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected streams:token/s, such as 1:186,2:95,4:59") from None


def _profile(path: Path) -> dict[str, Any]:
    try:
        profile = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise SeatsError(f"{path}: no such profile; make one with `spillway usage LOGS --out {path}`") from None
    except (OSError, ValueError) as error:
        raise SeatsError(f"{path}: cannot be read: {error}") from None
    if not isinstance(profile, dict) or profile.get("what") != PROFILE:
        raise SeatsError(
            f"{path}: found another file than a profile ({PROFILE}); make one with `spillway usage LOGS --out FILE`"
        )
    try:
        _UsedOfProfile.model_validate(profile)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        raise SeatsError(f"{path}: {key}: found {shown(fault['input'])}; expected: {fault['msg']}") from None
    return profile


def _draws(profile: dict[str, Any] | None, seed: int) -> tuple[NDArray[np.float64] | None, str | None]:
    """Plausible values of q from the days of a profile; None for fewer than two days."""
    if profile is None or len(profile["days"]) < 2:
        return None, None
    days = pd.DataFrame(profile["days"])
    return bootstrap_q(days, DRAWS, seed), f"bootstrap over {len(days)} days of {days['developer'].nunique()} developer(s)"


def _trace(path: Path, workers: int) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return read_trace(path)
    return as_trace(activity([read_logs(path, None, workers)], LONGEST_CALL_S))
