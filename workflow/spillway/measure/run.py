"""One run of one experiment: who is asked, where its raw data go, and the publication of its tables.

Everything raw stays in runs/<host>/<experiment>/<run id>/; the tables are published into data/<host>/ when all boots and
cells are done. A run that fails or is stopped publishes nothing, and its folder keeps what was measured until then.
"""

import dataclasses
import datetime
import sys
from pathlib import Path
from typing import Any, TextIO

import spillway
from spillway.engine import host as machine
from spillway.engine.lock import measuring
from spillway.record import manifest, parquet
from spillway.record.provenance import commit, new_run
from spillway.spec.experiment import Calculated, NotRun, Resolved, resolve

Rows = list[dict[str, Any]]
Tables = dict[str, Rows]


class MeasureError(Exception):
    """A measurement cannot start; the message says what is missing and how to make it."""


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

    def say(self, text: str) -> None:
        """One line for the person who waits, and for the log."""
        now = datetime.datetime.now(datetime.UTC)
        for stream in (sys.stderr, self.log):
            print(f"{now:%H:%M:%S} {self.asked.name}: {text}", file=stream, flush=True)


def measure(root: Path, name: str, host_name: str, log: TextIO) -> list[Path]:
    """Measure an experiment anew and publish it; returns the published files, none where the host does not run it.

    Raises SpecError, MeasureError, ServerError, RecordError, FitError or SeatsError; then nothing is published.
    """
    from spillway.measure.calculated import calculate
    from spillway.measure.served import serve_and_measure

    asked = resolve(root, name, host_name)
    if isinstance(asked, NotRun):
        print(f"{name}: not run on {host_name}: {asked.not_run}", file=sys.stderr)
        return []
    if not asked.host.measured:
        raise MeasureError(
            f"experiments/hosts/{host_name}.yaml: measured: found false: that host is described, not measured here"
        )
    with measuring(name):
        run = Run(asked, root, new_run(), log)
        run.folder.mkdir(parents=True)
        run.say(f"run {run.id} on {host_name}")
        origin = _provenance(run)
        tables: Tables = {}
        try:
            if isinstance(asked.on, Calculated):
                calculate(run, asked.on, tables, origin)
            else:
                serve_and_measure(run, asked.on, tables, origin)
        except BaseException:
            _write(run.folder / "partial", name, tables, origin)
            run.say(f"not finished, nothing published; what was measured is in {run.folder}")
            raise
        _write(run.folder, name, tables, origin)
        published = manifest.publish(run.folder, root / manifest.DATA)
        run.say(f"published {len(published)} tables in {published[0].parent}")
    return published


def _write(folder: Path, experiment: str, tables: Tables, origin: dict[str, Any]) -> None:
    for table, rows in tables.items():
        if rows:  # a host without GPUs has no GPU telemetry
            parquet.write(folder / f"{experiment}.{table}.parquet", table, rows, origin)


def _provenance(run: Run) -> dict[str, Any]:
    """What stands in every file of the run, so that each can be audited alone; what is known of an engine joins later."""
    asked, here = run.asked, commit(run.root)
    return {
        "run": run.id,
        "experiment": asked.name,
        "host": asked.host_name,
        "host_title": asked.host.title,
        "spec_hash": asked.hash,
        "commit": here.id,
        "dirty": here.dirty,
        "spillway": spillway.__version__,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **{f"host_{name}": value for name, value in machine.describe_host().items()},
    }
