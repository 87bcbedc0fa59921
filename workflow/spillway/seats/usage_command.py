"""`spillway usage LOGS...`: how busy one developer's coding agent is, from its logs. Each argument is one developer.

Only counts and times leave the logs. Exit status 0: a profile was made. 2: it could not be, and the message says why.
"""

import argparse
import json
import os
import sys
import time
from datetime import date, datetime
from pathlib import Path
from typing import Any

from spillway.seats import activity_rows as rows
from spillway.seats.activity import (
    DEFAULT_RULE,
    WINDOW_RULES,
    Activity,
    Window,
    activity,
    between,
    days,
    own_streams,
    q_of,
    warnings,
    zone_of,
)
from spillway.seats.calls import FLAGS
from spillway.seats.errors import SeatsError
from spillway.seats.logs import FORMATS, default_workers, read_logs
from spillway.seats.trace import read_trace
from spillway.spec.workload import seed_option

PROFILE = "spillway usage profile 1"
"""First field of a profile file: what it is, and the version of its layout."""


def main(argv: list[str]) -> int:
    """Run the command; prints the profile, or one message on standard error with status 2."""
    options = _parser().parse_args(argv)
    try:
        if options.logs[0].suffix == ".parquet":
            profile = trace_profile(options.logs, options.seed)
        else:
            profile = log_profile(options, time.time())
    except SeatsError as error:
        print(f"spillway usage: {error}", file=sys.stderr)
        return 2
    print(text_of(profile))
    for said in profile["warnings"]:
        print(f"spillway usage: {said}", file=sys.stderr)
    if options.out:
        options.out.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spillway usage",
        description="How busy one developer's coding agent is. Reads logs of Claude Code, Codex, OpenTelemetry events, CSV, or "
        "a Parquet trace. No text of a log is kept, printed or written.",
    )
    parser.add_argument("logs", nargs="+", type=Path, help="folder or file, one for each developer")
    parser.add_argument("--zone", help="time zone of the developers, such as Europe/Berlin; default: that of this machine")
    windows = "; ".join(f"{name}: {what}" for name, what in WINDOW_RULES.items())
    parser.add_argument(
        "--window", choices=list(WINDOW_RULES), default=DEFAULT_RULE, help=f"{windows}. Default: {DEFAULT_RULE}"
    )
    parser.add_argument("--hours", type=float, default=8.0, help="length of the window; default 8")
    parser.add_argument("--opens", default="09:00", help="start of the fixed window, local time; default 09:00")
    parser.add_argument("--days", choices=["active", "weekdays"], default="active", help="days that count; default: active")
    parser.add_argument("--since", help="first day, as 2026-03-02")
    parser.add_argument("--until", help="last day")
    parser.add_argument("--format", choices=FORMATS, help="read only logs of this kind")
    parser.add_argument("--longest", type=float, default=600.0, help="seconds that a response is believed to last; default 600")
    parser.add_argument("--workers", type=int, default=default_workers(), help="processes that read; default: all processors")
    parser.add_argument("--seed", type=seed_option, default=1, help="of the bootstrap")
    parser.add_argument("--out", type=Path, help="write the profile as JSON, for `spillway seats --profile`")
    return parser


def log_profile(options: argparse.Namespace, now_s: float) -> dict[str, Any]:
    """The profile of the logs in parsed options; raises SeatsError."""
    zone = zone_of(options.zone or _machine_zone())
    try:
        opens = datetime.strptime(options.opens, "%H:%M").time()
    except ValueError:
        raise SeatsError(f"--opens: found {options.opens!r}; expected an hour and minute, such as 09:00") from None
    window = Window(options.window, options.hours, opens, options.days)
    since, until = (_day(getattr(options, name), name) for name in ("since", "until"))
    whole = activity([read_logs(path, options.format, options.workers) for path in options.logs], options.longest)
    found = between(whole, since, until, zone)
    said = warnings(found, zone, since, now_s)
    logs = rows.Logs(found, window, zone)
    by_day = days(found, window, zone)
    interval = rows.q_interval(by_day, options.seed)
    if interval is None:
        said.append("q has no interval: one day says nothing about how days differ")
    if q_of(by_day) == 0:
        said.append("no response lies in the window: choose another rule or other hours")
    return {
        "what": PROFILE,
        "zone": zone.key,
        "rule": str(window),
        "hours": window.hours,
        "q": q_of(by_day),
        "interval": vars(interval) if interval else None,
        "rules": _all_rules(found, window, logs),
        "profile": rows.profile_row(logs, options.seed),
        "own_streams": _own_streams(logs),
        "days": rows.day_rows(logs),
        "hours_of_day": rows.hour_rows(logs),
        "concurrency": rows.concurrency_rows(None, logs),
        "turns": rows.turn_rows(None, logs),
        "flags": {flag: found.flags[flag] for flag in FLAGS},
        "warnings": said,
    }


