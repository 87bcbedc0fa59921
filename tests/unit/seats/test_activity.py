"""From calls to days, hours, concurrency and q: spans, zones, window rules, and what cannot be trusted."""

from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.seats.activity import (
    Activity,
    Window,
    activity,
    as_trace,
    at_once,
    between,
    context_per_output,
    days,
    own_streams,
    q_of,
    quarters,
    warnings,
    zone_of,
)
from spillway.seats.errors import SeatsError
from spillway.seats.intervals import bootstrap_q, carried, percentile_interval, t_interval
from spillway.seats.spans import SpanTime, seconds_at_once, union

BERLIN, UTC_ZONE = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")


def found(*spans, developer=None, context=1000, output=10):
    """Calls from (start, end) texts in UTC, each of a session of its own."""
    times = [tuple(datetime.fromisoformat(t).replace(tzinfo=UTC).timestamp() for t in span) for span in spans]
    calls = pd.DataFrame(
        {
            "developer": developer or [0] * len(times), "session": range(len(times)), "stream": range(len(times)),
            "start_s": [t[0] for t in times], "end_s": [t[1] for t in times], "context_tokens": context,
            "output_tokens": output, "estimated_output_tokens": 0,
        }
    )  # fmt: skip
    developers = 1 + max(calls["developer"])
    first = tuple(calls["start_s"][calls["developer"] == d].min() for d in range(developers))
    last = tuple(calls["end_s"][calls["developer"] == d].max() for d in range(developers))
    return Activity(calls, Counter(), Counter({"claude": 1}), first, last)


spans = st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 200)), max_size=20).map(
    lambda parts: (np.array([p[0] for p in parts]), np.array([p[0] + p[1] for p in parts]))
)


@given(spans, st.lists(st.floats(-10, 1300), min_size=1, max_size=5))
def test_time_before_an_instant_is_the_sum_of_the_parts(pair, instants):
    start, end = pair
    expected = [sum(max(0, min(e, t) - s) for s, e in zip(start, end, strict=True)) for t in instants]
    assert SpanTime(start, end).before(np.array(instants)) == pytest.approx(expected, abs=1e-6)


@given(spans)
def test_union_and_concurrency_agree_with_the_spans(pair):
    start, end = pair
    starts, ends = union(start, end)
    assert (starts[1:] > ends[:-1]).all()
    at = seconds_at_once(start, end)
    assert at[1:].sum() == pytest.approx((ends - starts).sum(), abs=1e-6)
    assert (at * np.arange(len(at))).sum() == pytest.approx((end - start).sum(), abs=1e-6)


def test_streams_are_counted_each_and_once():
    two = found(("2026-03-02T10:00:00", "2026-03-02T10:01:00"), ("2026-03-02T10:00:30", "2026-03-02T10:01:00"))
    row = days(two, Window("nominal", 8), UTC_ZONE).iloc[0]
    assert (row["stream_s"], row["union_s"]) == (90, 60)
    assert at_once(two)[1:].tolist() == [30, 30]
    own = own_streams(two, days(two, Window("nominal", 8), UTC_ZONE))
    assert own == pytest.approx([1 - 60 / 28800, 30 / 28800, 30 / 28800])


def test_the_published_week_gives_the_published_q():
    """2.84 h in five days of eight hours."""
    start = [f"2026-03-0{day}T10:00:00" for day in range(2, 7)]
    seconds = 2.84 * 3600 / 5
    week = found(*[(s, (datetime.fromisoformat(s) + timedelta(seconds=seconds)).isoformat()) for s in start])
    assert q_of(days(week, Window("nominal", 8), UTC_ZONE)) == pytest.approx(0.071)


def test_days_are_local_days():
    sunday = found(("2026-03-01T23:15:00", "2026-03-01T23:45:00"))
    assert days(sunday, Window("nominal", 8), UTC_ZONE)["day"].tolist() == [date(2026, 3, 1)]
    assert days(sunday, Window("nominal", 8), BERLIN)["day"].tolist() == [date(2026, 3, 2)]


