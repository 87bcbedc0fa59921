"""Claude Code transcripts: what each shape of record must come out as."""

import pytest

from spillway.seats.activity import activity
from spillway.seats.logs import read_logs


def calls_of(folder, longest_s=600):
    found = activity([read_logs(folder)], longest_s)
    return found.calls.assign(length_s=found.calls["end_s"] - found.calls["start_s"]), found.flags


def test_one_response_in_several_lines_is_one_call(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    for at, kind in (("10:00:01", "thinking"), ("10:00:02", "text"), ("10:00:03", "tool_use")):
        log.assistant(at, content=[{"type": kind, "text": "abc"}])
    calls, _ = calls_of(logs)
    assert len(calls) == 1
    assert calls[["context_tokens", "output_tokens", "length_s"]].iloc[0].tolist() == [1104, 50, 3]


@pytest.mark.parametrize("outputs", [(2, 31, 300), (300, 2), (2, 300, 31)])
def test_the_most_complete_snapshot_counts_wherever_it_stands(transcript, logs, outputs):
    log = transcript()
    log.user("10:00:00")
    for second, output in enumerate(outputs, 1):
        log.assistant(f"10:00:0{second}", output=output)
    calls, _ = calls_of(logs)
    assert calls[["context_tokens", "output_tokens"]].to_numpy().tolist() == [[1104, 300]]


def test_a_missing_request_id_does_not_split_a_call(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:01", request=None)
    log.assistant("10:00:02", request="r2")
    calls, flags = calls_of(logs)
    assert len(calls) == 1
    assert flags["unkeyed"] == 0


def test_without_any_id_records_are_calls_of_their_own_and_reported(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:01", id=None, request=None)
    log.assistant("10:00:02", id=None, request=None)
    calls, flags = calls_of(logs)
    assert len(calls) == 2
    assert flags["unkeyed"] == 2


@pytest.mark.parametrize("parent_first", [True, False])
def test_a_replay_in_a_sidechain_is_the_parents_call(transcript, logs, parent_first):
    log = transcript()
    log.user("10:00:00")
    log.user("10:00:00", isSidechain=True, agentId="a1")
    for sidechain in (False, True) if parent_first else (True, False):
        more = {"isSidechain": True, "agentId": "a1", "request": "other"} if sidechain else {}
        log.assistant("10:00:05", **more)
    log.assistant("10:00:09", id="own", isSidechain=True, agentId="a1")
    calls, flags = calls_of(logs)
    assert len(calls) == 2
    assert calls["stream"].nunique() == 2
    assert flags["duplicates"] == 1


def test_a_subagents_file_is_a_second_stream_of_the_same_session(transcript, logs):
    main, agent = transcript(), transcript("projects/p/s1/subagents/agent-x.jsonl")
    main.user("10:00:00")
    main.assistant("10:01:00", id="m1")
    agent.user("10:00:30", isSidechain=True, agentId="x")
    agent.assistant("10:01:30", id="m2", isSidechain=True, agentId="x")
    calls, _ = calls_of(logs)
    assert calls["session"].nunique() == 1
    assert calls["stream"].nunique() == 2


def test_older_sidechains_without_agent_id_are_told_apart_by_where_they_begin(transcript, logs):
    log = transcript()
    first = log.user("10:00:00", isSidechain=True, parentUuid=None)
    second = log.user("10:00:00", isSidechain=True, parentUuid=None)
    log.assistant("10:00:10", id="m1", isSidechain=True, parentUuid=first)
    log.assistant("10:00:12", id="m2", isSidechain=True, parentUuid=second)
    calls, _ = calls_of(logs)
    assert calls["stream"].nunique() == 2
    assert calls["length_s"].tolist() == [10, 12]


def test_a_progress_report_repeats_a_subagents_call(transcript, logs):
    log, agent = transcript(), transcript("projects/p/s1/subagents/agent-x.jsonl")
    message = {"id": "m2", "model": "model-1", "content": [], "usage": {"input_tokens": 10, "output_tokens": 7}}
    agent.user("10:00:00", isSidechain=True, agentId="x")
    place = {"sessionId": "s1", "agentId": "x", "isSidechain": True}
    agent.line({"type": "assistant", "timestamp": "2026-03-02T10:00:05Z", "message": message} | place)
    log.record("progress", "10:00:06", data={"agentId": "x", "message": {"type": "assistant", "message": message}})
    calls, flags = calls_of(logs)
    assert calls[["output_tokens", "length_s"]].to_numpy().tolist() == [[7, 5]]
    assert flags["duplicates"] == 1


def test_a_progress_report_alone_still_counts(transcript, logs):
    message = {"id": "m2", "model": "model-1", "content": [], "usage": {"input_tokens": 10, "output_tokens": 7}}
    transcript().record("progress", "10:00:06", data={"agentId": "x", "message": {"type": "assistant", "message": message}})
    calls, flags = calls_of(logs)
    assert calls["output_tokens"].tolist() == [7]
    assert flags["no_start"] == 1


@pytest.mark.parametrize("what", [{"model": "<synthetic>"}, {"isApiErrorMessage": True}])
def test_what_the_client_wrote_itself_is_no_generation(transcript, logs, what):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:20", id="error", **what)
    log.assistant("10:00:25", id="m2")
    calls, flags = calls_of(logs)
    assert flags["synthetic"] == 1
    assert calls["length_s"].tolist() == [5]


def test_cache_creation_is_not_counted_twice(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    nested = {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}
    log.assistant(
        "10:00:01", usage={"input_tokens": 1, "cache_creation_input_tokens": 100, "cache_creation": nested, "output_tokens": 5}
    )
    calls, _ = calls_of(logs)
    assert calls["context_tokens"].tolist() == [101]


@pytest.mark.parametrize("value", [None, "many", -3, True, [], 1e300, float("nan")])
def test_a_count_that_is_none_is_zero_and_flagged(transcript, logs, value):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:01", usage={"input_tokens": 9, "cache_read_input_tokens": value, "output_tokens": 5})
    calls, flags = calls_of(logs)
    assert calls[["context_tokens", "output_tokens"]].to_numpy().tolist() == [[9, 5]]
    assert flags["null_counts"] == 1


def test_waiting_for_a_tool_is_not_generation(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:04", id="m1")
    log.assistant("10:00:09", id="m1")
    log.user("10:02:00")
    log.assistant("10:02:05", id="m2")
    calls, _ = calls_of(logs)
    assert calls["length_s"].tolist() == [9, 5]


def test_a_tool_that_answers_before_the_last_block_does_not_cut_the_response(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:04", id="m1")
    log.user("10:00:06")
    log.assistant("10:00:09", id="m1")
    log.user("10:00:10")
    log.assistant("10:00:12", id="m2")
    calls, _ = calls_of(logs)
    assert calls["length_s"].tolist() == [9, 2]


def test_responses_in_a_row_start_where_the_one_before_ended(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:04", id="m1")
    log.assistant("10:00:09", id="m2")
    calls, _ = calls_of(logs)
    assert calls["length_s"].tolist() == [4, 5]


def test_other_records_start_nothing(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    for kind in ("system", "queue-operation", "file-history-snapshot", "attachment"):
        log.record(kind, "10:00:03")
    log.assistant("10:00:04")
    calls, _ = calls_of(logs)
    assert calls["length_s"].tolist() == [4]


def test_text_far_beyond_the_recorded_output_is_flagged_and_estimated(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:09", output=3, content=[{"type": "text", "text": "x" * 4000}])
    calls, flags = calls_of(logs)
    assert flags["under_recorded"] == 1
    assert calls[["output_tokens", "estimated_output_tokens"]].to_numpy().tolist() == [[3, 1000]]


def test_snapshots_of_a_growing_block_are_measured_once(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    for length in (400, 800, 1200):
        log.assistant("10:00:09", output=300, content=[{"type": "text", "text": "y" * length}])
    log.assistant("10:00:10", output=300, content=[{"type": "tool_use", "id": "t1", "input": {"a": "z" * 391}}])
    calls, flags = calls_of(logs)
    assert calls["estimated_output_tokens"].tolist() == [400]  # a quarter of 1200 characters of text and 400 of input
    assert flags["under_recorded"] == 0


def test_a_lid_that_was_closed_is_cut_to_the_longest_response_believed(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    log.assistant("13:00:00")
    calls, flags = calls_of(logs, longest_s=600)
    assert calls["length_s"].tolist() == [600]
    assert flags["capped"] == 1


def test_a_clock_set_back_gives_no_negative_time(transcript, logs):
    log = transcript()
    log.user("10:00:00")
    log.assistant("09:30:00", id="m1")
    log.user("09:30:10")
    log.assistant("09:30:14", id="m2")
    calls, flags = calls_of(logs)
    assert calls["length_s"].tolist() == [0, 4]
    assert (flags["clock_back"], flags["negative_duration"]) == (1, 1)


def test_a_response_with_nothing_before_it_counts_from_its_first_block(transcript, logs):
    log = transcript()
    log.assistant("10:00:04")
    log.assistant("10:00:09")
    calls, flags = calls_of(logs)
    assert calls["length_s"].tolist() == [5]
    assert flags["no_start"] == 1


@pytest.mark.parametrize(
    ("time", "flag"), [("2026-03-02T10:00:04", "zoneless"), ("yesterday", "untimed"), (None, "untimed"), (17, "untimed")]
)
def test_a_response_without_a_usable_time_is_left_out_and_counted(transcript, logs, time, flag):
    log = transcript()
    log.user("10:00:00")
    log.assistant("10:00:04", id="m1")
    log.assistant("10:00:05", id="m2", timestamp=time)
    calls, flags = calls_of(logs)
    assert len(calls) == 1
    assert flags[flag] == 1
    assert flags["untimed"] == 1


def test_a_fork_that_copies_the_history_counts_once(transcript, logs):
    for name, session in (("projects/p/a.jsonl", "a"), ("projects/p/b.jsonl", "b")):
        log = transcript(name, session=session)
        log.user("10:00:00")
        log.assistant("10:00:04", id="m1")
    log.user("10:01:00")
    log.assistant("10:01:05", id="m2")
    calls, flags = calls_of(logs)
    assert sorted(calls["length_s"]) == [4, 5]
    assert flags["duplicates"] == 1


def test_two_sessions_at_once_are_two_streams(transcript, logs):
    for name, start in (("projects/p/a.jsonl", "10:00:00"), ("projects/q/b.jsonl", "10:00:30")):
        log = transcript(name, session=name)
        log.user(start)
        log.assistant("10:01:00", id=name)
    calls, _ = calls_of(logs)
    assert calls["session"].nunique() == 2
    assert calls["length_s"].tolist() == [60, 30]


def test_of_copies_in_two_files_the_original_gives_the_time(transcript, logs):
    """A subagent's log that copies its parent's response with an earlier time does not move it."""
    agent, main = transcript("projects/p/s1/subagents/agent-x.jsonl"), transcript()
    agent.user("09:00:00", isSidechain=True, agentId="x")
    agent.assistant("09:00:30", isSidechain=True, agentId="x", output=80)
    main.user("10:00:00")
    main.assistant("10:00:05", output=50)
    calls, _ = calls_of(logs)
    assert calls[["length_s", "output_tokens"]].to_numpy().tolist() == [[5, 80]]