def trace_profile(paths: list[Path], seed: int) -> dict[str, Any]:
    """The profile of a trace without a calendar; raises SeatsError for more than one file."""
    if len(paths) > 1:
        raise SeatsError(f"logs: found {len(paths)} arguments, the first a Parquet trace; expected the trace alone")
    trace = read_trace(paths[0])
    caps = [rows.trace_row(trace, cap, seed) for cap in rows.IDLE_CAPS_S]
    whole = caps[-1]
    interval = {"low": whole["q_low_fraction"], "high": whole["q_high_fraction"], "confidence": rows.CONFIDENCE,
                "method": whole["interval"]} if whole["interval"] else None  # fmt: skip
    return {
        "what": PROFILE,
        "zone": None,
        "rule": whole["rule"],
        "hours": None,
        "q": whole["q_fraction"],
        "interval": interval,
        "rules": [{"rule": row["rule"], "q": row["q_fraction"]} for row in caps],
        "profile": whole,
        "own_streams": None,
        "days": [],
        "hours_of_day": [],
        "concurrency": rows.concurrency_rows(trace, None),
        "turns": rows.turn_rows(trace, None),
        "flags": {},
        "warnings": ["a trace has no calendar: q is a share of time within sessions, and depends on how idle time is cut"],
    }  # fmt: skip


def text_of(profile: dict[str, Any]) -> str:
    """The profile for a terminal."""
    row, interval = profile["profile"], profile["interval"]
    lines = [
        f"{row['calls']:,} responses in {row['sessions']:,} conversations"
        + (f", {row['days']} days of {row['developers']} developer(s), zone {profile['zone']}" if profile["days"] else ""),
        f"streams busy {_hours(row['stream_s'])} (at least one: {_hours(row['union_s'])}) of {_hours(row['window_s'])} window",
        f"q = {profile['q']:.2%}"
        + (f"  [{interval['low']:.2%}, {interval['high']:.2%}] 95 %, {interval['method']}" if interval else "  (no interval)"),
        f"  rule: {profile['rule']}",
    ]
    lines += [f"  under {rule['rule']}: {rule['q']:.2%}" for rule in profile["rules"] if rule["rule"] != profile["rule"]]
    if row.get("context_per_output"):
        lines.append(
            f"context per token written: {row['context_per_output']:,.0f} over all, "
            f"{row['context_per_output_session_median']:,.0f} in the median conversation"
        )
        estimated = row.get("context_per_estimated_output")
        if estimated and row["under_recorded_fraction"]:
            lines.append(
                f"  {estimated:,.0f} if output is estimated from the text where it is under-recorded "
                f"({row['under_recorded_fraction']:.1%} of responses)"
            )
    lines.append(
        "streams at once: " + ", ".join(f"{part['streams']}: {part['fraction']:.2%}" for part in profile["concurrency"][:8])
    )
    lines.append(
        "length of a response: "
        + ", ".join(f"p{part['quantile'] * 100:g} {part['duration_s']:.1f} s" for part in profile["turns"])
    )
    if profile["hours_of_day"]:
        busiest = sorted(profile["hours_of_day"], key=lambda part: -part["stream_s"])[:3]
        lines.append("busiest hours: " + ", ".join(f"{part['hour']:02d}h {_hours(part['stream_s'])}" for part in busiest))
    lines += [f"  {flag}: {count:,} ({FLAGS[flag]})" for flag, count in profile["flags"].items() if count]
    return "\n".join(lines)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.2f} h"


def _all_rules(found: Activity, window: Window, logs: rows.Logs) -> list[dict[str, Any]]:
    """q under every rule, so that nobody needs to wonder what the choice of one is worth."""
    windows = [Window(rule, window.hours, window.opens, window.days) for rule in WINDOW_RULES]
    return [{"rule": str(each), "q": q_of(days(found, each, logs.zone))} for each in windows]


def _own_streams(logs: rows.Logs) -> list[float] | None:
    """As `activity.own_streams`; None if more time is busy than the nominal window holds."""
    nominal = Window("nominal", logs.window.hours, logs.window.opens, logs.window.days)
    try:
        return own_streams(logs.found, days(logs.found, nominal, logs.zone))
    except SeatsError:
        return None


def _day(text: str | None, name: str) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise SeatsError(f"--{name}: found {text!r}; expected a day, such as 2026-03-02") from None


def _machine_zone() -> str:
    """IANA name of this machine's zone; raises SeatsError if it cannot be told."""
    if name := os.environ.get("TZ"):
        return name.removeprefix(":")
    target = os.path.realpath("/etc/localtime")
    if "zoneinfo/" in target:
        return target.split("zoneinfo/", 1)[1]
    raise SeatsError("--zone: found nothing, and this machine does not name its zone; expected one, such as Europe/Berlin")
