"""The rows of a run, step by step on disk, so that a run that was interrupted goes on at its next cell.

A step is a start of the server, a cell, the end of a boot, or an attempt. Its rows lie in runs/.../<run id>/finished/<number>/,
one Parquet file for each table, in a folder that appears whole or not at all. A step that is under way when the run is
stopped is measured again; what it had measured goes to interrupted/<number>/ and is used for nothing.

Which run goes on is decided in resume.py. What was then measured on another start of the server than the boot's first cells
says so: every row gets the column `start`, the cells of a boot with several starts are marked, and the provenance lists each
interruption under `resumed`.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from spillway.record import journal, parquet

Rows = list[dict[str, Any]]
Tables = dict[str, Rows]

FINISHED, INTERRUPTED = "finished", "interrupted"
STEP = "step.json"


@dataclass(frozen=True)
class Step:
    """One step of a run: `what` is `start`, `cell`, `end` or `attempt`; `name` is the cell's or the attempt's."""

    what: str
    boot: int | None = None
    arm: str = ""
    name: str = ""

    @property
    def columns(self) -> dict[str, Any]:
        """The step as the journal and the provenance give it."""
        return {"step": self.what, "boot": self.boot, "arm": self.arm or None, "cell": self.name or None}


@dataclass
class Checkpoint:
    """Rows of a finished step, and on which start of the server they were measured, from 0."""

    step: Step
    start: int
    tables: Tables


@dataclass
class Ledger:
    """All rows of a run: those of finished steps, which are on disk, and those of the step that is under way."""

    folder: Path
    experiment: str
    origin: dict[str, Any]
    """The run's provenance, which every file gets."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    pending: Tables = field(default_factory=dict)
    starts: int = 0
    """Starts of a server so far, those that failed or were killed among them."""
    claimed: BinaryIO | None = None
    """Keeps other processes from going on with this run as long as this one lives."""

    def begin(self, step: Step) -> None:
        """Say which step is under way; raises OSError if the disk does not take it."""
        journal.note(self.folder, "begins", **step.columns)
        if step.what == "start":
            self.starts += 1

    def add(self, table: str, rows: Rows) -> None:
        """Keep rows of the step that is under way."""
        self.pending.setdefault(table, []).extend(rows)

    def finished(self, step: Step) -> bool:
        """Whether the rows of a step are on disk."""
        return any(checkpoint.step == step for checkpoint in self.checkpoints)

    def finish(self, step: Step) -> None:
        """Write the rows of the step that was under way; when this returns, no kill or power cut can lose them."""
        start = max(0, self.starts - 1)
        number = len(self.checkpoints)
        partial = self.folder / FINISHED / f".{number:04}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tables = {table: rows for table, rows in self.pending.items() if rows}
        for table, rows in tables.items():
            parquet.write(partial / f"{table}.parquet", table, rows, self.origin)
        hashes = {path.name: parquet.sha256(path) for path in partial.iterdir()}
        (partial / STEP).write_text(json.dumps({"step": vars(step), "start": start, "sha256": hashes}))
        for path in partial.iterdir():
            _sync(path)
        _sync(partial)
        partial.rename(self.folder / FINISHED / f"{number:04}")
        _sync(self.folder / FINISHED)
        self.checkpoints.append(Checkpoint(step, start, tables))
        self.pending = {}

    def set_aside(self) -> None:
        """Write what the interrupted step had measured to where nothing reads it, for whoever looks for the reason."""
        if any(self.pending.values()):
            into = self.folder / INTERRUPTED
            number = len(list(into.iterdir())) if into.exists() else 0
            write(into / f"{number:04}", self.experiment, self.pending, self.origin)

    def resumed(self) -> list[dict[str, Any]]:
        """Where and why the run was interrupted, as the provenance gives it; empty for a run in one piece."""
        keys = ("step", "boot", "arm", "cell", "reason", "at")
        resumed = [event for event in journal.events(self.folder) if event["event"] == "resumed"]
        return [{key: event.get(key) for key in keys} for event in resumed]

    def tables(self) -> Tables:
        """All rows of the run; of one that was continued, with the start that measured each, and with marks."""
        resumed = bool(self.resumed())
        split = self._split_boots() if resumed else {}
        tables: Tables = {}
        for checkpoint in [*self.checkpoints, Checkpoint(Step("end"), max(0, self.starts - 1), self.pending)]:
            for table, rows in checkpoint.tables.items():
                for row in rows:
                    if resumed and table in WITH_START:
                        row = row | {"start": checkpoint.start}
                    if table == "cells" and (starts := split.get((checkpoint.step.boot, checkpoint.step.arm))):
                        row = marked(row, f"split_boot: cells of this boot come from starts {starts} of the server")
                    tables.setdefault(table, []).append(row)
        if "arms" in tables:  # a later row of a boot replaces the one of an earlier start, or of a start that failed later
            tables["arms"] = list({(row["boot"], row["arm"]): row for row in tables["arms"]}.values())
        return tables

    def _split_boots(self) -> dict[tuple[int | None, str], str]:
        """Boots whose finished cells come from several starts of the server -> these starts."""
        starts: dict[tuple[int | None, str], list[int]] = {}
        for checkpoint in self.checkpoints:
            if checkpoint.step.what == "cell":
                found = starts.setdefault((checkpoint.step.boot, checkpoint.step.arm), [])
                if checkpoint.start not in found:
                    found.append(checkpoint.start)
        return {boot: ", ".join(map(str, found)) for boot, found in starts.items() if len(found) > 1}


WITH_START = frozenset({"boots", "memory", "cells", "requests", "chunks", "server_metrics", "client_metrics", "gpu_metrics"})
"""Tables whose rows belong to one start of the server."""


def marked(cell: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """A row of `cells` with one more mark."""
    others = [] if cell["marks"] == "none" else [cell["marks"]]
    outcome = "marked" if cell["outcome"] == "measured" else cell["outcome"]
    return dict(cell) | {"outcome": outcome, "marks": "; ".join([*others, mark.replace(";", ",")])}


def write(folder: Path, experiment: str, tables: Tables, origin: Mapping[str, Any]) -> dict[str, str]:
    """Write tables as <experiment>.<table>.parquet; returns file name -> SHA-256. One without rows has no file."""
    written = {}
    for table, rows in tables.items():
        if rows:  # a host without GPUs has no GPU telemetry
            path = folder / f"{experiment}.{table}.parquet"
            parquet.write(path, table, rows, origin)
            written[path.name] = parquet.sha256(path)
    return written


def discard(folder: Path) -> None:
    """Remove the checkpoints of a run that is published: its tables hold the same rows."""
    shutil.rmtree(folder / FINISHED, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
