"""Stand between the launcher and one server, so that the server's whole process tree ends with either of them.

    python supervisor.py LAUNCHER_PID GRACE_S COMMAND...

Runs by path and imports only the standard library, so it starts in milliseconds and does not depend on the engine's
environment. It is the subreaper of the server (prctl(2)): a process that leaves the server's session, or whose parent
dies, becomes a child of the supervisor instead of getting lost. It stops the tree when it is sent SIGTERM, when the
launcher ends in whatever way (SIGKILL included, by pidfd_open(2): Linux 5.3), or when the server itself ends.

Its stdout carries two lines for the launcher: `started PID` and, once the server has ended, `exit CODE`, negative for
a signal. Its stderr is the server's log.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
REST_GRACE_S = 1.0
"""How long the server's other processes get between SIGTERM and SIGKILL once the server itself is gone."""
KILL_PATIENCE_S = 10.0
"""How long the supervisor keeps sending SIGKILL before it gives up on processes that the kernel does not let go."""
POLL_S = 0.05


class Tree:
    """The server's process and all that descends from it."""

    def __init__(self, server_pid: int) -> None:
        self.server_pid = server_pid
        self.exit_code: int | None = None

    def reap(self) -> None:
        """Collect every child that has ended, and keep the server's exit code and report it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.server_pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
                tell(f"exit {self.exit_code}")

    def wait(self, patience_s: float, *, for_server: bool) -> bool:
        """Wait until the server, or all of the tree, has ended; False when `patience_s` is over first."""
        deadline = time.monotonic() + patience_s
        while True:
            self.reap()
            if self.exit_code is not None if for_server else not descendants():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)

    def stop(self, grace_s: float) -> bool:
        """End the tree: SIGTERM to the server, then to what it left behind, then SIGKILL; False if any survives."""
        # The server first and alone: it knows in which order its own processes end, and frees shared memory.
        if self.exit_code is None:
            send(self.server_pid, signal.SIGTERM)
            self.wait(grace_s, for_server=True)
        if self.exit_code is not None:
            for pid in descendants():
                send(pid, signal.SIGTERM)
            if self.wait(REST_GRACE_S, for_server=False):
                return True
        deadline = time.monotonic() + KILL_PATIENCE_S
        while time.monotonic() < deadline:  # again and again: a process may have forked while the list was made
            for pid in descendants():
                send(pid, signal.SIGKILL)
            if self.wait(POLL_S, for_server=False):
                return True
        return False


def descendants() -> list[int]:
    """Process ids of everything that descends from this process, from /proc/PID/stat."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        # FileNotFoundError, ProcessLookupError: it ended while the list was made.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name in brackets may itself hold brackets and spaces: the fields start after the last bracket.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found: list[int] = []
    ahead = [os.getpid()]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def tell(line: str) -> None:
    """Write one line to the launcher, which may be gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{line}\n".encode())


def main(launcher_pid: int, grace_s: float, command: list[str]) -> int:
    """Run the server until it, its launcher or a signal ends it; 0 when nothing of its tree is left, else 1."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    signals, wake = os.pipe()
    os.set_blocking(signals, False)
    os.set_blocking(wake, False)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # a handler must be there for the number to reach the pipe
    signal.set_wakeup_fd(wake)

    try:
        launcher = os.pidfd_open(launcher_pid)
    except ProcessLookupError:
        return 0
    if os.getppid() != launcher_pid:  # it ended before the line above, and its number may be somebody else's by now
        return 0
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, process_group=0)
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr, flush=True)
        tell("exit 127")
        return 0
    tell(f"started {server.pid}")

    tree = Tree(server.pid)
    while tree.exit_code is None:
        ready, _, _ = select.select([signals, launcher], [], [])
        if launcher in ready or STOP_SIGNALS.intersection(os.read(signals, 512)):
            break
        tree.reap()
    stopped = tree.stop(grace_s)
    for number in STOP_SIGNALS:  # Python's exit would put the default back, and a late SIGTERM would look like a failure
        signal.signal(number, signal.SIG_IGN)
    if stopped:
        return 0
    print(f"processes that SIGKILL did not end: {descendants()}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
