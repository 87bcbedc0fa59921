"""OpenTelemetry events, Codex rollouts and CSV: what each shape must come out as."""

import json

import pytest

from spillway.seats.activity import activity
from spillway.seats.errors import SeatsError
from spillway.seats.logs import read_logs


def calls_of(folder, only=None):
    found = activity([read_logs(folder, only)], 600)
    return found.calls.assign(length_s=found.calls["end_s"] - found.calls["start_s"]), found.flags


@pytest.fixture
def write(logs):
    def lines(name, records):
        path = logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")

    return lines


def event(name="claude_code.api_request", **attributes):
    typed = {
        "session.id": {"stringValue": "s1"}, "event.timestamp": {"stringValue": "2026-03-02T10:00:10.000Z"},
        "duration_ms": {"intValue": "4000"}, "input_tokens": {"intValue": "4"}, "cache_read_tokens": {"intValue": "1000"},
        "cache_creation_tokens": {"intValue": "100"}, "output_tokens": {"intValue": "50"}, "request_id": {"stringValue": "q1"},
    } | attributes  # fmt: skip
    return {
        "timeUnixNano": "1772445610000000000",
        "body": {"stringValue": name},
        "attributes": [{"key": key, "value": value} for key, value in typed.items() if value is not None],
    }


def export(*events):
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": list(events)}]}]}


def test_an_event_ends_a_request_that_took_its_duration(write, logs):
    write("otel.jsonl", [export(event())])
    calls, _ = calls_of(logs)
    assert calls[["context_tokens", "output_tokens", "length_s"]].to_numpy().tolist() == [[1104, 50, 4]]
    assert calls["end_s"].tolist() == [1772445610]


def test_numbers_may_be_text_or_numbers_and_the_time_may_come_from_the_record(write, logs):
    spoken = {"duration_ms": {"stringValue": "2500"}, "output_tokens": {"doubleValue": 50.0}, "event.timestamp": None}
    write("otel.jsonl", [export(event(**spoken))])
    calls, _ = calls_of(logs)
    assert calls[["output_tokens", "length_s", "end_s"]].to_numpy().tolist() == [[50, 2.5, 1772445610]]


def test_a_flat_event_is_read_too(write, logs):
    flat = {"event.name": "api_request", "timestamp": "2026-03-02T11:00:10+01:00", "duration_ms": 4000, "session.id": "s1",
            "event.sequence": 3, "input_tokens": 10, "output_tokens": 5}  # fmt: skip
    write("otel.jsonl", [flat, flat])
    calls, flags = calls_of(logs)
    assert calls[["context_tokens", "end_s", "length_s"]].to_numpy().tolist() == [[10, 1772445610, 4]]
    assert flags["duplicates"] == 1


def test_an_event_exported_twice_is_one_request_and_errors_are_none(write, logs):
    write(
        "otel.jsonl",
        [export(event(), event("claude_code.api_error")), export(event()), export(event("claude_code.user_prompt"))],
    )
    calls, flags = calls_of(logs)
    assert len(calls) == 1
    assert (flags["duplicates"], flags["api_errors"]) == (1, 1)


def test_events_without_duration_or_with_a_negative_one(write, logs):
    write(
        "otel.jsonl", [export(event(duration_ms=None), event(request_id={"stringValue": "q2"}, duration_ms={"intValue": "-5"}))]
    )
    calls, flags = calls_of(logs)
    assert calls["length_s"].tolist() == [0]
    assert (flags["untimed"], flags["negative_duration"]) == (1, 1)


def test_requests_of_one_session_may_overlap(write, logs):
    other = {"request_id": {"stringValue": "q2"}, "event.timestamp": {"stringValue": "2026-03-02T10:00:11Z"}}
    write("otel.jsonl", [export(event(), event(**other))])
    calls, _ = calls_of(logs)
    assert calls["length_s"].tolist() == [4, 4]
    assert calls["session"].nunique() == 1


def codex(at, kind, payload, day="2026-03-02"):
    return {"timestamp": f"{day}T{at}Z", "type": kind, "payload": payload}


def meta(at, session, parent=None):
    return codex(at, "session_meta", {"id": session} | ({"forked_from_id": parent} if parent else {}))


def user(at):
    return codex(at, "response_item", {"type": "message", "role": "user", "content": [{"text": "what the user said"}]})


def item(at, kind="reasoning"):
    return codex(at, "response_item", {"type": kind})


def count(at, total, last, output=20):
    def usage(tokens):
        return {
            "input_tokens": tokens,
            "cached_input_tokens": tokens // 2,
            "output_tokens": output,
            "total_tokens": tokens + output,
        }

    return codex(
        at, "event_msg", {"type": "token_count", "info": {"total_token_usage": usage(total), "last_token_usage": usage(last)}}
    )


TURN = [user("10:00:00"), item("10:00:03"), item("10:00:05", "function_call"), count("10:00:05.1", 1000, 1000)]
NEXT = [item("10:01:00", "function_call_output"), item("10:01:04"), count("10:01:04", 2200, 1200)]


