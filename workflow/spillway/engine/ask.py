"""Run a program that answers in text and may hang, be absent or fail: nvidia-smi when its driver is in trouble."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KILLED_PATIENCE_S = 2.0


@dataclass(frozen=True)
class Answer:
    """What a program printed: on stdout, on stderr, and its exit status; `trouble` says in words why there is none."""

    out: str
    errors: str = ""
    status: int | None = 0
    trouble: str | None = None

    @property
    def fault(self) -> str | None:
        """None if the program answered; else what it said or what became of it, in one line."""
        if self.trouble is not None:
            return self.trouble
        if self.status == 0:
            return None
        said = " ".join(f"{self.errors} {self.out}".split())
        return said[:300] or f"ended with status {self.status} and said nothing"


def ask(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Answer:
    """Run a program to its end or for `timeout_s`; never raises for what the program does, nor waits for it longer.

    Its output goes to files and it gets a session of its own: a grandchild that keeps a pipe open, or a process that the
    kernel does not let go (in a driver's call that never returns), must not hold up the one that asks.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True, env=environment
            )
        except FileNotFoundError:
            return Answer("", status=None, trouble=f"{command[0]}: no such program")
        except OSError as error:
            return Answer("", status=None, trouble=f"{command[0]}: cannot be run: {error.strerror}")
        status: int | None = None
        trouble = None
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            trouble = f"{command[0]}: no answer within {timeout_s:g} s"
        finally:
            if status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(KILLED_PATIENCE_S)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return Answer(texts[0], texts[1], status, trouble)
