"""Data files that are damaged, and publications that meet or are killed: noticed, never mixed, repaired by the next."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spillway.record import journal, manifest, parquet
from spillway.record.parquet import RecordError
from tests.faults.conftest import Fault

TABLES = ("boots", "cells", "chunks", "requests")
PUBLISH = "import sys; from spillway.record.publish_command import main; sys.exit(main(sys.argv[1:]))"
FILES = [f"cpu/e1.{table}.parquet" for table in TABLES]


def run_folder(folder: Path, run: str, experiment: str = "e1", rows: int = 400) -> Path:
    """A finished run whose tables differ from those of any other run."""
    origin: dict[str, Any] = {
        "run": run, "experiment": experiment, "host": "cpu", "model": "m", "spec_hash": "a" * 64, "engine": "vllm 0",
        "environment_hash": "b" * 64, "commit": "c" * 40, "dirty": False, "measured_at": "2026-01-01",
    }  # fmt: skip
    row = {"run": run, "boot": 0, "startup_s": 2.0, "health_s": 1.0, "process_memory_bytes": 5}
    content = [row | {"boot": number} for number in range(rows)]
    for table in TABLES:
        parquet.write(folder / f"{experiment}.{table}.parquet", "boots", content, origin)
    return folder


def publisher(run: Path, data: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PUBLISH, str(run), "--data", str(data)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_one_run(data: Path, experiment: str = "e1") -> str:
    """Every table is there, as the manifest says, and all are of one run, which is returned."""
    listed = manifest.read_manifest(data)
    whose = set()
    for table in TABLES:
        path = manifest.verify(data, f"cpu/{experiment}.{table}.parquet", listed)
        whose.add(parquet.provenance(path)["run"])
    assert len(whose) == 1
    assert {row["run"] for file, row in listed.items() if file.startswith(f"cpu/{experiment}.")} == whose
    return whose.pop()


def test_publications_of_one_experiment_at_once(tmp_path: Path, fault: Fault) -> None:
    """Two clones that share the data folder, both with a run of the same experiment, and others with runs of others."""
    data = tmp_path / "data"
    data.mkdir()
    folders = [run_folder(tmp_path / f"run{number}", f"run{number}") for number in range(3)]
    others = [run_folder(tmp_path / f"other{number}", f"other{number}", f"e{number}") for number in (2, 3)]
    with fault("two clones publish into one folder at once") as landed:
        started = [publisher(folder, data) for folder in [*folders, *others]]
        landed()
        for process in started:
            _, errors = process.communicate(timeout=100)
            assert process.returncode == 0, errors
        assert assert_one_run(data) in {"run0", "run1", "run2"}
        for number in (2, 3):
            assert assert_one_run(data, f"e{number}") == f"other{number}"
        assert not list(data.rglob(".*"))


def test_killed_publications(tmp_path: Path, fault: Fault, pytestconfig: pytest.Config) -> None:
    """kill -9 while files are exchanged, again and again; the next one always repairs, and nothing is ever mixed."""
    rng = random.Random(pytestconfig.getoption("seed", 0))
    data = tmp_path / "data"
    data.mkdir()
    folders = [run_folder(tmp_path / f"run{number}", f"run{number}") for number in range(2)]
    manifest.publish(folders[0], data)
    with fault("kill -9 during a publication") as landed:
        for round_ in range(6):
            process = publisher(folders[round_ % 2], data)
            while not list(data.glob("cpu/.*")) and process.poll() is None:
                time.sleep(0.0005)
            time.sleep(rng.uniform(0, 0.01))
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                landed()
            process.communicate()
            manifest.complete(data)
            assert assert_one_run(data) in {"run0", "run1"}
        manifest.publish(folders[1], data)
        assert assert_one_run(data) == "run1"
        assert not list(data.rglob(".*"))


@pytest.mark.parametrize("damage", ["truncated", "bit-flipped"])
def test_damaged_data_files_are_noticed_and_repaired(
    tmp_path: Path, fault: Fault, damage: str, pytestconfig: pytest.Config
) -> None:
    rng = random.Random(pytestconfig.getoption("seed", 0))
    data = tmp_path / "data"
    data.mkdir()
    run = run_folder(tmp_path / "run", "run")
    manifest.publish(run, data)
    listed = manifest.read_manifest(data)
    with fault(f"Parquet {damage}: in data/") as landed:
        for _ in range(100):
            path = data / rng.choice(FILES)
            whole = path.read_bytes()
            path.write_bytes(damaged(whole, damage, rng))
            with pytest.raises(RecordError, match="`spillway publish RUN_FOLDER` completes it"):
                manifest.verify(data, path.relative_to(data).as_posix(), listed)
            landed()
            path.write_bytes(whole)
        path.write_bytes(damaged(whole, damage, rng))
        manifest.publish(run, data)
        assert assert_one_run(data) == "run"


@pytest.mark.parametrize("damage", ["truncated", "bit-flipped"])
def test_damaged_tables_of_a_run_are_not_published(
    tmp_path: Path, fault: Fault, damage: str, pytestconfig: pytest.Config
) -> None:
    """Parquet's own checksums leave headers and footer open, so the run's journal holds the hash of every table."""
    rng = random.Random(pytestconfig.getoption("seed", 0))
    data = tmp_path / "data"
    run = run_folder(tmp_path / "run", "run")
    path = run / "e1.boots.parquet"
    whole = path.read_bytes()
    journal.note(run, "measured", sha256={file.name: parquet.sha256(file) for file in run.glob("*.parquet")})
    with fault(f"Parquet {damage}: in runs/") as landed:
        for _ in range(300):
            path.write_bytes(damaged(whole, damage, rng))
            with pytest.raises(RecordError, match=r"e1\.boots\.parquet: cannot be published"):
                manifest.publish(run, data)
            try:  # whoever reads it nevertheless gets an error with its name, or rows, and never a crash
                parquet.provenance(path)
                parquet.read(path)
            except RecordError as error:
                assert str(path) in str(error)
            landed()
        assert not data.exists()
        path.write_bytes(whole)
        manifest.publish(run, data)
        assert assert_one_run(data) == "run"


def damaged(content: bytes, damage: str, rng: random.Random) -> bytes:
    if damage == "truncated":
        return content[: rng.randrange(len(content))]
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
