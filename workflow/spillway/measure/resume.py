"""Which interrupted run goes on, and which does not.

A run is continued by the next one that asks the same of the same code, engine, model and machine, and only if it stopped for
a reason that lies outside of it: a kill, Ctrl-C, a server that died, a full disk. A run that is published is never continued,
nor is any that is older than a published one.
"""

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from spillway.measure.checkpoint import FINISHED, STEP, Checkpoint, Ledger, Step
from spillway.record import journal, parquet
from spillway.record.parquet import RecordError

KILLED = "it ended without a word: killed, or the machine stopped"
NOT_COMPARED = frozenset({"run", "measured_at", "engine", "host_boot_id"})
"""Keys of the provenance that may differ between the two parts of a run; the engine's version is compared once it is up."""


def claim(folder: Path) -> BinaryIO | None:
    """Hold a run for this process until it ends in whatever way; None if another holds it, on this machine or another.

    Two machines that share the folder have a measuring lock each, and one would take the other's run for an interrupted one.
    """
    file = (folder / journal.FILE).open("rb+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


@dataclass(frozen=True)
class Earlier:
    """An interrupted run: its ledger if it can be continued, else why not."""

    run: str
    ledger: Ledger | None
    reason: str = ""
    measured: bool = False
    """All of it was measured; only its publication is missing."""


def continued(runs: Path, experiment: str, origin: Mapping[str, Any]) -> Earlier | None:
    """The newest run below `runs` that was interrupted with something finished; None if there is none.

    Nothing older than a published run is looked at, and a run that ended by a fault of the experiment is left alone. Raises
    nothing for a run that is damaged: it is not continued, and `reason` says why.
    """
    for folder in sorted(runs.iterdir() if runs.exists() else [], reverse=True):
        events = journal.events(folder)
        if any(event["event"] == "published" for event in events):
            return None
        stopped = [event for event in events if event["event"] == "stopped"]
        if not events or not (folder / FINISHED).is_dir() or (stopped and not stopped[-1].get("again")):
            continue
        claimed = claim(folder)
        if claimed is None:
            return Earlier(folder.name, None, "it is under way, here or on a machine that shares this folder")
        try:
            ledger = _load(folder, experiment)
        except (OSError, RecordError, ValueError, TypeError, KeyError) as error:
            return Earlier(folder.name, None, f"its checkpoints cannot be read: {error}")
        if ledger is None:
            continue
        ledger.claimed = claimed
        if differs := _differences(ledger.origin, origin):
            return Earlier(folder.name, None, differs)
        return Earlier(folder.name, ledger, measured=any(event["event"] == "measured" for event in events))
    return None


def resume(ledger: Ledger) -> dict[str, Any]:
    """Note in a run's journal that it goes on; returns where and why it had been interrupted."""
    events = journal.events(ledger.folder)
    under_way = [event for event in events if event["event"] == "begins"]
    at = {key: under_way[-1].get(key) if under_way else None for key in ("step", "boot", "arm", "cell")}
    if at["step"] == "cell" and ledger.finished(Step("cell", at["boot"], at["arm"] or "", str(at["cell"]))):
        at |= {"step": "end", "cell": None}
    what = at | {"reason": events[-1]["reason"] if events and events[-1]["event"] == "stopped" else KILLED}
    journal.note(ledger.folder, "resumed", **what)
    return what


def _load(folder: Path, experiment: str) -> Ledger | None:
    """The ledger of a run from its checkpoints; None if it has none."""
    checkpoints = []
    origin: dict[str, Any] = {}
    for path in sorted(path for path in (folder / FINISHED).iterdir() if path.name.isdigit()):
        told = json.loads((path / STEP).read_text())
        tables = {}
        for name, sha256 in told["sha256"].items():
            if parquet.sha256(path / name) != sha256:
                raise RecordError(f"{path / name}: not the bytes that were written")
            tables[Path(name).stem] = parquet.read_rows(path / name)
            origin = parquet.provenance(path / name)
        checkpoints.append(Checkpoint(Step(**told["step"]), told["start"], tables))
    if not checkpoints:
        return None
    starts = sum(event["event"] == "begins" and event.get("step") == "start" for event in journal.events(folder))
    return Ledger(folder, experiment, origin, checkpoints, starts=starts)


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between the provenance of an interrupted run and today's, in words; empty if nothing does."""
    keys = (then.keys() | now.keys()) - NOT_COMPARED - {"resumed"}
    return "; ".join(
        f"{key} was {then.get(key)!r}, is {now.get(key)!r}" for key in sorted(keys) if then.get(key) != now.get(key)
    )
