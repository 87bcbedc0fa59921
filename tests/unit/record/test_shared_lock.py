"""Publications from several processes into one folder: one at a time, and none is lost."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spillway.record import manifest, parquet, shared_lock

HOLD = (
    "import sys; from pathlib import Path; from spillway.record.shared_lock import publishing\n"
    "with publishing(Path(sys.argv[1])):\n"
    "    print('in', flush=True); sys.stdin.read(1)"
)
PUBLISH = (
    "import sys; from pathlib import Path; from spillway.record import manifest\n"
    "for run in sys.argv[2:]:\n"
    "    manifest.publish(Path(run), Path(sys.argv[1]))\n"
    "    manifest.check_writable(Path(sys.argv[1]), 'cpu')"
)


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def held_elsewhere(data: Path) -> bool:
    """Whether another process has the lock: asked of the kernel, as fcntl(2)'s F_GETLK would."""
    with shared_lock.lock_file(data).open("r+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_the_lock_goes_with_its_holder_however_that_ends(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    holder = start(HOLD, str(data))
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "in\n"
        assert held_elsewhere(data)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(30)
        assert not held_elsewhere(data)
        with shared_lock.publishing(data):  # does not wait for anybody
            pass
    finally:
        holder.kill()
        holder.communicate()


def test_the_data_folder_holds_data_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with shared_lock.publishing(data):
        assert list(data.iterdir()) == []


def test_publishers_of_two_experiments_and_two_hosts_lose_nothing(tmp_path: Path) -> None:
    """Four processes publish ten runs each; the manifest is read, merged and replaced forty times."""
    rows = [{"run": "r", "boot": 0, "startup_s": 1.0, "health_s": 1.0, "process_memory_bytes": 1}]
    data, processes = tmp_path / "data", []
    for host in ("cpu", "gpu"):
        for experiment in ("e1", "e13"):
            runs = []
            for number in range(10):
                folder = tmp_path / "runs" / host / experiment / f"20260101T0000{number:02}Z-00000000"
                origin = {name: "x" for name in manifest.COLUMNS[4:]}
                origin |= {"run": folder.name, "experiment": experiment, "host": host, "dirty": False}
                parquet.write(folder / f"{experiment}.boots.parquet", "boots", rows, origin)
                runs.append(str(folder))
            processes.append(start(PUBLISH, str(data), *runs))
    for process in processes:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
    listed = manifest.read_manifest(data)
    assert sorted(listed) == [f"{host}/{name}.boots.parquet" for host in ("cpu", "gpu") for name in ("e1", "e13")]
    assert {row["run"] for row in listed.values()} == {"20260101T000009Z-00000000"}
    for file in listed:
        manifest.verify(data, file, listed)
    assert not list(data.rglob(".*")), json.dumps([str(path) for path in data.rglob(".*")])


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with (
        pytest.raises(parquet.RecordError, match=r"\.data\.lock: the file system gives no lock .* without `nolock`"),
        shared_lock.publishing(tmp_path / "data"),
    ):
        pass