@pytest.mark.parametrize(("monday", "hours"), [(date(2026, 3, 23), 167), (date(2026, 10, 19), 169), (date(2026, 3, 2), 168)])
def test_a_week_with_a_clock_change_has_another_length(monday, hours):
    last = datetime.combine(monday + timedelta(days=6), time(23, 50), BERLIN).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    first = datetime.combine(monday, time(0, 10), BERLIN).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    parts = quarters(found((first, first), (last, last)), BERLIN)
    assert len(parts) == hours * 4
    assert parts["day"].nunique() == 7


def test_half_hour_zones_keep_their_hours():
    parts = quarters(found(("2026-03-02T04:30:00", "2026-03-02T05:30:00")), ZoneInfo("Asia/Kolkata"))
    assert parts.groupby("hour")["stream_s"].sum().loc[[9, 10, 11]].tolist() == [0, 3600, 0]


def test_each_window_rule_gives_its_own_q():
    """Work from 07:40 to 16:10: 80 min before nine, 60 min within the day, 10 min after four."""
    day = found(
        ("2026-03-02T07:40:00", "2026-03-02T09:00:00"), ("2026-03-02T11:00:00", "2026-03-02T12:00:00"),
        ("2026-03-02T16:00:00", "2026-03-02T16:10:00"),
    )  # fmt: skip
    minutes = {"nominal": (150, 480), "fixed": (70, 480), "busiest": (140, 480), "first-to-last": (150, 510)}
    for rule, (busy, window) in minutes.items():
        row = days(day, Window(rule, 8), UTC_ZONE).iloc[0]
        assert (row["stream_s"] / 60, row["window_s"] / 60) == (busy, window), rule


def test_days_that_count():
    work = found(("2026-03-06T10:00:00", "2026-03-06T10:10:00"), ("2026-03-10T10:00:00", "2026-03-10T10:10:00"))
    assert len(days(work, Window("nominal", 8), UTC_ZONE)) == 2
    assert len(days(work, Window("nominal", 8, days="weekdays"), UTC_ZONE)) == 3  # Friday, Monday, Tuesday
    weekend = found(("2026-03-07T10:00:00", "2026-03-07T10:10:00"))
    with pytest.raises(SeatsError, match="found no day that counts"):
        days(weekend, Window("nominal", 8, days="weekdays"), UTC_ZONE)


def test_a_call_over_midnight_belongs_to_both_days():
    night = found(("2026-03-02T23:50:00", "2026-03-03T00:20:00"))
    assert days(night, Window("nominal", 8), UTC_ZONE)["stream_s"].tolist() == [600, 1200]


def test_context_is_summed_over_all_and_by_session():
    calls = found(*[("2026-03-02T10:00:00", "2026-03-02T10:00:01")] * 3, context=[100, 1000, 900], output=[1, 2, 0]).calls
    assert context_per_output(calls) == (2000 / 3, 300)
    assert context_per_output(calls.assign(output_tokens=0)) == (None, None)


def test_developers_are_replayed_with_their_parallel_streams():
    two = found(("2026-03-02T10:00:00", "2026-03-02T10:01:00"), ("2026-03-02T10:00:30", "2026-03-02T10:01:00"),
                ("2026-03-02T11:00:00", "2026-03-02T11:01:00"), developer=[0, 0, 1])  # fmt: skip
    two.calls["stream"] = 0
    trace = as_trace(two)
    assert trace["session"].tolist() == [0, 0, 1]
    assert trace["reused_tokens"].tolist() == [0, 1000, 0]


def test_only_the_asked_days_are_kept():
    three = found(*[(f"2026-03-0{day}T23:30:00", f"2026-03-0{day}T23:31:00") for day in (1, 2, 3)])
    assert len(between(three, date(2026, 3, 2), None, UTC_ZONE).calls) == 2
    assert len(between(three, date(2026, 3, 2), date(2026, 3, 2), BERLIN).calls) == 1
    with pytest.raises(SeatsError, match="logs reach from 2026-03-01 to 2026-03-03 in UTC"):
        between(three, date(2026, 4, 1), None, UTC_ZONE)


NOW = datetime(2026, 3, 31, 12, tzinfo=UTC).timestamp()


def test_what_retention_has_deleted_is_said():
    logs = found(("2026-03-02T10:00:00", "2026-03-02T10:00:05"))
    said = warnings(logs, UTC_ZONE, date(2026, 2, 24), NOW)
    assert any("partially deleted by retention" in line and "2026-03-02" in line for line in said)
    assert any("probably deleted by retention" in line for line in warnings(logs, UTC_ZONE, None, NOW))
    recent = found(("2026-03-20T10:00:00", "2026-03-20T10:00:05"))
    assert warnings(recent, UTC_ZONE, date(2026, 3, 20), NOW) == []


