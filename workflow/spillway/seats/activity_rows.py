"""Rows of experiment e10_activity: how busy one developer's stream is, as published, in a public trace, in one's own logs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from spillway.seats.activity import Activity, Window, at_once, context_per_output, days, q_of, quarters
from spillway.seats.calls import FLAGS
from spillway.seats.case import HOURS_OF_A_WEEK, WORKING_DAYS, Case, published_values
from spillway.seats.errors import SeatsError
from spillway.seats.intervals import Interval, bootstrap_q, percentile_interval, t_interval
from spillway.seats.spans import seconds_at_once
from spillway.seats.trace import busy_shares

Row = dict[str, Any]
IDLE_CAPS_S = (60.0, 300.0, 600.0, 1800.0, np.inf)
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
CONFIDENCE = 0.95
DRAWS = 4000
FEW_DAYS = 10
"""Below this many days a percentile bootstrap is too narrow, so the Student interval is given instead."""


@dataclass(frozen=True)
class Logs:
    """One's own logs, with the rule under which they are read."""

    found: Activity
    window: Window
    zone: ZoneInfo


def profile_rows(case: Case, figures: pd.DataFrame, trace: pd.DataFrame | None, logs: Logs | None, seed: int) -> list[Row]:
    """Table activity_profile: q by source and rule."""
    values = published_values(figures)
    hours = WORKING_DAYS * case.window_hours
    rows: list[Row] = [
        {
            "source": "published", "rule": f"nominal {case.window_hours:g} h, {WORKING_DAYS} days", "days": WORKING_DAYS,
            "window_s": hours * 3600, "stream_s": case.q * hours * 3600, "q_fraction": case.q,
            "week_fraction": case.q * hours / HOURS_OF_A_WEEK,
            "context_per_output": float(values["usage.context_tokens_per_written"]),
        }
    ]  # fmt: skip
    if trace is not None:
        rows += [trace_row(trace, cap, seed) for cap in IDLE_CAPS_S]
    if logs is not None:
        rows.append(profile_row(logs, seed))
    return rows


def trace_row(trace: pd.DataFrame, idle_cap_s: float, seed: int) -> Row:
    """One row of activity_profile: a trace, whose idle gaps count for at most `idle_cap_s`."""
    shares = busy_shares(trace, idle_cap_s)
    pooled, median = context_per_output(trace.assign(developer=0))
    # Sessions stand for the unknown developers and days: they are the only independent units of the trace.
    units = shares.rename(columns={"session": "day", "span_s": "window_s"}).assign(developer=0)
    units = units[units["window_s"] > 0]
    interval = percentile_interval(bootstrap_q(units, DRAWS, seed), CONFIDENCE) if len(units) > 1 else None
    cap = "all idle time counts" if np.isinf(idle_cap_s) else f"idle gaps count for at most {idle_cap_s / 60:g} min"
    return {
        "source": "trace", "rule": f"first to last request of a session, {cap}", "window_s": float(shares["span_s"].sum()),
        "stream_s": float(shares["stream_s"].sum()), "union_s": float(shares["union_s"].sum()),
        "q_fraction": float(shares["stream_s"].sum() / shares["span_s"].sum()),
        "q_low_fraction": interval.low if interval else None, "q_high_fraction": interval.high if interval else None,
        "interval": "bootstrap over sessions, percentile" if interval else None,
        "q_session_median_fraction": float((shares["stream_s"] / shares["span_s"]).median()),
        "calls": len(trace), "sessions": int(trace["session"].nunique()), "context_per_output": pooled,
        "context_per_output_session_median": median, "untimed_fraction": float(trace["end_s"].isna().mean()),
    }  # fmt: skip


def profile_row(logs: Logs, seed: int) -> Row:
    """One row of activity_profile: logs under their window rule."""
    calls, flags = logs.found.calls, logs.found.flags
    by_day = days(logs.found, logs.window, logs.zone)
    pooled, median = context_per_output(calls)
    fuller = calls.assign(best_tokens=np.maximum(calls["output_tokens"], calls["estimated_output_tokens"]))
    interval = q_interval(by_day, seed)
    return {
        "source": "logs", "rule": str(logs.window), "days": len(by_day), "developers": int(calls["developer"].nunique()),
        "window_s": float(by_day["window_s"].sum()), "stream_s": float(by_day["stream_s"].sum()),
        "union_s": float(by_day["union_s"].sum()), "q_fraction": q_of(by_day),
        "q_low_fraction": interval.low if interval else None, "q_high_fraction": interval.high if interval else None,
        "interval": interval.method if interval else None, "calls": len(calls),
        "sessions": int(calls.groupby("developer")["session"].nunique().sum()),
        "context_per_output": pooled, "context_per_output_session_median": median,
        "context_per_estimated_output": context_per_output(fuller, "best_tokens")[0],
        "untimed_fraction": flags["untimed"] / (len(calls) + flags["untimed"]),
        "under_recorded_fraction": flags["under_recorded"] / len(calls),
    }  # fmt: skip


