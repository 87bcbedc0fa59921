"""How busy one developer's streams are: from calls to days, hours, concurrency, context and q under a named window rule."""

from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pandas as pd

from spillway.seats.calls import Reading
from spillway.seats.errors import SeatsError
from spillway.seats.spans import SpanTime, seconds_at_once, union

WindowRule = Literal["nominal", "fixed", "busiest", "first-to-last"]
WINDOW_RULES: dict[WindowRule, str] = {
    "nominal": "all of a day's time, over a nominal number of hours",
    "fixed": "the time between two hours of the clock, over that span",
    "busiest": "the time in the busiest span of a nominal number of hours, over that span",
    "first-to-last": "the time from a day's first response to its last, over that span",
}
DEFAULT_RULE: WindowRule = "nominal"
"""Fixed before any log is looked at: it is how the article takes q (hours generated / (5 days x 8 h))."""

QUARTER_S = 900
"""All zones keep offsets of whole quarter hours, so that a quarter hour never lies on two days."""
LONGEST_SPAN_S = 10 * 366 * 86400.0
RETENTION_DAYS = 30
"""Claude Code deletes transcripts after this many days by default."""


@dataclass(frozen=True)
class Window:
    """What counts as working time. hours: of the nominal and the busiest span; opens: start of the fixed one, local time."""

    rule: WindowRule
    hours: float
    opens: time = time(9)
    days: Literal["active", "weekdays"] = "active"

    def __post_init__(self) -> None:
        if not 0 < self.hours <= 24:
            raise SeatsError(f"hours: found {self.hours}; expected more than 0 and at most 24")

    def __str__(self) -> str:
        span = f" from {self.opens:%H:%M}" if self.rule == "fixed" else ""
        hours = "" if self.rule == "first-to-last" else f" {self.hours:g} h"
        return f"{self.rule}{hours}{span}, {'days with a response' if self.days == 'active' else 'Monday to Friday'}"


@dataclass(frozen=True)
class Activity:
    """Calls of one or more developers, as numbers only.

    calls: columns developer, session, stream (numbered from 0), start_s, end_s (seconds since 1970, UTC), context_tokens,
    output_tokens, estimated_output_tokens. flags: counters of `calls.FLAGS`. first/last_record_s: of any record.
    """

    calls: pd.DataFrame
    flags: Counter[str]
    formats: Counter[str]
    first_record_s: tuple[float, ...]
    last_record_s: tuple[float, ...]


def activity(readings: list[Reading], longest_call_s: float) -> Activity:
    """The readings, one for each developer, as one table; responses are cut to `longest_call_s` from their end back."""
    if not longest_call_s > 0:
        raise SeatsError(f"longest call: found {longest_call_s} s; expected more than 0")
    flags: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    rows: list[tuple[int, int, int, float, float, int, int, int]] = []
    for developer, reading in enumerate(readings):
        flags.update(reading.flags)
        formats.update(reading.formats)
        numbers: dict[bytes, int] = {}
        for call in sorted(reading.calls.values(), key=lambda call: (call.start_s, call.end_s)):
            start_s = call.start_s
            if call.end_s - start_s > longest_call_s:
                flags["capped"] += 1
                start_s = call.end_s - longest_call_s
            session = numbers.setdefault(b"session" + call.session, len(numbers))
            stream = numbers.setdefault(b"stream" + call.stream, len(numbers))
            rows.append(
                (developer, session, stream, start_s, call.end_s, call.context_tokens, call.output_tokens,
                 call.estimated_output_tokens)
            )  # fmt: skip
    columns = ["developer", "session", "stream", "start_s", "end_s", "context_tokens", "output_tokens"]
    calls = pd.DataFrame(rows, columns=[*columns, "estimated_output_tokens"])
    flags["under_recorded"] = int(under_recorded(calls).sum())
    first, last = ([getattr(reading, name) for reading in readings] for name in ("first_record_s", "last_record_s"))
    return Activity(calls, flags, formats, tuple(first), tuple(last))


def between(found: Activity, since: date | None, until: date | None, zone: ZoneInfo) -> Activity:
    """Only the calls that start on or after `since` and before the end of `until`, local days; raises if none are left."""
    calls = found.calls
    if since is not None:
        calls = calls[calls["start_s"] >= _midnight_s(since, zone)]
    if until is not None:
        calls = calls[calls["start_s"] < _midnight_s(until + timedelta(days=1), zone)]
    if calls.empty:
        first, last = _local(min(found.first_record_s), zone), _local(max(found.last_record_s), zone)
        raise SeatsError(
            f"since, until: found no response from {since or 'the beginning'} to {until or 'the end'}; the logs reach from "
            f"{first:%Y-%m-%d} to {last:%Y-%m-%d} in {zone.key}"
        )
    flags = found.flags.copy()
    flags["under_recorded"] = int(under_recorded(calls).sum())
    return Activity(calls.reset_index(drop=True), flags, found.formats, found.first_record_s, found.last_record_s)


