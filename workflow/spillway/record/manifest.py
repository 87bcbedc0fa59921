"""Publishing a run: its tables move into `data/` and `data/MANIFEST.csv` says what they are, all of it or nothing.

All files are written in full beside the old ones first, into a folder that one rename then declares complete. What is killed
before that rename has changed nothing; what is killed after it has left everything to finish the work, and the next
publication or measurement does (`complete`). In between the manifest, which is written last, does not vouch for files that
are already exchanged, so that a reader notices.
"""

import csv
import io
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from spillway.record import journal
from spillway.record.parquet import RecordError, provenance, read, sha256
from spillway.record.shared_lock import publishing
from spillway.spec.names import NAME_RULE, is_name
from spillway.spec.recorded import DATA as DATA
from spillway.spec.recorded import MANIFEST as MANIFEST
from spillway.spec.shown import shown

STAGED = ".publishing"
"""Folder beside a host's data files that holds a publication from the moment on in which it cannot be lost any more."""
STAGING = ".staging."
"""Beginning of that folder's name until then."""
ROWS = "rows.csv"
"""In that folder: the rows of the manifest for what is published."""
COLUMNS = [
    "file", "sha256", "bytes", "rows", "run", "experiment", "host", "model", "spec_hash", "engine", "environment_hash",
    "commit", "dirty", "measured_at",
]  # fmt: skip


def read_manifest(data: Path) -> dict[str, dict[str, str]]:
    """File name relative to `data` -> its row; raises RecordError if the manifest is absent or not of this layout."""
    path = data / MANIFEST
    if not path.is_file():
        raise RecordError(f"{path}: no such file; `git checkout {path}` brings the committed one back")
    return _read_rows(path)


def _read_rows(path: Path) -> dict[str, dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != COLUMNS:
                raise RecordError(f"{path}: found the columns {shown(reader.fieldnames, 400)}; expected {COLUMNS}")
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path}: cannot be read: {error}; `git checkout {path}` brings the committed one back") from None
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise RecordError(
                f"{path}: line {number}: found {shown(row['file'])} and not {len(COLUMNS)} values; after a merge with "
                "conflicts keep, for each experiment, the rows of one side and the data files of the same side"
            )
    files = [row["file"] for row in rows]
    if twice := [name for name, count in Counter(files).items() if count > 1]:
        raise RecordError(f"{path}: lists {shown(twice[0])} twice; keep the row whose sha256 is that of the file")
    return {row["file"]: row for row in rows}


def verify(data: Path, file: str, manifest: dict[str, dict[str, str]]) -> Path:
    """The path of a data file whose bytes are those that the manifest lists; raises RecordError otherwise."""
    path = data / file
    if not path.is_file():
        raise RecordError(f"{path}: no such data file; `git checkout {path}` or a new measurement brings it back")
    if file not in manifest:
        raise RecordError(f"{path}: not listed in {data / MANIFEST}; publish the run that measured it again")
    if (found := sha256(path)) != manifest[file]["sha256"]:
        raise RecordError(
            f"{path}: SHA-256 is {found[:12]}..., but {data / MANIFEST} lists {manifest[file]['sha256'][:12]}...: the file was "
            "changed, or a publication was interrupted; `spillway publish RUN_FOLDER` completes it, "
            f"`git checkout {data}` goes back"
        )
    return path


