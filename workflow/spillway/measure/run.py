"""One run of one experiment: where its raw data go, and how it reports."""

import contextlib
import dataclasses
import datetime
import sys
from pathlib import Path
from typing import TextIO

from spillway.measure.checkpoint import Rows, Tables
from spillway.spec.experiment import Resolved
from spillway.spec.shown import printable

__all__ = ["Rows", "Run", "Tables"]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one experiment: where its raw data go and how it reports."""

    asked: Resolved
    root: Path
    id: str
    log: TextIO

    @property
    def folder(self) -> Path:
        return self.root / "runs" / self.asked.host_name / self.asked.name / self.id

    def new_folder(self, name: str) -> Path:
        """A folder of the run that does not exist yet: a start that was interrupted keeps its own."""
        number, folder = 1, self.folder / name
        while folder.exists():
            number += 1
            folder = self.folder / f"{name} again {number}"
        return folder

    def say(self, text: str) -> None:
        """One line for the person who waits, and for the log; a full disk under the log stops no measurement."""
        now, text = datetime.datetime.now(datetime.UTC), printable(text)
        for stream in (sys.stderr, self.log):
            with contextlib.suppress(OSError):
                print(f"{now:%H:%M:%S} {self.asked.name}: {text}", file=stream, flush=True)
