"""`spillway usage` and `spillway seats` as a person runs them, and the tables behind them."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from spillway.paper.seats_figures import FIGURES
from spillway.record import parquet
from spillway.record.tables import TABLES
from spillway.seats import seats_command, usage_command
from spillway.seats.activity import Window, activity, as_trace, zone_of
from spillway.seats.activity_rows import Logs
from spillway.seats.case import assumed_q_draws, measured_speeds, published_case
from spillway.seats.experiments import activity_tables, seat_tables
from spillway.seats.logs import read_logs
from spillway.seats.seat_rows import published_rows
from spillway.spec.number import read_figures
from tests.unit.seats.conftest import Transcript

ROOT = Path(__file__).parents[3]
FIGURES_CSV = str(ROOT / "data" / "published" / "figures.csv")


@pytest.fixture(scope="session")
def fortnight(tmp_path_factory):
    """Ten working days, 90 responses of 20 s each a day from nine o'clock in Berlin: q is 1800 / 28800 = 6.25 %."""
    logs = tmp_path_factory.mktemp("fortnight")
    day = datetime(2026, 3, 2, 8, tzinfo=UTC)
    while day < datetime(2026, 3, 14, tzinfo=UTC):
        if day.weekday() < 5:
            log = Transcript(logs / f"projects/p/{day:%d}.jsonl", session=f"{day:%d}", day=f"{day:%Y-%m-%d}")
            for number in range(90):
                start = day + timedelta(seconds=300 * number)
                log.user(f"{start:%H:%M:%S}")
                log.assistant(f"{start + timedelta(seconds=20):%H:%M:%S}", id=f"{day:%d}-{number}")
        day += timedelta(days=1)
    return logs


def test_usage_prints_q_with_its_rule_and_zone(fortnight, capsys):
    assert usage_command.main([str(fortnight), "--zone", "Europe/Berlin", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "900 responses in 10 conversations, 10 days of 1 developer(s), zone Europe/Berlin" in said
    assert "q = 6.25%" in said
    assert "rule: nominal 8 h, days with a response" in said
    for other in ("fixed 8 h from 09:00", "busiest 8 h", "first-to-last"):
        assert f"under {other}" in said
    assert "context per token written: 22 over all, 22 in the median conversation" in said


def test_hours_and_days_carry_their_tokens(fortnight):
    tables = activity_tables(
        published_case(pd.read_csv(FIGURES_CSV), None, None), pd.read_csv(FIGURES_CSV), None, own_logs(fortnight), 1
    )
    busy = {row["hour"]: row for row in tables["activity_hours"] if row["calls"]}
    assert sorted(busy) == list(range(8, 16))
    assert busy[8] | {"source": ""} == {"source": "", "hour": 8, "stream_s": 2400, "union_s": 2400, "calls": 120,
                                        "context_tokens": 120 * 1104, "output_tokens": 120 * 50}  # fmt: skip
    assert [row["calls"] for row in tables["activity_days"]] == [90] * 10


def test_days_and_rules_can_be_chosen(fortnight, capsys):
    options = ["--zone", "Europe/Berlin", "--since", "2026-03-02", "--until", "2026-03-06", "--window", "first-to-last"]
    assert usage_command.main([str(fortnight), *options]) == 0
    said = capsys.readouterr().out
    assert "450 responses" in said
    assert f"q = {1800 / (300 * 89 + 20):.2%}" in said


def test_a_profile_feeds_the_seats(fortnight, tmp_path, capsys):
    profile = tmp_path / "profile.json"
    assert usage_command.main([str(fortnight), "--zone", "Europe/Berlin", "--out", str(profile)]) == 0
    assert json.loads(profile.read_text())["q"] == pytest.approx(0.0625)
    capsys.readouterr()
    own = ["--streams", "4", "--server-hour", "3.73", "--subscription", "180", "--developers", "100,250"]
    assert seats_command.main(["--profile", str(profile), *own]) == 0
    said = capsys.readouterr().out
    assert "q = 6.25%, 4 streams at the floor" in said
    assert "seats of one server: 21 at 1 % of clock time" in said
    assert "95 % intervals; q from: bootstrap over 10 days of 1 developer(s)" in said
    assert "with the parallel streams of the profile: 21" in said


def test_two_developers_are_two_arguments(fortnight, transcript, tmp_path, capsys):
    other = tmp_path / "logs" / "other"
    log = transcript("other/x.jsonl", session="other")
    log.user("10:00:00")
    log.assistant("10:00:30", id="other")
    assert usage_command.main([str(fortnight / "projects"), str(other), "--zone", "UTC"]) == 0
    assert "11 days of 2 developer(s)" in capsys.readouterr().out


def test_one_day_has_no_interval_and_says_so(transcript, logs, capsys):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:30")
    assert usage_command.main([str(logs), "--zone", "UTC"]) == 0
    shown = capsys.readouterr()
    assert "(no interval)" in shown.out
    assert "one day says nothing about how days differ" in shown.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere"], "nowhere: found no such file or folder"),
        (["LOGS", "--zone", "Europe/Berln"], "zone: found 'Europe/Berln'"),
        (["LOGS", "--zone", "UTC", "--opens", "nine"], "--opens: found 'nine'"),
        (["LOGS", "--zone", "UTC", "--since", "monday"], "--since: found 'monday'"),
        (["LOGS", "--zone", "UTC", "--since", "2027-01-01"], "found no response from 2027-01-01"),
        (["LOGS", "--zone", "UTC", "--hours", "25"], "hours: found 25"),
        (["LOGS", "--zone", "UTC", "--format", "codex"], "none of them a log of codex"),
        (["nowhere.parquet"], "nowhere.parquet: no such file"),
    ],
)
def test_usage_says_what_is_wrong(fortnight, capsys, options, said):
    assert usage_command.main([str(fortnight) if part == "LOGS" else part for part in options]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


OWN = ["--q", "0.071", "--streams", "4", "--server-hour", "3.73", "--subscription", "180", "--developers", "100"]


def test_seats_of_the_published_case(capsys):
    assert seats_command.main(["--published", FIGURES_CSV]) == 0
    said = capsys.readouterr().out
    assert "seats of one server: 19 at 1 % of clock time (28 at 5 %)" in said
    assert "13 at 1 % of generated stream time (21 at 5 %)" in said
    assert "break-even: 15.1 subscriptions; a full server alone pays by clock time only" in said
    assert "DIFFERS" not in said
    assert said.count("agrees") == 10


def test_given_values_replace_published_ones(capsys):
    assert seats_command.main(["--published", FIGURES_CSV, "--q", "0.05", "--spare", "1"]) == 0
    said = capsys.readouterr().out
    assert "q = 5.00%" in said
    assert "published and recomputed" not in said


def test_seats_as_json_fit_their_tables(capsys, tmp_path):
    assert seats_command.main([*OWN, "--json"]) == 0
    for table, rows in json.loads(capsys.readouterr().out).items():
        parquet.write(tmp_path / f"{table}.parquet", table, rows, {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "found nothing for --q or --profile, --streams, --developers, --server-hour, --subscription"),
        ([*OWN, "--q", "0"], "q: found 0"),
        ([*OWN, "--q", "1"], "q: found 1"),
        ([*OWN, "--streams", "0"], "streams: found 0"),
        ([*OWN, "--server-hour", "-1"], "server_hour: found -1"),
        ([*OWN, "--profile", "none.json"], "none.json: no such profile"),
        (["--published", "none.csv"], "none.csv: no such data file"),
        (["--published", FIGURES_CSV, "--replay", "none.parquet"], "none.parquet: no such file"),
        ([*OWN, "--speeds", "2:5"], "starting with 1 stream"),
    ],
)
def test_seats_says_what_is_wrong(capsys, options, said):
    assert seats_command.main(options) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("main", [seats_command.main, usage_command.main])
