"""Memory and ports of a process tree, as the kernel shows them."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from spillway.engine.processes import listens, process_memory
from spillway.engine.supervisor import descendants

HELD_BYTES = 64 * 1024 * 1024
# A parent that holds nothing and a child that holds 64 MiB of its own.
CHILD = f"import sys; held = b'x' * {HELD_BYTES}; print('held', flush=True); sys.stdin.read()"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])"


@contextmanager
def parent_and_child() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-S", "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def test_memory_counts_what_a_child_holds() -> None:
    with parent_and_child() as process:
        memory = process_memory(process.pid)
    assert HELD_BYTES < memory.uss_bytes <= memory.pss_bytes < HELD_BYTES + 40 * 1024 * 1024


def test_memory_of_a_process_that_has_ended_is_an_error_and_not_zero() -> None:
    done = subprocess.Popen([sys.executable, "-S", "-c", ""])
    done.wait()
    with pytest.raises(psutil.NoSuchProcess):
        process_memory(done.pid)


def test_descendants_are_those_that_psutil_finds() -> None:
    with parent_and_child():
        assert set(descendants()) == {process.pid for process in psutil.Process().children(recursive=True)}


def test_listens_tells_own_ports_from_others() -> None:
    with socket.socket() as own, parent_and_child() as process:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
        assert not listens(os.getpid(), port)  # bound is not listening
        own.listen()
        assert listens(os.getpid(), port)
        assert not listens(process.pid, port)
