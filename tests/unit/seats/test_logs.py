"""Folders of logs: found once, read within bounds, nothing of their text kept, and clear answers where nothing is there."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spillway.seats.activity import activity
from spillway.seats.calls import FLAGS
from spillway.seats.errors import SeatsError
from spillway.seats.logs import read_logs
from spillway.seats.usage_command import main


def dialogue(log, turns=3):
    for number in range(turns):
        log.user(f"10:{number:02d}:00")
        log.assistant(f"10:{number:02d}:05", id=f"{log.session}-{number}")


def test_broken_blank_and_cut_lines_are_counted_and_the_rest_is_read(transcript, logs):
    log = transcript()
    dialogue(log)
    log.line("{not json")
    log.line("")
    log.line("[1, 2]")
    with log.path.open("a") as file:
        file.write('{"type": "assistant", "timest')
    reading = read_logs(logs)
    assert len(reading.calls) == 3
    assert {name: reading.flags[name] for name in ("broken_lines", "truncated_lines", "unrecognised")} == {
        "broken_lines": 1, "truncated_lines": 1, "unrecognised": 1,
    }  # fmt: skip


def test_a_tree_reached_by_links_or_copied_is_counted_once(transcript, logs, tmp_path):
    dialogue(transcript())
    (logs / "again").symlink_to(logs / "projects")
    (logs / "loop").symlink_to(logs)
    os.link(logs / "projects/p/s1.jsonl", logs / "hard.jsonl")
    assert len(read_logs(logs).calls) == 3
    (logs / "copy.jsonl").write_bytes((logs / "projects/p/s1.jsonl").read_bytes())
    reading = read_logs(logs)
    assert len(reading.calls) == 3
    assert reading.flags["duplicates"] == 3


def test_processes_give_what_one_gives(transcript, logs, monkeypatch):
    monkeypatch.setattr("spillway.seats.logs.PARALLEL_BYTES", 0)
    for number in range(4):
        dialogue(transcript(f"projects/p/{number}.jsonl", session=f"s{number}"))
    one, two = (activity([read_logs(logs, workers=workers)], 600) for workers in (1, 2))
    columns = ["start_s", "end_s", "output_tokens", "context_tokens"]
    assert one.calls[columns].equals(two.calls[columns])
    assert one.flags == two.flags


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda logs: None, "no such file or folder"),
        (lambda logs: logs.mkdir(), r"found no \.jsonl, \.json or \.csv file"),
        (lambda logs: (logs.mkdir(), (logs / "a.jsonl").write_text('{"talk": 1}\n')), "none of them a log of Claude Code"),
        (lambda logs: (logs.mkdir(), (logs / "a.json").write_text("{\n}\n" * 3)), "1 of another shape"),
        (lambda logs: (logs.mkdir(), (logs / "a.jsonl").write_text('{"type": "user", "timestamp": "2026-03-02T10:00:00Z"}\n')),
         "found logs as claude, but no response with a usable time"),
    ],
)  # fmt: skip
def test_nothing_to_read_is_said_with_the_remedy(logs, make, said):
    make(logs)
    with pytest.raises(SeatsError, match=said):
        read_logs(logs)


def test_the_wrong_format_is_said(transcript, logs):
    dialogue(transcript())
    with pytest.raises(SeatsError, match="none of them a log of codex"):
        read_logs(logs, "codex")


def test_a_line_longer_than_is_read_is_skipped_and_counted(transcript, logs, monkeypatch):
    monkeypatch.setattr("spillway.seats.logs.LINE_BYTES", 4096)
    log = transcript()
    dialogue(log, 1)
    log.user("10:01:00", extra="x" * 100_000)
    log.user("10:02:00")
    log.assistant("10:02:05", id="last")
    reading = read_logs(logs)
    assert len(reading.calls) == 2
    assert reading.flags["oversized_lines"] == 1


def test_memory_stays_bounded_for_a_line_of_40_mb(transcript, logs):
    log = transcript()
    dialogue(log, 2)
    log.user("10:05:00", toolUseResult="x" * 40_000_000)
    log.assistant("10:05:07", id="last")
    code = (
        "import resource, sys; from pathlib import Path; from spillway.seats.logs import read_logs\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "calls = read_logs(Path(sys.argv[1])).calls\n"
        "print(sorted(c.end_s - c.start_s for c in calls.values()), "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(logs)], capture_output=True, text=True, check=True, timeout=60).stdout
    lengths, grown_kib = out.rsplit(maxsplit=1)
    assert lengths == "[5.0, 5.0, 7.0]"
    assert int(grown_kib) < 200 * 1024


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["type", "timestamp", "sessionId", "uuid", "parentUuid", "requestId", "isSidechain", "agentId", "message", "payload",
          "data", "resourceLogs", "attributes", "body", "event.name", "duration_ms"]  # fmt: skip
MESSAGE = st.fixed_dictionaries(
    {}, optional={name: json_values for name in ("id", "model", "content", "usage", "type", "info")}
)
RECORD = st.dictionaries(st.sampled_from(FIELDS), json_values | MESSAGE, max_size=8).flatmap(
    lambda record: st.sampled_from(
        ["user", "assistant", "progress", "event_msg", "response_item", "session_meta", "api_request"]
    ).map(lambda kind: record | {"type": kind, "event.name": kind})
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(RECORD, min_size=1, max_size=5))
def test_no_record_however_odd_breaks_the_reader(tmp_path, records):
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    try:
        reading = read_logs(path)
    except SeatsError:
        return
    assert set(reading.flags) <= set(FLAGS)


SECRET = "SeCrEt"
SECRETS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=6).map(lambda text: SECRET + text)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SECRETS, min_size=9, max_size=9))
def test_no_text_of_a_log_leaves_it(tmp_path, capsys, secrets):
    """Every text in the log contains a mark: prompts, answers, paths, names, ids, models. None of it comes out anywhere."""
    prompt, answer, folder, branch, session, message, request, model, tool = secrets
    base = {"sessionId": session, "cwd": folder, "gitBranch": branch, "version": SECRET, "userType": SECRET}
    path = tmp_path / SECRET / "log.jsonl"
    path.parent.mkdir(exist_ok=True)
    content = [{"type": "text", "text": answer * 99}, {"type": "tool_use", "id": SECRET, "input": {tool: tool}}]
    reply = {"id": message, "model": model, "usage": {"input_tokens": 7, "output_tokens": 1}, "content": content}
    records = [
        base | {"type": "user", "uuid": SECRET + "1", "timestamp": "2026-03-02T10:00:00Z", "message": {"content": prompt}},
        base
        | {
            "type": "assistant",
            "uuid": SECRET + "2",
            "timestamp": "2026-03-02T10:00:09Z",
            "requestId": request,
            "message": reply,
        },
        base | {"type": "summary", "summary": prompt},
        {SECRET: SECRET},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    out = tmp_path / "profile.json"
    assert main([str(tmp_path / SECRET), "--zone", "UTC", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, out.read_text(encoding="utf-8")):
        assert SECRET not in text
    assert "1 responses" in shown.out


def test_files_of_other_programs_are_counted_as_such_and_not_as_broken_logs(transcript, logs):
    dialogue(transcript())
    (logs / "settings.json").write_text('{\n "a": 1\n}\n')
    flags = read_logs(logs).flags
    assert (flags["foreign_files"], flags["broken_lines"], flags["unrecognised"]) == (1, 0, 0)


def test_a_link_to_nowhere_is_counted(transcript, logs):
    dialogue(transcript())
    (logs / "gone.jsonl").symlink_to(logs / "nowhere.jsonl")
    reading = read_logs(logs)
    assert len(reading.calls) == 3
    assert reading.flags["unreadable_files"] == 1
