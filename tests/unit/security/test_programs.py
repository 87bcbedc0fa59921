"""Programs that a model wrote, here by an attacker: they get no network, no file, no other process, and end in time."""

import os
import socket
import time
from pathlib import Path

import psutil
import pytest

from spillway.quality.confined import Outcome, no_namespaces, run

MARK = "2b7e-passed"
pytestmark = pytest.mark.skipif(no_namespaces() is not None, reason=no_namespaces() or "")


def attack(program: str, time_s: float = 10) -> Outcome:
    """Run a program that prints the mark if its attack was thwarted, and does not if it was not."""
    return run(program + f"\nprint({MARK!r})\n", MARK, time_s=time_s, confinement="namespaces")


def thwarted(statement: str, *errors: str) -> str:
    """A program in which the statement must fail with one of the errors."""
    caught = f"except ({', '.join(errors)},):\n    pass\nelse:\n    raise SystemExit('it worked')"
    return f"import os, signal, socket, subprocess, ctypes\ntry:\n    {statement}\n{caught}"


def test_reaches_no_server_on_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        assert attack(thwarted(f"socket.create_connection(('127.0.0.1', {port}), 2)", "OSError")).ending == "passed"
        with pytest.raises(TimeoutError):
            server.accept()


def test_reaches_no_socket_in_the_file_system(tmp_path: Path) -> None:
    for folder in (tmp_path, Path("/"), *tmp_path.parents):
        assert folder.exists()
    os.chmod(tmp_path, 0o777)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0spillway-security-test")  # an abstract name belongs to the network namespace
        server.listen()
        program = "s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + 'spillway-security-test')"
        assert attack(thwarted(program, "OSError")).ending == "passed"


@pytest.mark.parametrize("place", ["/tmp/pwned", "/dev/shm/pwned", "/var/tmp/pwned", "/pwned", str(Path.home() / "pwned")])
def test_writes_nothing_outside_its_folder(place: str) -> None:
    assert attack(thwarted(f"open({place!r}, 'w').write('x')", "OSError")).ending == "passed"
    assert not Path(place).exists()


def test_changes_no_file_that_it_can_see(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for path in (tmp_path, mine):
        os.chmod(path, 0o777)
    for folder in tmp_path.parents[:-2]:
        assert folder.exists()
    for statement in (f"open({str(mine)!r}, 'w')", f"os.remove({str(mine)!r})", f"os.chmod({str(mine)!r}, 0)"):
        assert attack(thwarted(statement, "OSError")).ending == "passed"
    assert mine.read_text() == "mine" and mine.stat().st_mode & 0o777 == 0o777


def test_makes_no_mount_writable_again() -> None:
    remount = "r = ctypes.CDLL(None, use_errno=True).mount(None, b'/', None, ctypes.c_ulong(32 | 4096), None); assert r == 0"
    assert attack(thwarted(remount, "AssertionError")).ending == "passed"
    assert attack(thwarted("os.setuid(0); os.unshare(0x00020000) if hasattr(os, 'unshare') else 1 / 0", "OSError",
                           "ZeroDivisionError")).ending == "passed"  # fmt: skip


def test_ends_no_process_but_its_own() -> None:
    for target in (os.getpid(), os.getppid(), 1, -1):
        before = os.getppid()
        outcome = attack(thwarted(f"os.kill({target}, signal.SIGKILL)", "OSError"))
        assert outcome.ending in ("passed", "failed"), "its own namespace's first process may end it"
        assert os.getppid() == before


def test_reads_no_environment_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_TEST_SECRET", "sk-very-secret")
    program = f"""
import os, glob
assert 'SPILLWAY_TEST_SECRET' not in os.environ
for path in ['/proc/{os.getpid()}/environ', '/proc/{os.getppid()}/environ', *glob.glob('/proc/[0-9]*/environ')]:
    try:
        content = open(path, 'rb').read()
    except OSError:
        continue
    if b'sk-very-secret' in content:
        raise SystemExit(path)
"""
    assert attack(program) == Outcome("passed", "")


def test_a_fork_bomb_stays_small_and_ends() -> None:
    program = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    before = {process.pid for process in psutil.process_iter()}
    started = time.monotonic()
    assert attack(program, time_s=1).ending in ("timeout", "failed")
    assert time.monotonic() - started < 60

    def left() -> list[psutil.Process]:
        found = [process for process in psutil.process_iter(["uids", "status"]) if process.pid not in before]
        return [process for process in found if process.info["uids"] and process.info["uids"].real == 64999
                and process.info["status"] != psutil.STATUS_ZOMBIE]  # fmt: skip

    while left() and time.monotonic() - started < 60:
        time.sleep(0.05)
    assert left() == []


def test_memory_and_files_are_limited() -> None:
    assert attack(thwarted("x = bytearray(3 << 30)", "MemoryError")).ending == "passed"
    full = "f = open('x', 'wb'); [f.write(bytes(1 << 20)) for _ in range(64)]; f.flush()"
    assert (
        attack("import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + thwarted(full, "OSError")).ending == "passed"
    )


def test_a_program_that_leaves_children_behind_leaves_none() -> None:
    child = "os.setsid()\n    open('/proc/self/comm', 'w').write('spillway-left')\n    time.sleep(600)\n"
    program = f"import os, time\nif os.fork() == 0:\n    {child}"
    attack(program, time_s=5)
    assert [process for process in psutil.process_iter(["name"]) if process.info["name"] == "spillway-left"] == []


def test_a_program_that_ends_well_without_the_mark_has_failed() -> None:
    assert run("print('something else')", MARK, time_s=5, confinement="namespaces").ending == "failed"
    assert run("raise SystemExit(0)", MARK, time_s=5, confinement="namespaces").ending == "failed"


def test_endless_output_fills_no_disk() -> None:
    outcome = attack("while True:\n    print('x' * 100_000)\n", time_s=2)
    assert outcome.ending in ("failed", "timeout")
