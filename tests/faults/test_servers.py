"""Servers that hang, are slow, run out of memory or find their port taken: told, survived, and the next run works."""

import os
import signal

import pytest

from tests.conftest import Project
from tests.faults.aftermath import assert_whole, command_of, gone, ours, published, read_published, wait_for
from tests.faults.conftest import CAMPAIGN, Fault, ask, with_faulty_server
from tests.faults.test_kills import EXPERIMENT, MEASURE, assert_each_cell_once, journal_lines


def shorter_patience(project: Project) -> None:
    project.edit("experiments/hosts/cpu.yaml", "ready_timeout_s: 300", "ready_timeout_s: 8\n  answer_timeout_s: 2.0")


@pytest.mark.parametrize(
    ("name", "flags", "message", "remedy"),
    [
        ("out of memory at load", ["--fault", "out-of-memory-at-load"], "exited with status 1", "its memory ran out"),
        (
            "out of memory at the first request",
            ["--fault", "out-of-memory-at-first-request"],
            "during prefill: the server",
            "its memory ran out",
        ),
        ("port taken", ["--fault", "port-taken"], "address already in use", "it will get another one"),
        pytest.param(
            "server hangs at the first request",
            ["--hang-after-requests", "0"],
            "not ready: prefill",
            "answer_timeout_s",
            marks=CAMPAIGN,
        ),
        pytest.param("server starts too slowly", ["--startup-s", "60"], "not ready: health", "ready_timeout_s", marks=CAMPAIGN),
    ],
)
def test_a_server_that_cannot_serve_is_told(
    small: Project, fault: Fault, name: str, flags: list[str], message: str, remedy: str
) -> None:
    shorter_patience(small)
    with_faulty_server(small, *flags)
    before = read_published(small)
    with fault(name) as landed:
        done = small.run(*MEASURE)
        landed()
        assert done.returncode == 1
        assert "Traceback (most recent call last)" not in done.stderr.replace("  | Traceback", "")
        assert message in done.stderr and remedy in done.stderr and "server.log" in done.stderr, done.stderr
        assert gone(small) and not assert_whole(small, before, EXPERIMENT)
        with_faulty_server(small)
        again = small.run(*MEASURE)
        assert again.returncode == 0, again.stderr
        assert assert_whole(small, before, EXPERIMENT)
        assert_each_cell_once(small)


@CAMPAIGN
def test_a_slow_start_within_its_time_is_no_failure(small: Project, fault: Fault) -> None:
    with_faulty_server(small, "--startup-s", "3")
    with fault("slow start") as landed:
        done = small.run(*MEASURE)
        landed()
        assert done.returncode == 0, done.stderr
        assert published(small, f"{EXPERIMENT}.boots").startup_s.min() > 3
        assert gone(small)


@CAMPAIGN
@pytest.mark.timeout(400)
def test_a_server_that_hangs_in_a_cell_is_a_failed_cell_and_no_hanging_run(small: Project, fault: Fault) -> None:
    """Stopped by a signal, as a kernel that is out of memory or a debugger would: alive, and silent on every connection."""
    shorter_patience(small)
    ask(small, output_tokens=2000)
    with_faulty_server(small, "--tokens-per-second", "200")
    with fault("server hangs in a cell (SIGSTOP)") as landed:
        process = small.start(*MEASURE)
        assert wait_for(lambda: journal_lines(small) >= 3, 60)
        for pid in ours(small):
            if "faulty_server.py" in command_of(pid) and "supervisor.py" not in command_of(pid):
                os.kill(pid, signal.SIGSTOP)
                landed()
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        assert "failed: failed_requests" in output
        cells = published(small, f"{EXPERIMENT}.cells").set_index("cell")
        assert (cells.outcome == "failed").any() and cells.requests_timeout.sum() > 0
        assert gone(small)


def test_a_server_left_behind_is_refused_by_name_and_the_next_run_works(small: Project, fault: Fault) -> None:
    """Launcher and supervisor killed at once, as by the kernel out of memory: nobody is left to stop the server."""
    with_faulty_server(small, "--tokens-per-second", "2")
    with fault("kill -9 of launcher and supervisor at once") as landed:
        process = small.start(*MEASURE)
        assert wait_for(lambda: [pid for pid in ours(small) if "faulty_server" in command_of(pid)], 60)
        supervisors = [pid for pid in ours(small) if "supervisor.py" in command_of(pid)]
        os.kill(process.pid, signal.SIGSTOP)  # so that it cannot act on the supervisor's end
        for pid in [*supervisors, process.pid]:
            os.kill(pid, signal.SIGKILL)
        landed()
        process.wait()
        left = [pid for pid in ours(small) if "faulty_server" in command_of(pid)]
        assert left
        refused = small.run(*MEASURE)
        assert refused.returncode == 1
        assert f"stop it with `kill {left[0]}`" in refused.stderr and "Traceback" not in refused.stderr
        os.kill(left[0], signal.SIGTERM)
        assert gone(small)
        with_faulty_server(small)
        again = small.run(*MEASURE)
        assert again.returncode == 0, again.stderr
        assert_each_cell_once(small)
