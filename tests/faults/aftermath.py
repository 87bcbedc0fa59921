"""What must hold after every fault: nothing of ours runs, published data are whole, and the next run works."""

import os
import signal
import time
from collections.abc import Callable, Container
from pathlib import Path

import pandas as pd

from spillway.record import manifest, parquet
from tests.conftest import Project


class DataLost(AssertionError):
    """Published data are neither what they were before a fault nor all of a newer run."""


def ours(project: Project) -> list[int]:
    """Processes of this copy that are still alive: their environment holds the copy's lock."""
    mark = f"{project.root / 'measuring.lock'}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                mark in (process / "environ").read_bytes()
                and (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            ):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def command_of(pid: int) -> str:
    """The command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def wait_for(condition: Callable[[], object], within_s: float) -> bool:
    """Whether a condition comes true in time; the time is an upper bound for a loaded machine, never a pace."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(project: Project, within_s: float = 40) -> bool:
    return wait_for(lambda: not ours(project), within_s)


def stop_ours(project: Project) -> None:
    """End what a failed test left behind, so that it does not fail the next one."""
    for pid in ours(project):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def runs(project: Project) -> dict[str, str]:
    """Published file -> run that measured it."""
    return {file: row["run"] for file, row in manifest.read_manifest(project.root / "data").items()}


def read_published(project: Project, known: Container[str] = ()) -> dict[str, str]:
    """Read every published file as the paper does, bytes against the manifest, and rows; file -> SHA-256.

    The rows of files whose hash is in `known` have been read before and are not read again.
    """
    data = project.root / "data"
    listed = manifest.read_manifest(data)
    for file, row in listed.items():
        try:
            path = manifest.verify(data, file, listed)
            rows = int(row["rows"]) if row["sha256"] in known else len(parquet.read(path))
        except parquet.RecordError as error:
            raise DataLost(str(error)) from error
        if str(rows) != row["rows"]:
            raise DataLost(f"{path}: {rows} rows; the manifest lists {row['rows']}")
    return {file: row["sha256"] for file, row in listed.items()}


def assert_whole(project: Project, before: dict[str, str], experiment: str) -> bool:
    """Published data are those of `before`, or all of the experiment's tables are of one newer run: then True."""
    after = read_published(project, set(before.values()))
    changed = {file for file in before.keys() | after.keys() if before.get(file) != after.get(file)}
    if not changed:
        return False
    if foreign := sorted(file for file in changed if not file.startswith(f"cpu/{experiment}.")):
        raise DataLost(f"{foreign[0]} changed, which is not of {experiment}")
    measured_by = {run for file, run in runs(project).items() if file.startswith(f"cpu/{experiment}.")}
    if len(measured_by) != 1:
        raise DataLost(f"tables of {experiment} are of {len(measured_by)} runs")
    return True


def published(project: Project, table: str) -> pd.DataFrame:
    return parquet.read(project.root / f"data/cpu/{table}.parquet")
