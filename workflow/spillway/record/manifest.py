"""Publishing a run: its tables move into `data/`, each in one step, and `data/MANIFEST.csv` says what they are.

The manifest is written last. A publication that is killed half-way therefore leaves files that the manifest does not
vouch for: every reader notices, and publishing the run folder again completes it.
"""

import csv
import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from spillway.record.parquet import RecordError, provenance, sha256

DATA = Path("data")
MANIFEST = "MANIFEST.csv"
COLUMNS = [
    "file", "sha256", "bytes", "rows", "run", "experiment", "host", "model", "spec_hash", "engine", "environment_hash",
    "commit", "dirty", "measured_at",
]  # fmt: skip


def read_manifest(data: Path) -> dict[str, dict[str, str]]:
    """File name relative to `data` -> its row; raises RecordError if the manifest is absent or not of this layout."""
    path = data / MANIFEST
    if not path.is_file():
        raise RecordError(f"{path}: no such file; `git checkout {path}` brings the committed one back")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise RecordError(f"{path}: found the columns {reader.fieldnames}; expected {COLUMNS}")
        rows = list(reader)
    files = [row["file"] for row in rows]
    if twice := sorted({name for name in files if files.count(name) > 1}):
        raise RecordError(f"{path}: lists {twice[0]} twice; keep the row whose sha256 is that of the file")
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
    are removed. Raises RecordError if the folder holds no table or the tables belong to several runs.
    """
    sources = sorted(run_folder.glob("*.parquet"))
    if not sources:
        raise RecordError(f"{run_folder}: holds no table to publish; expected <experiment>.<table>.parquet")
    origins = {source: provenance(source) for source in sources}
    whose = {(origin["host"], origin["experiment"], origin["run"]) for origin in origins.values()}
    if len(whose) > 1:
        raise RecordError(f"{run_folder}: holds tables of several runs: {sorted(whose)}; expected one")
    host, experiment, _ = whose.pop()
    folder = data / host
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(data):
        for left in [*data.glob(".*"), *folder.glob(".*")]:  # of a publication that was killed
            left.unlink()
        manifest = read_manifest(data) if (data / MANIFEST).exists() else {}
        published = []
        for source in sources:
            target = folder / source.name
            _replace(target, source.read_bytes())
            file = target.relative_to(data).as_posix()
            origin = origins[source]
            manifest[file] = {
                "file": file,
                "sha256": sha256(target),
                "bytes": str(target.stat().st_size),
                "rows": str(pq.read_metadata(target).num_rows),
                "dirty": str(origin["dirty"]).lower(),
                **{name: str(origin[name]) for name in COLUMNS[4:] if name != "dirty"},
            }
            published.append(target)
        for stale in set(folder.glob(f"{experiment}.*.parquet")) - set(published):
            manifest.pop(stale.relative_to(data).as_posix(), None)
            stale.unlink()
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(manifest[name] for name in sorted(manifest))
        _replace(data / MANIFEST, text.getvalue().encode())
    return published


@contextmanager
def _locked(data: Path) -> Iterator[None]:
    """One publication at a time; the kernel drops the lock with its holder. The folder itself is the lock's file."""
    handle = os.open(data, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old or the new content is there, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
