"""The launcher is interrupted, ended or killed: no process of its server is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from spillway.engine.errors import LeftoverServer
from spillway.engine.server import Launch, refuse_leftovers, serve

LAUNCHER = Path(__file__).with_name("launcher.py")


class Launcher:
    def __init__(self, behaviour: str, notes: Path, folder: Path, grace_s: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(LAUNCHER), behaviour, str(notes), str(folder), str(grace_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def await_ready(self) -> int:
        assert self.process.stdout is not None
        word, pid = self.process.stdout.readline().split()
        assert word == "ready"
        return int(pid)

    def supervisor(self) -> int:
        return next(p.pid for p in psutil.Process(self.process.pid).children() if "supervisor.py" in str(p.cmdline()))


@pytest.fixture
def launch_stub(notes, tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    started: list[Launcher] = []

    def start(behaviour: str = "lost-child", grace_s: float = 5) -> Launcher:
        started.append(Launcher(behaviour, notes.folder, tmp_path / f"run{len(started)}", grace_s))
        return started[-1]

    yield start
    for launcher in started:
        launcher.process.kill()
        launcher.process.communicate()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_interrupted_launcher_unwinds_and_leaves_nothing(number, status, launch_stub, notes) -> None:
    launcher = launch_stub()
    launcher.await_ready()
    launcher.process.send_signal(number)
    output, _ = launcher.process.communicate(timeout=20)
    assert output == "unwound\n"
    assert launcher.process.returncode == status
    assert notes.left() == []


def test_sigterm_before_ready_leaves_nothing(launch_stub, notes) -> None:
    launcher = launch_stub("never-healthy")
    notes.await_pids(1)
    launcher.process.send_signal(signal.SIGTERM)
    launcher.process.communicate(timeout=20)
    assert launcher.process.returncode == 143
    assert notes.left() == []


def test_killed_launcher_leaves_nothing(launch_stub, notes) -> None:
    launcher = launch_stub()
    launcher.await_ready()
    assert len(notes.pids()) == 2
    launcher.process.kill()
    assert notes.await_none_left() == []


def test_killed_process_group_of_the_launcher_leaves_nothing(launch_stub, notes) -> None:
    launcher = launch_stub()
    launcher.await_ready()
    os.killpg(launcher.process.pid, signal.SIGKILL)
    assert notes.await_none_left() == []


def test_launcher_killed_before_ready_leaves_nothing(launch_stub, notes) -> None:
    launcher = launch_stub("never-healthy")
    notes.await_pids(1)
    launcher.process.kill()
    assert notes.await_none_left() == []


def test_leftover_server_is_refused_and_named(launch_stub, notes, stub: Callable[..., Launch], tmp_path: Path) -> None:
    """Only killing launcher and supervisor at once leaves a server behind, here as the kernel would out of memory."""
    launcher = launch_stub("serve")
    server_pid = launcher.await_ready()
    supervisor_pid = launcher.supervisor()
    launcher.process.send_signal(signal.SIGSTOP)  # so that it cannot act on the supervisor's end
    os.kill(supervisor_pid, signal.SIGKILL)
    launcher.process.kill()
    launcher.process.wait()

    with pytest.raises(LeftoverServer) as refusal, serve(stub(stop_grace_s=0.5), tmp_path / "next", ready_timeout_s=60):
        pytest.fail("a second server was started beside the first")
    assert f"pid {server_pid}: " in str(refusal.value)
    assert f"kill {server_pid}" in str(refusal.value)
    assert not (tmp_path / "next").exists()

    os.kill(server_pid, signal.SIGKILL)
    assert notes.await_none_left() == []
    refuse_leftovers(0)


def test_server_that_is_just_ending_is_waited_for(launch_stub, notes, stub: Callable[..., Launch], tmp_path) -> None:
    launcher = launch_stub("deaf", grace_s=0.5)
    launcher.await_ready()
    launcher.process.kill()
    with serve(stub(stop_grace_s=10), tmp_path / "next", ready_timeout_s=60) as running:
        assert notes.left() == sorted([running.pid, running._supervisor.pid])


def test_server_under_another_lock_is_none_of_our_business(launch_stub, tmp_path, monkeypatch) -> None:
    launch_stub("serve").await_ready()
    monkeypatch.setenv("SPILLWAY_LOCK", str(tmp_path / "other"))
    refuse_leftovers(0)