def under_recorded(calls: pd.DataFrame) -> pd.Series:
    """Which responses have a text more than twice, and 50 tokens, beyond what was recorded as output."""
    return calls["estimated_output_tokens"] > 2 * calls["output_tokens"] + 50


def zone_of(name: str) -> ZoneInfo:
    """A time zone by its IANA name; raises SeatsError with the remedy."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SeatsError(f"zone: found {name!r}; expected an IANA name, such as Europe/Berlin or UTC") from None


def quarters(found: Activity, zone: ZoneInfo) -> pd.DataFrame:
    """Time in every quarter hour from each developer's first local midnight to the last.

    Columns developer, start_s, day (local date), hour (local, 0..23), stream_s (each stream counts), union_s (at least one).
    """
    parts = []
    for developer, calls in found.calls.groupby("developer"):
        start_s, end_s = calls["start_s"].to_numpy(float), calls["end_s"].to_numpy(float)
        first = _midnight_s(_local(start_s.min(), zone).date(), zone)
        last = _midnight_s(_local(end_s.max(), zone).date() + timedelta(days=1), zone)
        if last - first > LONGEST_SPAN_S:
            raise SeatsError(
                f"calls: found responses from {_local(first, zone):%Y-%m-%d} to {_local(last, zone):%Y-%m-%d}: a clock was "
                "wrong; choose the days that are right with --since and --until"
            )
        edges = np.arange(first, last + 1, QUARTER_S)
        local = pd.to_datetime(edges[:-1], unit="s", utc=True).tz_convert(zone)
        parts.append(
            pd.DataFrame(
                {
                    "developer": developer,
                    "start_s": edges[:-1],
                    "day": local.date,
                    "hour": local.hour,
                    "stream_s": np.diff(SpanTime(start_s, end_s).before(edges)),
                    "union_s": np.diff(SpanTime(*union(start_s, end_s)).before(edges)),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def days(found: Activity, window: Window, zone: ZoneInfo) -> pd.DataFrame:
    """One row for each developer and local day that counts: developer, day, window_s, stream_s, union_s inside the window.

    Active days have at least one response; with `weekdays`, every Monday to Friday between the first and the last day
    counts, and other days do not. Raises SeatsError if no day is left.
    """
    rows = []
    by_quarter = quarters(found, zone)
    for developer, calls in found.calls.groupby("developer"):
        start_s, end_s = calls["start_s"].to_numpy(float), calls["end_s"].to_numpy(float)
        stream, single = SpanTime(start_s, end_s), SpanTime(*union(start_s, end_s))
        for day, part in by_quarter[by_quarter["developer"] == developer].groupby("day"):
            assert isinstance(day, date)
            counts = part["stream_s"].sum() > 0 if window.days == "active" else day.weekday() < 5
            if counts:
                low, high, window_s = _window(window, day, part, start_s, end_s, zone)
                edges = np.array([low, high])
                rows.append(
                    {
                        "developer": developer, "day": day, "window_s": window_s,
                        "stream_s": float(np.diff(stream.before(edges))[0]), "union_s": float(np.diff(single.before(edges))[0]),
                    }
                )  # fmt: skip
    if not rows:
        raise SeatsError(f"window: found no day that counts under {window}; expected at least one with a response")
    return pd.DataFrame(rows)


def _window(
    window: Window, day: date, part: pd.DataFrame, start_s: np.ndarray, end_s: np.ndarray, zone: ZoneInfo
) -> tuple[float, float, float]:
    """Where the time of a day is counted (from, to), and the length that it is divided by."""
    low, high = _midnight_s(day, zone), _midnight_s(day + timedelta(days=1), zone)
    length = window.hours * 3600
    match window.rule:
        case "nominal":
            return low, high, length
        case "fixed":
            opens = datetime.combine(day, window.opens, zone).timestamp()
            return opens, opens + length, length
        case "busiest":
            length = min(length, high - low)
            width = max(1, round(length / QUARTER_S))
            sums = np.convolve(part["stream_s"].to_numpy(), np.ones(width), mode="valid")
            opens = float(part["start_s"].iloc[int(sums.argmax())])
            return opens, opens + width * QUARTER_S, width * QUARTER_S
        case "first-to-last":
            inside = (start_s < high) & (end_s > low)
            if not inside.any():
                return low, high, high - low
            first, last = max(low, start_s[inside].min()), min(high, end_s[inside].max())
            return first, last, max(last - first, 1.0)


def q_of(by_day: pd.DataFrame) -> float:
    """Stream-seconds per second of window: the mean number of busy streams of one developer, over all days."""
    return float(by_day["stream_s"].sum() / by_day["window_s"].sum())


def own_streams(found: Activity, by_day: pd.DataFrame) -> list[float]:
    """Share of the window in which one developer has 0, 1, 2, ... streams busy, for `demand.parallel`.

    All time counts, as under the nominal rule. Raises SeatsError if more is busy than the window is long.
    """
    seconds = at_once(found)
    window_s = float(by_day["window_s"].sum())
    idle_s = window_s - seconds[1:].sum()
    if idle_s < 0:
        raise SeatsError(f"window: found {seconds[1:].sum():.0f} s busy in {window_s:.0f} s of window; expected longer hours")
    return [float(value / window_s) for value in [idle_s, *seconds[1:]]]


def at_once(found: Activity) -> np.ndarray:
    """Seconds during which one developer had exactly x streams busy, at index x, summed over developers."""
    by_developer = found.calls.groupby("developer")
    parts = [seconds_at_once(calls["start_s"].to_numpy(float), calls["end_s"].to_numpy(float)) for _, calls in by_developer]
    total = np.zeros(max(len(part) for part in parts))
    for part in parts:
        total[: len(part)] += part
    return total


def context_per_output(calls: pd.DataFrame, output: str = "output_tokens") -> tuple[float | None, float | None]:
    """Tokens of context sent for each token written: over all calls, and the median over sessions; None without any."""
    sums = calls.groupby(["developer", "session"])[["context_tokens", output]].sum()
    written = sums[sums[output] > 0]
    if written.empty:
        return None, None
    pooled = sums["context_tokens"].sum() / sums[output].sum()
    return float(pooled), float((written["context_tokens"] / written[output]).median())


def warnings(found: Activity, zone: ZoneInfo, since: date | None, now_s: float) -> list[str]:
    """What a reader of the profile must know before trusting it; empty if nothing was found."""
    said = []
    calls = found.calls
    for developer, oldest_s in enumerate(found.first_record_s):
        who = f"developer {developer}: " if len(found.first_record_s) > 1 else ""
        age_days = (now_s - oldest_s) / 86400
        if since is not None and _midnight_s(since, zone) < oldest_s - 86400:
            cause = (
                f"partially deleted by retention (Claude Code keeps {RETENTION_DAYS} days)"
                if (now_s - _midnight_s(since, zone)) / 86400 > RETENTION_DAYS - 2
                else "not there"
            )
            oldest = f"oldest record {_local(oldest_s, zone):%Y-%m-%d}"
            said.append(f"{who}asked from {since}, {oldest}: the days before it are {cause}")
        elif "claude" in found.formats and RETENTION_DAYS - 2 <= age_days <= RETENTION_DAYS + 1:
            said.append(f"{who}oldest record {age_days:.0f} days old: earlier ones were probably deleted by retention")
    if (calls["end_s"] > now_s + 86400).any():
        said.append("responses dated after today: a clock was wrong")
    total = len(calls)
    for name in ("negative_duration", "capped", "no_start", "under_recorded", "clock_back"):
        if found.flags[name] > 0.01 * total:
            said.append(f"{name}: {found.flags[name]} of {total} responses, more than 1 %")
    by_hour = quarters(found, zone).groupby("hour")["stream_s"].sum()
    night = float(by_hour[by_hour.index < 6].sum() / max(by_hour.sum(), 1e-9))
    if night > 0.5:
        said.append(f"{night:.0%} of the time lies between 0 and 6 o'clock in {zone.key}: is that the developer's zone?")
    return said


def _local(time_s: float, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(time_s, zone)


def _midnight_s(day: date, zone: ZoneInfo) -> float:
    return datetime.combine(day, time(0), zone).timestamp()


def as_trace(found: Activity) -> pd.DataFrame:
    """The calls as a trace to replay (see `trace.read_trace`): each developer is one session, with his parallel streams.

    The prefix that can be reused is taken to be the context of the stream's call before.
    """
    calls = found.calls.sort_values(["developer", "start_s"], kind="stable", ignore_index=True)
    frame = calls[["start_s", "end_s", "context_tokens", "output_tokens"]].assign(session=calls["developer"])
    previous = calls.groupby(["developer", "stream"])["context_tokens"].shift(fill_value=0)
    return frame.assign(reused_tokens=np.minimum(previous, frame["context_tokens"]))