def test_a_wrong_zone_and_a_wrong_clock_are_said():
    night = found(("2026-03-20T02:00:00", "2026-03-20T02:00:05"))
    assert any("is that the developer's zone" in line for line in warnings(night, UTC_ZONE, None, NOW))
    future = found(("2026-05-20T12:00:00", "2026-05-20T12:00:05"))
    assert any("a clock was wrong" in line for line in warnings(future, UTC_ZONE, None, NOW))
    with pytest.raises(SeatsError, match="a clock was wrong"):
        quarters(
            found(("1971-01-01T00:00:00", "1971-01-01T00:00:01"), ("2026-01-01T00:00:00", "2026-01-01T00:00:01")), UTC_ZONE
        )


def test_flags_above_one_percent_are_said():
    logs = found(("2026-03-20T10:00:00", "2026-03-20T10:00:05"))
    logs.flags["negative_duration"] = 1
    assert warnings(logs, UTC_ZONE, None, NOW) == ["negative_duration: 1 of 1 responses, more than 1 %"]


@pytest.mark.parametrize("name", ["Europe/Berln", "", "../etc/passwd", "Mars/Olympus"])
def test_an_unknown_zone_is_named(name):
    with pytest.raises(SeatsError, match="expected an IANA name"):
        zone_of(name)


@pytest.mark.parametrize(
    ("call", "said"), [(lambda: Window("nominal", 0), "hours: found 0"), (lambda: activity([], 0), "longest call")]
)
def test_wrong_parameters_are_named(call, said):
    with pytest.raises(SeatsError, match=said):
        call()


def by_day(shares, window_s=28800.0):
    return pd.DataFrame(
        {"developer": 0, "day": range(len(shares)), "stream_s": np.array(shares) * window_s, "window_s": window_s}
    )


def test_student_interval_of_five_days():
    """Mean 0.071, day CV 0.3: half-width 2.776 x 0.3 x 0.071 / sqrt(5)."""
    shares = 0.071 * (1 + 0.3 * np.array([-1, -1, 0, 1, 1]))
    interval = t_interval(by_day(shares), 0.95)
    assert (interval.low, interval.high) == pytest.approx((0.071 - 0.02644, 0.071 + 0.02644), abs=1e-5)


def test_bootstrap_over_days_has_the_spread_of_a_mean():
    shares = np.random.default_rng(1).gamma(4, 0.071 / 4, size=60)
    draws = bootstrap_q(by_day(shares), 4000, 1)
    assert draws.mean() == pytest.approx(shares.mean(), rel=0.01)
    assert draws.std() == pytest.approx(shares.std() / np.sqrt(60), rel=0.05)
    interval = percentile_interval(draws, 0.95)
    assert interval.low < shares.mean() < interval.high


def test_blocks_of_days_keep_what_lasts():
    """Busy and idle fortnights: single days hide most of the spread of such a mean, blocks of five days show more of it."""
    shares = np.tile([0.1] * 10 + [0.02] * 10, 4)
    single, blocks = (bootstrap_q(by_day(shares), 3000, 1, block).std() for block in (1, 5))
    assert blocks > 1.6 * single


def test_developers_are_resampled_before_their_days():
    """Two developers who differ: the spread between them must show, however many days each has."""
    parts = [by_day([share] * 50).assign(developer=number) for number, share in enumerate((0.03, 0.11))]
    draws = bootstrap_q(pd.concat(parts), 4000, 1)
    assert sorted(set(np.round(draws, 6))) == [0.03, 0.07, 0.11]
    assert (np.round(draws, 6) == 0.07).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("count", [0, 1])
def test_one_day_has_no_interval(count):
    for make in (lambda: bootstrap_q(by_day([0.07] * count), 10, 1), lambda: t_interval(by_day([0.07] * count), 0.95)):
        with pytest.raises(SeatsError, match=f"days: found {count}"):
            make()


def test_a_quantity_is_carried_through_the_draws():
    assert carried(np.array([0.05, 0.1, 0.05]), lambda q: 1 / q) == pytest.approx([20, 10, 20])