def publish(run_folder: Path, data: Path) -> list[Path]:
    """Publish all tables of a finished run (`<experiment>.<table>.parquet`); returns the published paths.

    Tables of an earlier run of the same experiment on the same host are replaced, those that the new run does not have
    are removed. Raises RecordError if the folder holds no table, a damaged one, or tables of several runs, and if the disk
    does not take them; the old data then stand unchanged.
    """
    _check_finished(run_folder)
    sources = sorted(run_folder.glob("*.parquet"))
    if not sources:
        raise RecordError(f"{run_folder}: holds no table to publish; expected <experiment>.<table>.parquet")
    origins = {source: _origin(source) for source in sources}
    whose = {(origin["host"], origin["experiment"], origin["run"]) for origin in origins.values()}
    if len(whose) > 1:
        raise RecordError(f"{run_folder}: holds tables of several runs: {sorted(whose)}; expected one")
    for source in sources:
        read(source)  # all of it: what is damaged in the run must not replace what is whole
    folder = data / whose.pop()[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with publishing(data):
            _complete(data)
            _clear(data, folder)
            if (data / MANIFEST).exists():
                read_manifest(data)  # a fault there is told before anything changes
            rows = [_row(folder.name, source, origins[source]) for source in sources]
            published = _move_in(data, _stage(folder, sources, rows))
        if (run_folder / journal.FILE).exists():
            journal.note(run_folder, "published")
        return published
    except OSError as error:
        raise RecordError(
            f"{error.filename or folder}: {error.strerror}; the run is whole in {run_folder}: make room or give access, then "
            f"`spillway publish {run_folder}`"
        ) from error


def _origin(source: Path) -> dict[str, Any]:
    """The provenance of a table to publish; raises RecordError if it lacks what the manifest says, or names another folder.

    Host and experiment become a path below data/ and a pattern of files to replace, so a table from elsewhere must not
    choose them freely.
    """
    origin = provenance(source)
    if absent := [name for name in COLUMNS[4:] if name not in origin]:
        raise RecordError(f"{source}: its provenance lacks {', '.join(absent)}; expected a table of a whole run")
    for name in ("host", "experiment"):
        if not is_name(origin[name]):
            raise RecordError(f"{source}: provenance: {name}: found {shown(origin[name])}; expected {NAME_RULE}")
    if not source.name.startswith(f"{origin['experiment']}."):
        raise RecordError(f"{source}: holds a table of {origin['experiment']}; expected that at the beginning of its name")
    return origin


def _check_finished(run_folder: Path) -> None:
    """Raise RecordError unless the run wrote all of its tables and they still are what it wrote.

    A folder without a journal, of a run by other means, is taken as it is.
    """
    events = journal.events(run_folder)
    measured = [event for event in events if event["event"] == "measured"]
    if events and not measured:
        raise RecordError(f"{run_folder}: the run did not finish; `snakemake {run_folder.parent.name}` goes on with it")
    for name, hashed in measured[-1]["sha256"].items() if measured else ():
        if not (run_folder / name).is_file() or sha256(run_folder / name) != hashed:
            raise RecordError(f"{run_folder / name}: cannot be published: absent, or not the bytes that the run wrote")


def complete(data: Path) -> list[Path]:
    """Finish a publication that was killed half-way, if there is one; returns the published paths."""
    with publishing(data):
        return _complete(data)


def check_writable(data: Path, host: str) -> None:
    """Raise RecordError if the tables of a host could not be published: before a measurement, not after it."""
    folder = data / host
    probe = folder / f"{STAGING}{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with publishing(data):  # or a publication from another machine could take the probe for something left behind
            probe.mkdir()
            probe.rmdir()
    except OSError as error:
        raise RecordError(
            f"{folder}: cannot be written: {error.strerror}; nothing was measured, because nothing could be published: "
            "give this user write access to the folder"
        ) from error


def _row(host: str, source: Path, origin: Mapping[str, Any]) -> dict[str, str]:
    return {
        "file": f"{host}/{source.name}",
        "sha256": sha256(source),
        "bytes": str(source.stat().st_size),
        "rows": str(pq.read_metadata(source).num_rows),
        "dirty": str(origin["dirty"]).lower(),
        **{name: str(origin[name]) for name in COLUMNS[4:] if name != "dirty"},
    }


def _stage(folder: Path, sources: Iterable[Path], rows: Iterable[Mapping[str, str]]) -> Path:
    """Write all that is to be published beside the old files; the rename at the end is the point of no return."""
    staging = folder / f"{STAGING}{os.getpid()}"
    staging.mkdir()
    for source in sources:
        _write_synced(staging / source.name, source.read_bytes())
    _write_synced(staging / ROWS, _csv(rows))
    _sync_folder(staging)
    staged = staging.rename(folder / STAGED)
    _sync_folder(folder)
    return staged


def _complete(data: Path) -> list[Path]:
    return [path for staged in sorted(data.glob(f"*/{STAGED}")) for path in _move_in(data, staged)]


def _move_in(data: Path, staged: Path) -> list[Path]:
    """Exchange old files for staged ones; may be repeated from any point at which it was killed."""
    folder = staged.parent
    if not (staged / ROWS).exists():  # it was killed while it removed the staged folder: all else is done
        shutil.rmtree(staged)
        return []
    rows = _read_rows(staged / ROWS)
    whose = {(row["host"], row["experiment"]) for row in rows.values()}
    for source in sorted(staged.glob("*.parquet")):
        os.replace(source, folder / source.name)
    published = [data / file for file in rows]
    for _, experiment in whose:
        for stale in set(folder.glob(f"{experiment}.*.parquet")) - set(published):
            stale.unlink()
    _sync_folder(folder)
    manifest = read_manifest(data) if (data / MANIFEST).exists() else {}
    kept = {file: row for file, row in manifest.items() if (row["host"], row["experiment"]) not in whose}
    _replace_manifest(data, kept | rows)
    (staged / ROWS).unlink()
    shutil.rmtree(staged)
    return published


def _replace_manifest(data: Path, rows: Mapping[str, Mapping[str, str]]) -> None:
    """Put the rows, by file, in the manifest's place: whole or not at all."""
    temporary = data / f".{MANIFEST}.{os.getpid()}"
    _write_synced(temporary, _csv(rows[file] for file in sorted(rows)))
    os.replace(temporary, data / MANIFEST)
    _sync_folder(data)


def write_file(data: Path, file: str, content: bytes, rows: int) -> Path:
    """Write a file below data/ that no run made, such as predicted/fit.csv, and its row of the manifest; returns its path."""
    path = data / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with publishing(data):
        _write_synced(path, content)
        counted = {"file": file, "sha256": sha256(path), "bytes": str(len(content)), "rows": str(rows)}
        _replace_manifest(data, {**read_manifest(data), file: dict.fromkeys(COLUMNS, "") | counted})
    return path


def _clear(data: Path, folder: Path) -> None:
    """Remove what publications left that were killed before their point of no return."""
    for left in [*data.glob(f".{MANIFEST}.*"), *folder.glob(".*.parquet.*"), *folder.glob(f"{STAGING}*")]:
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def _csv(rows: Iterable[Mapping[str, str]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it would outlive a power cut; its name does after `_sync_folder`."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
