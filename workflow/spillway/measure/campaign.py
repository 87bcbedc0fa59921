"""All experiments of a host, one after the other. A campaign that was interrupted goes on at the experiment under way.

runs/<host>/journal.jsonl says what a campaign has measured. An experiment counts as done while the run that it names is the
published one and neither its specification nor the code has changed since.
"""

import os
import sys
from pathlib import Path
from typing import TextIO

from spillway.measure.experiment import RESUME_VARIABLE, measure
from spillway.record import journal, manifest, parquet
from spillway.record.provenance import code_hash
from spillway.spec.experiment import NotRun, names, resolve


def measure_all(root: Path, host_name: str, log: TextIO, anew: bool = False) -> None:
    """Measure and publish what the last campaign on the host has not, or everything if it was ended; raises as `measure`."""
    folder = root / "runs" / host_name
    folder.mkdir(parents=True, exist_ok=True)
    done = {} if anew or os.environ.get(RESUME_VARIABLE) == "never" else _done(folder)
    if not done:
        journal.note(folder, "campaign started")
    for name in names(root):
        if name in done and _stands(root, host_name, name, done[name]):
            print(
                f"{name}: measured by this campaign before it was interrupted (run {done[name]['run']}); "
                f"{RESUME_VARIABLE}=never measures it anew",
                file=sys.stderr,
            )
            continue
        if published := measure(root, name, host_name, log, anew):
            run = parquet.provenance(published[0])["run"]
            journal.note(folder, "campaign measured", experiment=name, run=run, code_hash=code_hash())
    journal.note(folder, "campaign ended")


def _done(folder: Path) -> dict[str, journal.Event]:
    """Experiment -> what the last campaign noted of it; nothing if that one came to its end."""
    done: dict[str, journal.Event] = {}
    for event in journal.events(folder):
        if event["event"] == "campaign measured":
            done[event["experiment"]] = event
        else:
            done = {}
    return done


def _stands(root: Path, host_name: str, name: str, noted: journal.Event) -> bool:
    """Whether the tables that a campaign measured still are what it would measure and publish now."""
    data = root / manifest.DATA
    listed = manifest.read_manifest(data) if (data / manifest.MANIFEST).exists() else {}
    asked = resolve(root, name, host_name)
    rows = [row for row in listed.values() if (row["host"], row["experiment"]) == (host_name, name)]
    return (
        not isinstance(asked, NotRun)
        and noted.get("code_hash") == code_hash()
        and {(row["run"], row["spec_hash"]) for row in rows} == {(noted["run"], asked.hash)}
    )