def test_a_negative_seed_is_refused(capsys, main):
    with pytest.raises(SystemExit):
        main(["--seed", "-1"])
    assert "--seed: found -1; expected 0 to 2147483647" in capsys.readouterr().err


def test_speeds_may_come_from_measured_requests(tmp_path, capsys):
    rows = [(1, "measured", "ok", 180.0), (1, "warmup", "ok", 1.0), (1, "measured", "ok", 190.0),
            (2, "measured", "failed", 1.0), (2, "measured", "ok", 95.0), (None, "measured", "ok", 7.0)]  # fmt: skip
    requests = pd.DataFrame(rows, columns=["streams", "phase", "outcome", "rate_tok_per_s"])
    requests.to_parquet(tmp_path / "requests.parquet")
    assert measured_speeds(requests) == {1: 185.0, 2: 95.0}
    given = ["--requests", str(tmp_path / "requests.parquet")]
    assert seats_command.main([*OWN, *given]) == 0
    assert "as measured, by streams busy (closed)" in capsys.readouterr().out
    assert seats_command.main([*OWN, *given, "--speeds", "1:5"]) == 2
    requests.assign(phase="warmup").to_parquet(tmp_path / "requests.parquet")
    assert seats_command.main([*OWN, *given]) == 2
    assert "none measured" in capsys.readouterr().err


def test_a_file_that_is_no_profile_is_refused(tmp_path, capsys):
    other = tmp_path / "other.json"
    other.write_text('{"q": 0.07}')
    assert seats_command.main([*OWN[2:], "--profile", str(other)]) == 2
    assert "found another file than a profile" in capsys.readouterr().err
    assert seats_command.main([*OWN, "--profile", str(other)]) == 2


