"""Publishing: data and manifest agree afterwards, whatever was there before and wherever it was interrupted."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from spillway.record import journal, manifest, parquet
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


OPERATIONS = [(os, name) for name in ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync")] + [(Path, "open")]


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it."""


def die_at(step: int, patched: pytest.MonkeyPatch) -> list[int]:
    """Let the operation number `step` on files, counted from 1, be the last one: it does not happen, and Killed is raised."""
    done = [0]

    def counted(operation: Any) -> Any:
        def perform(*arguments: Any, **named: Any) -> Any:
            done[0] += 1
            if done[0] == step:
                raise Killed
            return operation(*arguments, **named)

        return perform

    for where, name in OPERATIONS:
        patched.setattr(where, name, counted(getattr(where, name)))
    return done


def test_a_publication_killed_at_any_operation_changes_nothing_or_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = run_folder(tmp_path / "old", ["boots", "extra"])
    new = run_folder(tmp_path / "new", ["boots", "more"], run="20260102T000000Z-00000000")
    outcomes, step = [], 0
    while True:
        step += 1
        data = tmp_path / f"data{step}"
        data.mkdir()
        manifest.publish(old, data)
        with monkeypatch.context() as patched:
            done = die_at(step, patched)
            try:
                manifest.publish(new, data)
            except Killed:
                pass
            else:
                assert done[0] < step
                break
        try:
            before = manifest.read_manifest(data)
            for file in before:
                manifest.verify(data, file, before)
        except RecordError as error:  # in between, readers are told, and by what it is repaired
            before = {}
            assert "spillway publish" in str(error) or "brings it back" in str(error)
        manifest.complete(data)
        after = manifest.read_manifest(data)
        for file in after:
            manifest.verify(data, file, after)
        exchanged = set(after) == {"cpu/e1.boots.parquet", "cpu/e1.more.parquet"}
        assert exchanged or (after == before and set(after) == {"cpu/e1.boots.parquet", "cpu/e1.extra.parquet"})
        outcomes.append(exchanged)
        manifest.publish(new, data)
        assert not list(data.rglob(".*")), "something stays behind"
    assert outcomes == sorted(outcomes), "after the point of no return it is always the new data"
    assert True in outcomes and False in outcomes


def test_a_disk_that_refuses_at_any_operation_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, old = tmp_path / "data", run_folder(tmp_path / "old", ["boots"])
    new = run_folder(tmp_path / "new", ["boots"], run="20260102T000000Z-00000000")
    data.mkdir()
    manifest.publish(old, data)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RecordError, match=r"No space left on device; .*spillway publish .*new"):
            manifest.publish(new, data)
    listed = manifest.read_manifest(data)
    assert listed["cpu/e1.boots.parquet"]["run"] == ORIGIN["run"]
    manifest.verify(data, "cpu/e1.boots.parquet", listed)


def test_a_merge_conflict_in_the_manifest_is_named(tmp_path: Path) -> None:
    manifest.publish(run_folder(tmp_path / "run", ["boots"]), tmp_path)
    path = tmp_path / manifest.MANIFEST
    head, row = path.read_text().splitlines()
    path.write_text("\n".join([head, "<<<<<<< HEAD", row, "=======", row, ">>>>>>> other", ""]))
    with pytest.raises(RecordError, match=r"line 2: found '<<<<<<< HEAD'.* merge"):
        manifest.read_manifest(tmp_path)


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "cpu").mkdir(parents=True)
    kept = [data / ".gitattributes", data / "cpu" / ".gitkeep"]
    for path in kept:
        path.touch()
    manifest.publish(run_folder(tmp_path / "run", ["boots"]), data)
    assert all(path.exists() for path in kept)


def test_tables_of_a_run_that_did_not_finish_are_not_published(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "e1" / "run", ["boots"])
    journal.note(run, "started")
    with pytest.raises(RecordError, match="the run did not finish; `snakemake e1` goes on with it"):
        manifest.publish(run, tmp_path / "data")
    journal.note(run, "measured", sha256={"e1.boots.parquet": parquet.sha256(run / "e1.boots.parquet")})
    manifest.publish(run, tmp_path / "data")
    assert journal.has(run, "published")


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_table_is_not_published(tmp_path: Path, damage: str) -> None:
    run = run_folder(tmp_path / "run", ["boots"])
    path = run / "e1.boots.parquet"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[60] ^= 1  # in the first page of data
    path.write_bytes(content if damage == "flipped" else content[:-20])
    with pytest.raises(RecordError, match=r"e1\.boots\.parquet: cannot be read"):
        manifest.publish(run, tmp_path / "data")
    assert not (tmp_path / "data").exists()


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
