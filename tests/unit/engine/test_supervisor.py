"""What the supervisor tells its launcher, and how it ends."""

import os
import subprocess
import sys
import time

import pytest

from spillway.engine import supervisor


def supervise(command: list[str], launcher_pid: int | None = None) -> subprocess.Popen[str]:
    launcher_pid = os.getpid() if launcher_pid is None else launcher_pid
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, str(launcher_pid), "1", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("code", "told"), [("raise SystemExit(7)", "7"), ("import os; os.kill(os.getpid(), 9)", "-9")])
def test_exit_code_of_the_server_is_told(code: str, told: str) -> None:
    process = supervise([sys.executable, "-S", "-c", code])
    out, _ = process.communicate(timeout=10)
    started, ended = out.splitlines()
    assert started.startswith("started ")
    assert ended == f"exit {told}"
    assert process.returncode == 0


def test_sigterm_at_any_moment_of_its_end_is_no_failure() -> None:
    for _ in range(5):
        process = supervise([sys.executable, "-S", "-c", "pass"])
        assert process.stdout.readline().startswith("started ")
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            process.terminate()
            time.sleep(0.0005)
        process.communicate(timeout=10)
        assert process.returncode == 0


def test_launcher_that_is_not_its_parent_gets_no_server() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as other:
        process = supervise(["/bin/echo", "ran"], launcher_pid=other.pid)
        out, error = process.communicate(timeout=10)
        other.communicate(b"\n")
    assert (out, error, process.returncode) == ("", "", 0)
