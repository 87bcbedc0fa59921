"""One experiment on one host, from what is asked to the published tables.

Everything raw stays in runs/<host>/<experiment>/<run id>/; the tables are published into data/<host>/ when all boots and
cells are done. A run that fails or is stopped publishes nothing; the next one goes on at the cell that was under way.
"""

import dataclasses
import datetime
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import spillway
from spillway.engine import host as machine
from spillway.engine.errors import ServerError
from spillway.engine.lock import measuring
from spillway.measure import checkpoint, resume
from spillway.measure.calculated import calculate
from spillway.measure.checkpoint import Ledger
from spillway.measure.errors import MeasureError
from spillway.measure.levels import capacity_rows
from spillway.measure.link_line import link_lines
from spillway.measure.machine import check_gpus, check_job
from spillway.measure.quality import measure_quality
from spillway.measure.run import Run
from spillway.measure.served import prepare, serve_and_measure
from spillway.measure.shifts import shift_tables
from spillway.measure.topology import measure_links
from spillway.record import journal, manifest
from spillway.record.provenance import code_hash, commit, new_run
from spillway.spec.experiment import Calculated, NotRun, OnHost, launched, resolve
from spillway.spec.quality import Quality
from spillway.spec.topology import LinkRates

RESUME_VARIABLE = "SPILLWAY_RESUME"
"""Environment variable; `never` measures anew where an interrupted run could go on."""
INTERRUPTIONS = (KeyboardInterrupt, SystemExit, ServerError, OSError)
"""What a run may be continued after; anything else is a fault of the experiment or of the code."""


def measure(root: Path, name: str, host_name: str, log: TextIO, anew: bool = False) -> list[Path]:
    """Measure an experiment and publish it; returns the published files, none where the host does not run it.

    Goes on with an interrupted run that asked the same of the same code, engine, model and machine, unless `anew`. Raises
    SpecError, MeasureError, ServerError, RecordError, FitError or SeatsError; then nothing is published.
    """
    asked = resolve(root, name, host_name)
    if isinstance(asked, NotRun):
        print(f"{name}: not run on {host_name}: {asked.not_run}", file=sys.stderr)
        return []
    if not asked.host.measured:
        raise MeasureError(
            f"experiments/hosts/{host_name}.yaml: measured: found false: that host is described, not measured here; "
            "on such a machine, set it to true"
        )
    if asked.host.nodes > 1:
        raise MeasureError(
            f"experiments/hosts/{host_name}.yaml: nodes: found {asked.host.nodes}; such a server is started by "
            "hand: `python -m spillway.measure EXPERIMENT --host HOST --dry-run` prints the commands"
        )
    check_job(asked.host, host_name, os.environ, len(os.sched_getaffinity(0)))
    check_gpus(asked)
    data = root / manifest.DATA
    with measuring(name):
        manifest.check_writable(data, host_name)
        manifest.complete(data)
        run = Run(asked, root, new_run(), log)
        if isinstance(asked.on, OnHost | Quality):
            ways, of_engine = prepare(run, asked.on if isinstance(asked.on, OnHost) else launched(asked.on))
            run, ledger = _open(run, _provenance(run) | of_engine, anew)
        else:
            run, ledger = _open(run, _provenance(run), anew=True)
        try:
            match asked.on:
                case Calculated():
                    calculate(run, asked.on, ledger.pending, ledger.origin)
                case LinkRates():
                    measure_links(run, asked.on, ledger.pending, ledger.origin)
                case OnHost():
                    serve_and_measure(run, asked.on, ways, ledger)
                case Quality():
                    measure_quality(run, asked.on, ways, ledger)
            resumed = ledger.resumed()
            origin = ledger.origin | ({"resumed": resumed} if resumed else {})
            tables = ledger.tables()
            if isinstance(asked.on, OnHost):
                tables |= shift_tables(asked.on, tables) | {
                    "link_line": link_lines(asked.on, tables),
                    "capacity": capacity_rows(asked, asked.on, tables),
                }
            written = checkpoint.write(run.folder, name, tables, origin)
            journal.note(run.folder, "measured", sha256=written)
        except BaseException as error:
            _stop(run, ledger, error)
            raise
        published = manifest.publish(run.folder, data)
        checkpoint.discard(run.folder)
        run.say(f"published {len(published)} tables in {published[0].parent}")
    return published


def _open(run: Run, origin: dict[str, Any], anew: bool) -> tuple[Run, Ledger]:
    """The interrupted run that goes on, with its ledger, or a new one with an empty ledger; says which and why."""
    earlier = resume.continued(run.folder.parent, run.asked.name, origin)
    if earlier is not None and not anew and os.environ.get(RESUME_VARIABLE) != "never":
        if earlier.ledger is not None:
            run = dataclasses.replace(run, id=earlier.run)
            if earlier.measured:
                run.say(f"goes on with run {run.id}, which was measured and only has to be published")
                return run, earlier.ledger
            was = resume.resume(earlier.ledger)
            steps = len({done.step for done in earlier.ledger.checkpoints})
            run.say(
                f"goes on with run {run.id}, of which {steps} steps are finished; interrupted at "
                f"{', '.join(f'{key} {value}' for key, value in was.items() if value is not None and key != 'reason')}: "
                f"{was['reason']} ({RESUME_VARIABLE}=never measures anew)"
            )
            return run, earlier.ledger
        run.say(f"does not go on with the interrupted run {earlier.run}: {earlier.reason}")
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    run.folder.mkdir(mode=0o700)  # logs and replies are the user's own until they are published
    journal.note(run.folder, "started", pid=os.getpid())
    run.say(f"run {run.id} on {run.asked.host_name}")
    return run, Ledger(run.folder, run.asked.name, origin, claimed=resume.claim(run.folder))


def _stop(run: Run, ledger: Ledger, error: BaseException) -> None:
    """Keep what the step under way had measured, and say how the run ended and what the next one will do."""
    goes_on = isinstance(error, INTERRUPTIONS)
    hint = f"; `snakemake {run.asked.name}` goes on from there" if goes_on and ledger.checkpoints else ""
    try:
        ledger.set_aside()
        journal.note(run.folder, "stopped", reason=_reason(error), again=goes_on)
    except OSError as also:  # the disk that stopped the run may refuse this, too; the checkpoints stand nevertheless
        hint += f" ({also.strerror} when its journal was written)"
    run.say(f"not finished, nothing published; what was measured is in {run.folder}{hint}")


def _reason(error: BaseException) -> str:
    match error:
        case KeyboardInterrupt():
            return "Ctrl-C"
        case SystemExit():
            return "SIGTERM"
        case _:
            return (str(error).splitlines() or [type(error).__name__])[0]


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
        "code_hash": code_hash(),
        "spillway": spillway.__version__,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **{f"host_{name}": value for name, value in machine.describe_host().items()},
    }
