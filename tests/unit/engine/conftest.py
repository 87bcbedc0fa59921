"""Stub servers, and the proof that nothing of them is left."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from spillway.engine import readiness
from spillway.engine.lock import lock_path
from spillway.engine.processes import LOCK_VARIABLE, marked_processes
from spillway.engine.server import Launch

STUB = Path(__file__).with_name("stub_server.py")


@dataclass(frozen=True)
class Notes:
    """What a stub server wrote down about itself."""

    folder: Path

    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def left(self) -> list[int]:
        """Process ids of the server's tree that still run, whether they bear our mark or not."""
        marked = {process.pid for process in marked_processes(LOCK_VARIABLE, str(lock_path()))}
        return sorted(marked | {pid for pid in self.pids() if runs(pid)})

    def await_none_left(self, patience_s: float = 60) -> list[int]:
        wait_until(lambda: not self.left(), patience_s)
        return self.left()

    def await_pids(self, count: int) -> None:
        """Wait until the server and `count` - 1 children of it have started."""
        assert wait_until(lambda: len(self.pids()) >= count)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], patience_s: float = 60) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the servers of a test apart from every other server on this machine."""
    monkeypatch.setenv("SPILLWAY_LOCK", str(tmp_path / "lock"))


@pytest.fixture(autouse=True)
def quick_health_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub server listens in a tenth of the time after which a real one is asked again."""
    monkeypatch.setattr(readiness, "HEALTH_POLL_S", 0.01)


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Notes]:
    folder = tmp_path / "notes"
    folder.mkdir()
    notes = Notes(folder)
    yield notes
    for pid in notes.left():  # only after a test that failed
        os.kill(pid, 9)


@pytest.fixture
def stub(notes: Notes) -> Callable[..., Launch]:
    """Build the launch of a stub server with the given behaviour."""

    def build(behaviour: str = "serve", **changes: object) -> Launch:
        settings: dict[str, object] = {
            "command": [sys.executable, "-S", str(STUB), behaviour, str(notes.folder)],
            "environment": {},
            "model": "stub",
            "vocabulary": range(4, 100),
            "full_batch": 3,
            "long_prefill_tokens": 50,
            "progress_timeout_s": 30.0,
            "stop_grace_s": 1.0,
        }
        return Launch(**(settings | changes))  # type: ignore[arg-type]

    return build