def all_tables(figures, trace, logs):
    """Of the published case, with replays of smaller teams, which take less time."""
    case = published_case(figures, None, None)
    case = published_case(figures, *assumed_q_draws(case.q, 5, 0.3))
    small = replace(case, teams=(20, 40))
    tables = activity_tables(case, figures, trace, logs, 1) | seat_tables(small, None, trace, 1)
    return tables | {"seats_published": published_rows(case, figures)}


def own_logs(folder):
    return Logs(activity([read_logs(folder)], 600), Window("nominal", 8), zone_of("UTC"))


def test_every_table_is_complete_and_written_as_its_columns_say(fortnight, figures, tmp_path, monkeypatch):
    """With own logs as the trace, so that it needs no recorded sessions; few windows, since only shape is asked."""
    for name, windows in (("EPISODE_WINDOWS", 20), ("ROUTING_WINDOWS", 2), ("SEARCH_WINDOWS", 1)):
        monkeypatch.setattr(f"spillway.seats.simulated_rows.{name}", windows)
    logs = own_logs(fortnight)
    tables = all_tables(figures, as_trace(logs.found), logs)
    assert set(tables) == {name for name in TABLES if name.startswith(("activity_", "seats_"))}
    frames = {}
    for table, rows in tables.items():
        assert rows, table
        assert set().union(*rows) == set(TABLES[table]), table  # no column that no row ever fills
        parquet.write(tmp_path / f"{table}.parquet", table, rows, {})
        experiment = "e10_activity" if table.startswith("activity_") else "e11_seats"
        frames[f"{experiment}.{table}"] = parquet.read(tmp_path / f"{table}.parquet")
    drawn_from = read_figures(ROOT, "cpu")
    for name, draw in FIGURES.items():
        drawn = draw({file: frames[file] for file in drawn_from[name].files})
        assert all(axes.has_data() for axes in drawn.axes), name


def test_published_profile_and_trace_stand_side_by_side(figures, trace):
    rows = {
        row["rule"]: row
        for row in activity_tables(published_case(figures, None, None), figures, trace, None, 1)["activity_profile"]
    }
    published, whole = rows["nominal 8 h, 5 days"], rows["first to last request of a session, all idle time counts"]
    assert (published["q_fraction"], published["context_per_output"]) == (0.071, 234)
    assert published["week_fraction"] == pytest.approx(0.0169, abs=5e-5)
    assert whole["q_fraction"] == pytest.approx(0.060, abs=5e-4)
    assert whole["context_per_output"] == pytest.approx(280, abs=5)
    assert whole["context_per_output_session_median"] == pytest.approx(245, abs=3)
    assert whole["sessions"] == 710


def test_a_trace_is_profiled_by_the_command(tmp_path, capsys):
    frame = pd.DataFrame({"session": ["a", "a", "b"], "t": [0.0, 100.0, 0.0], "api_time": [10.0, 10.0, None],
                          "input_tokens": [10, 20, 30], "output_tokens": [1, 2, 3]})  # fmt: skip
    frame.to_parquet(tmp_path / "trace.parquet")
    profile = tmp_path / "p.json"
    assert usage_command.main([str(tmp_path / "trace.parquet"), "--out", str(profile)]) == 0
    shown = capsys.readouterr()
    assert f"q = {20 / 110:.2%}" in shown.out
    assert f"idle gaps count for at most 1 min: {20 / 80:.2%}" in shown.out
    assert "a trace has no calendar" in shown.err
    frame.drop(columns="api_time").to_parquet(tmp_path / "other.parquet")
    assert usage_command.main([str(tmp_path / "other.parquet")]) == 2
    assert "missing api_time" in capsys.readouterr().err


def test_recorded_sessions_written_as_transcripts_come_back_the_same(trace, transcript, logs):
    """The gap rule recovers the recorded request times when every request follows its trigger at once."""
    timed = trace[trace["end_s"].notna() & (trace["session"] < 12)]
    day = datetime(2026, 3, 2, tzinfo=UTC)
    for session, part in timed.groupby("session"):
        log = transcript(f"p/{session}.jsonl", session=str(session))
        for number, row in enumerate(part.itertuples()):
            for kind, at_s in (("user", row.start_s), ("assistant", row.end_s)):
                at = (day + timedelta(seconds=at_s)).isoformat()
                usage = {"input_tokens": int(row.context_tokens), "output_tokens": int(row.output_tokens)}
                more = {"id": f"{session}-{number}", "usage": usage} if kind == "assistant" else {}
                getattr(log, kind)("00:00:00", timestamp=at, **more)
    found = activity([read_logs(logs)], 3600).calls
    assert len(found) == len(timed)
    assert (found["end_s"] - found["start_s"]).sum() == pytest.approx((timed["end_s"] - timed["start_s"]).sum(), abs=0.01)
    assert found["context_tokens"].sum() == timed["context_tokens"].sum()