def q_interval(by_day: pd.DataFrame, seed: int) -> Interval | None:
    """The interval of q: Student t for few days of one developer, else a bootstrap; None for a single day."""
    if len(by_day) < 2:
        return None
    if len(by_day) < FEW_DAYS and by_day["developer"].nunique() == 1:
        return t_interval(by_day, CONFIDENCE)
    return percentile_interval(bootstrap_q(by_day, DRAWS, seed), CONFIDENCE)


def concurrency_rows(trace: pd.DataFrame | None, logs: Logs | None) -> list[Row]:
    """Table activity_concurrency: time with 1, 2, ... streams of one developer (of one session in the trace) busy."""
    rows: list[Row] = []
    if trace is not None:
        timed = trace[trace["end_s"].notna()]
        parts = [seconds_at_once(p["start_s"].to_numpy(), p["end_s"].to_numpy()) for _, p in timed.groupby("session")]
        total = np.zeros(max(len(part) for part in parts))
        for part in parts:
            total[: len(part)] += part
        rows += _concurrency("trace", total)
    if logs is not None:
        rows += _concurrency("logs", at_once(logs.found))
    return rows


def _concurrency(source: str, seconds: np.ndarray) -> list[Row]:
    busy_s = seconds[1:].sum()
    if busy_s == 0:
        return []
    return [
        {"source": source, "streams": streams, "time_s": float(seconds[streams]), "fraction": float(seconds[streams] / busy_s)}
        for streams in range(1, len(seconds))
    ]


def hour_rows(logs: Logs) -> list[Row]:
    """Table activity_hours: time and tokens by local hour of the day, over all days and developers."""
    by_hour = quarters(logs.found, logs.zone).groupby("hour")[["stream_s", "union_s"]].sum()
    counted = _counted(logs.found.calls, _local_start(logs).dt.hour)
    return [
        {"source": "logs", "hour": int(str(hour)), **{str(name): value for name, value in row.items()}, **counted(hour)}
        for hour, row in by_hour.iterrows()
    ]


def day_rows(logs: Logs) -> list[Row]:
    """Table activity_days: time within the window, and tokens of all calls that start on the day, by developer and day."""
    rows: list[Row] = []
    for developer, part in days(logs.found, logs.window, logs.zone).groupby("developer"):
        own = logs.found.calls["developer"] == developer
        counted = _counted(logs.found.calls[own], _local_start(logs)[own].dt.date)
        for row in part.to_dict("records"):
            times = {str(name): value for name, value in row.items()} | {"day": row["day"].isoformat()}
            rows.append({"source": "logs"} | times | counted(row["day"]))
    return rows


def _local_start(logs: Logs) -> pd.Series:
    return pd.to_datetime(logs.found.calls["start_s"], unit="s", utc=True).dt.tz_convert(logs.zone)


def _counted(calls: pd.DataFrame, by: pd.Series) -> Callable[[Any], Row]:
    """Calls and tokens of a group, 0 where it has none."""
    groups = calls.groupby(by)[["context_tokens", "output_tokens"]].agg("sum").assign(calls=calls.groupby(by).size())
    sums = groups.to_dict("index")
    return lambda group: {str(k): int(v) for k, v in sums.get(group, dict.fromkeys(groups.columns, 0)).items()}


def turn_rows(trace: pd.DataFrame | None, logs: Logs | None) -> list[Row]:
    """Table activity_turns: quantiles of the length, context and output of responses."""
    rows: list[Row] = []
    for source, calls in (("trace", trace), ("logs", logs.found.calls if logs else None)):
        if calls is not None:
            length_s = (calls["end_s"] - calls["start_s"]).dropna()
            for quantile in QUANTILES:
                rows.append(
                    {
                        "source": source, "quantile": quantile, "duration_s": float(length_s.quantile(quantile)),
                        "context_tokens": float(calls["context_tokens"].quantile(quantile)),
                        "output_tokens": float(calls["output_tokens"].quantile(quantile)),
                    }
                )  # fmt: skip
    return rows


def flag_rows(logs: Logs) -> list[Row]:
    """Table activity_flags: what in the logs cannot be trusted, every flag with its count, 0 too."""
    if unknown := sorted(set(logs.found.flags) - set(FLAGS)):
        raise SeatsError(f"flags: found {unknown[0]!r}; expected one of {', '.join(FLAGS)}")
    return [{"source": "logs", "flag": flag, "count": logs.found.flags[flag], "meaning": text} for flag, text in FLAGS.items()]
