"""One measuring run at a time, whoever starts it and however the holder ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

from spillway.engine.lock import holder, lock_path, measuring

HOLD = (
    "import sys, time; from spillway.engine.lock import measuring\n"
    "with measuring(sys.argv[1]):\n"
    "    print('in', time.monotonic(), flush=True); sys.stdin.read(1); print('out', time.monotonic(), flush=True)"
)


def hold(experiment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, experiment],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_second_run_waits_for_the_first_and_says_for_whom() -> None:
    first, second = hold("e3_tpot_context"), None
    try:
        assert first.stdout.readline().startswith("in ")
        second = hold("e13_agents")
        waiting = second.stderr.readline()
        assert waiting.startswith(f"e13_agents waits: e3_tpot_context (pid {first.pid}, since 20")
        assert str(lock_path()) in waiting
        first_out, _ = first.communicate("x", timeout=10)
        second_out, _ = second.communicate("x", timeout=10)
        assert float(second_out.split()[1]) > float(first_out.split()[1])
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.communicate()


def test_killed_holder_leaves_no_lock() -> None:
    first = hold("e3_tpot_context")
    assert first.stdout.readline().startswith("in ")
    first.kill()
    first.communicate()
    with measuring("e13_agents"):
        assert json.loads(lock_path().read_text())["pid"] == os.getpid()


def test_lock_is_not_inherited_by_programs_that_the_holder_starts() -> None:
    with measuring("e3_tpot_context"):
        child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    second = hold("e13_agents")
    out, error = second.communicate("x", timeout=10)
    child.communicate(b"\n")
    assert out.startswith("in ") and error == ""


def test_lock_whose_file_was_removed_while_waiting_is_taken_anew() -> None:
    first = hold("e3_tpot_context")
    assert first.stdout.readline().startswith("in ")
    second = hold("e13_agents")
    assert "waits" in second.stderr.readline()
    lock_path().unlink()
    first.communicate("x", timeout=10)
    assert second.stdout.readline().startswith("in ")
    third = hold("e1_memory")
    assert "e1_memory waits: e13_agents" in third.stderr.readline()
    second.communicate("x", timeout=10)
    third.communicate("x", timeout=10)


def test_default_is_one_file_for_every_clone_of_the_user(monkeypatch) -> None:
    monkeypatch.delenv("SPILLWAY_LOCK")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert lock_path() == Path(f"/tmp/spillway-{os.getuid()}.lock")


def test_the_holder_is_told_to_whoever_asks_and_nobody_when_free() -> None:
    assert holder() is None
    first = hold("e3_tpot_context")
    try:
        assert first.stdout is not None and first.stdout.readline().startswith("in")
        said = holder()
        assert said is not None and said.startswith(f"e3_tpot_context (pid {first.pid}, since ")
    finally:
        first.kill()
        first.communicate()
    assert holder() is None