def test_codex_responses_last_from_the_trigger_to_the_last_item(write, logs):
    write("rollout-a.jsonl", [meta("10:00:00", "a"), *TURN, *NEXT])
    calls, _ = calls_of(logs)
    assert calls[["context_tokens", "output_tokens", "length_s"]].to_numpy().tolist() == [[1000, 20, 5], [1200, 20, 4]]


def test_a_tool_faster_than_the_count_does_not_shift_the_next_response(write, logs):
    write("rollout-a.jsonl", [meta("10:00:00", "a"), *TURN[:3], item("10:00:05.05", "function_call_output"), TURN[3],
                              item("10:00:09"), count("10:00:09", 2200, 1200)])  # fmt: skip
    calls, _ = calls_of(logs)
    assert calls["length_s"].tolist() == pytest.approx([5, 3.95])


def test_a_count_written_again_is_no_new_response(write, logs):
    write(
        "rollout-a.jsonl", [meta("10:00:00", "a"), *TURN, count("10:00:30", 1000, 1000), *NEXT, count("10:02:00", 2200, 1200)]
    )
    calls, flags = calls_of(logs)
    assert len(calls) == 2
    assert flags["duplicates"] == 2
    assert calls["length_s"].tolist() == [5, 4]


def test_a_fork_repeats_its_parent_with_new_times(write, logs):
    write("rollout-a.jsonl", [meta("10:00:00", "a"), *TURN, *NEXT])
    copied = [dict(record, timestamp="2026-03-02T12:00:00Z") for record in (*TURN, *NEXT)]
    own = [user("12:01:00"), item("12:01:07"), count("12:01:07", 3600, 1400)]
    write("rollout-b.jsonl", [meta("12:00:00", "b", "a"), meta("12:00:00", "a"), *copied, *own])
    calls, flags = calls_of(logs)
    assert calls["length_s"].tolist() == [5, 4, 7]
    assert flags["duplicates"] == 2
    assert flags["orphan_forks"] == 0


def test_equal_counts_of_unrelated_sessions_are_different_responses(write, logs):
    write("rollout-a.jsonl", [meta("10:00:00", "a"), *TURN])
    write("rollout-b.jsonl", [meta("10:00:00", "b"), *TURN])
    calls, _ = calls_of(logs)
    assert len(calls) == 2


def test_a_fork_without_its_parent_is_reported(write, logs):
    write("rollout-b.jsonl", [meta("10:00:00", "b", "gone"), *TURN])
    assert calls_of(logs)[1]["orphan_forks"] == 1


def test_counts_without_usage_are_rate_limits_only(write, logs):
    limits = codex("10:00:01", "event_msg", {"type": "token_count", "info": None})
    write("rollout-a.jsonl", [meta("10:00:00", "a"), limits, *TURN])
    assert len(calls_of(logs)[0]) == 1


def test_a_plain_table(logs):
    logs.mkdir()
    rows = ["start,end,output_tokens,context_tokens,stream", "2026-03-02T09:00:00+01:00,2026-03-02T09:00:30+01:00,100,5000,a",
            "1772438430,1772438400,7,,b"]  # fmt: skip
    (logs / "own.csv").write_text("\n".join(rows), encoding="utf-8")
    calls, flags = calls_of(logs)
    assert sorted(calls["length_s"]) == [0, 30]
    assert calls["context_tokens"].sum() == 5000
    assert calls["stream"].nunique() == 2
    assert flags["negative_duration"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("begin,end\n1,2\n", r"found the columns begin, end; missing start, output_tokens"),
        ("", "found the columns none"),
        ("start,end,output_tokens\n2026-03-02T09:00:00,2026-03-02T09:01:00,5\n", r"line 2: start: found .* with a zone"),
        ("start,end,output_tokens\n1,2,5\n1,inf,5\n", r"line 3: end: found 'inf'"),
        ("start,end,output_tokens\n1,2,lots\n", r"line 2: output_tokens: found 'lots'"),
        ("start,end,output_tokens\n1,2,-5\n", r"line 2: output_tokens: found -5"),
        ("start,end,output_tokens\n1\n", r"line 2: end: found None"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_named_by_line_and_column(logs, text, said):
    logs.mkdir()
    (logs / "own.csv").write_text(text, encoding="utf-8")
    with pytest.raises(SeatsError, match=said):
        read_logs(logs)


def test_transcripts_and_events_of_the_same_work_need_a_choice(write, logs, transcript):
    write("otel.jsonl", [export(event())])
    log = transcript()
    log.user("10:00:06")
    log.assistant("10:00:10")
    with pytest.raises(
        SeatsError, match=r"as claude and otel, which may hold the same responses twice; choose one with --format"
    ):
        read_logs(logs)
    assert len(calls_of(logs, "otel")[0]) == len(calls_of(logs, "claude")[0]) == 1
