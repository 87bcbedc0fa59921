"""Run a program that a model wrote: without network, without writable files, within limits of memory, time and processes.

Linux namespaces do it, through `unshare` and `setpriv` of util-linux: network, mounts, processes, IPC, and users unless
this process is root. Where the kernel refuses them, nothing is run, unless the caller accepts the weaker confinement by
name; each row says which it was. The programs get the standard library alone.
"""

import contextlib
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Literal

from spillway.quality import confined_start
from spillway.quality.errors import QualityError

Confinement = Literal["namespaces", "limits only"]
Ending = Literal["passed", "failed", "timeout"]

MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
PROCESSES = 16
TAIL_CHARS = 400
USER = "64999"
"""User of the programs where this process is root: the limit on processes does not hold for root. Of no other process, so
that only its own count."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended, and the end of what it wrote to standard error."""

    ending: Ending
    message: str


def run(program: str, mark: str, *, time_s: float, confinement: Confinement) -> Outcome:
    """Run a program; it has passed if the last line that it prints is `mark`.

    `time_s` limits its CPU time, and three times as much its wall time, so that a busy machine fails nobody. Raises
    QualityError where the confinement cannot be had.
    """
    if confinement == "namespaces" and (reason := no_namespaces()):
        raise QualityError(reason)
    return _run(program, mark, time_s, confinement)


@cache
def no_namespaces() -> str | None:
    """Why programs cannot be confined here, or None: a probe, run once, that must not reach the network or a file."""
    for tool in ("unshare", "setpriv"):
        if shutil.which(tool) is None:
            return f"confinement: no command {tool!r}; install util-linux, or accept the confinement 'limits only'"
    found = _run("print('probe')", "probe", 10, "namespaces")
    if found.ending == "passed":
        return None
    return (
        f"confinement: the kernel refuses namespaces here ({found.message or found.ending}); run it where they are allowed, "
        "or accept the confinement 'limits only' for programs that you trust"
    )


def _run(program: str, mark: str, time_s: float, confinement: Confinement) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="spillway-program-") as folder, tempfile.TemporaryFile() as source:
        os.chmod(folder, 0o755)
        for name in ("work", "python"):
            Path(folder, name).mkdir()
        source.write(program.encode())
        source.seek(0)
        limits = [str(MEMORY_BYTES), str(math.ceil(time_s) + 1), str(FILE_BYTES), str(PROCESSES)]
        with tempfile.TemporaryFile() as written, tempfile.TemporaryFile() as complaints:
            before_s = _children_cpu_s()
            process = subprocess.Popen(
                _command(folder, limits, confinement),
                stdin=source,
                stdout=written,
                stderr=complaints,
                env={"PATH": os.defpath},
                cwd="/",
                start_new_session=True,
            )
            try:
                process.wait(3 * time_s)
                timed_out = False
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            # The kernel ends a program a second past `time_s` of CPU time, and `unshare` does not pass on how it ended.
            timed_out = timed_out or _children_cpu_s() - before_s >= time_s
            lines = _tail(written).splitlines()
            if lines and lines[-1] == mark:
                return Outcome("passed", "")
            return Outcome("timeout" if timed_out else "failed", _tail(complaints).strip()[-TAIL_CHARS:])


def _command(folder: str, limits: list[str], confinement: Confinement) -> list[str]:
    # The virtual environment's interpreter is a link; the programs get what it links to, without any site packages.
    python = str(Path(sys.executable).resolve())
    if confinement == "limits only":
        return [python, "-I", "-S", "-c", _LIMITS_ONLY.format(start=confined_start.__file__, folder=folder), *limits]
    root = os.getuid() == 0
    apart = ["unshare", "--net", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    apart += [] if root else ["--user", "--map-root-user"]
    start = Path(confined_start.__file__).read_text(encoding="utf-8")
    return [*apart, python, "-I", "-S", "-c", start, folder, USER if root else "", *limits]


# The same limits and an empty folder, and nothing more.
_LIMITS_ONLY = """
import os, runpy, sys
start = runpy.run_path({start!r})
os.chdir({folder!r})
start["limit"](*map(int, sys.argv[1:]))
os.execve(sys.executable, [sys.executable, "-I", "-S", "-"], {{"HOME": {folder!r}, "TMPDIR": {folder!r}}})
"""


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tail(file: IO[bytes]) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - 4096))
    return file.read().decode(errors="replace")
