"""Publishing: data and manifest agree afterwards, whatever was there before and wherever it was interrupted."""

from pathlib import Path
from typing import Any

import pytest

from spillway.record import manifest, parquet
from spillway.record.parquet import RecordError

ORIGIN: dict[str, Any] = {
    "run": "20260101T000000Z-00000000", "experiment": "e1", "host": "cpu", "model": "m", "spec_hash": "a" * 64,
    "engine": "vllm 0", "environment_hash": "b" * 64, "commit": "c" * 40, "dirty": False, "measured_at": "2026-01-01",
}  # fmt: skip
BOOT = {"run": ORIGIN["run"], "boot": 0, "startup_s": 2.0, "health_s": 1.0, "process_memory_bytes": 5}


def run_folder(folder: Path, tables: list[str], **changed: Any) -> Path:
    for table in tables:
        parquet.write(folder / f"e1.{table}.parquet", "boots", [BOOT], ORIGIN | changed)
    return folder


def test_published_files_are_vouched_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (published,) = manifest.publish(run_folder(tmp_path / "run", ["boots"]), data)
    listed = manifest.read_manifest(data)
    assert manifest.verify(data, "cpu/e1.boots.parquet", listed) == published
    assert listed["cpu/e1.boots.parquet"]["rows"] == "1"
    assert [path.name for path in data.rglob("*") if path.is_file()].count("e1.boots.parquet") == 1
    assert not list(data.rglob(".*")), "temporary files stay behind"


def test_a_new_run_replaces_all_tables_of_the_old_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    manifest.publish(run_folder(tmp_path / "old", ["boots", "extra"]), data)
    manifest.publish(run_folder(tmp_path / "new", ["boots"], run="20260102T000000Z-00000000"), data)
    assert set(manifest.read_manifest(data)) == {"cpu/e1.boots.parquet"}
    assert not (data / "cpu/e1.extra.parquet").exists()


def test_other_experiments_whose_name_begins_alike_stay(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    other = tmp_path / "other"
    parquet.write(other / "e13.boots.parquet", "boots", [BOOT], ORIGIN | {"experiment": "e13"})
    manifest.publish(other, data)
    manifest.publish(run_folder(tmp_path / "run", ["boots"]), data)
    assert set(manifest.read_manifest(data)) == {"cpu/e1.boots.parquet", "cpu/e13.boots.parquet"}


def test_an_interrupted_publication_is_noticed_and_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, run = tmp_path / "data", run_folder(tmp_path / "new", ["boots", "extra"], run="20260102T000000Z-00000000")
    data.mkdir()
    manifest.publish(run_folder(tmp_path / "old", ["boots", "extra"]), data)
    replace = manifest._replace

    def die_at_manifest(path: Path, content: bytes) -> None:
        if path.name == manifest.MANIFEST:
            raise KeyboardInterrupt
        replace(path, content)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(manifest, "_replace", die_at_manifest)
        manifest.publish(run, data)
    with pytest.raises(RecordError, match=r"cpu/e1\.boots\.parquet: SHA-256 is .*spillway publish"):
        manifest.verify(data, "cpu/e1.boots.parquet", manifest.read_manifest(data))
    manifest.publish(run, data)
    for file in manifest.read_manifest(data):
        manifest.verify(data, file, manifest.read_manifest(data))


def test_temporary_files_of_a_killed_publication_go_with_the_next(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "cpu").mkdir(parents=True)
    left = data / "cpu" / ".e1.boots.parquet.12345"
    left.write_bytes(b"half a file")
    manifest.publish(run_folder(tmp_path / "run", ["boots"]), data)
    assert not left.exists()


def test_tables_of_two_runs_are_not_published_as_one(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", ["boots"])
    run_folder(tmp_path / "run", ["extra"], run="20260102T000000Z-00000000")
    with pytest.raises(RecordError, match="several runs"):
        manifest.publish(tmp_path / "run", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: (data / "cpu/e1.boots.parquet").unlink(), "no such data file"),
        (lambda data: (data / "cpu/e1.boots.parquet").write_bytes(b"PAR1"), "SHA-256 is"),
        (lambda data: (data / "MANIFEST.csv").unlink(), r"MANIFEST\.csv: no such file"),
        (lambda data: (data / "MANIFEST.csv").write_text("file,sha\n"), "found the columns"),
    ],
)
def test_what_does_not_agree_is_named(tmp_path: Path, change: Any, message: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    manifest.publish(run_folder(tmp_path / "run", ["boots"]), data)
    change(data)
    with pytest.raises(RecordError, match=message):
        manifest.verify(data, "cpu/e1.boots.parquet", manifest.read_manifest(data))
