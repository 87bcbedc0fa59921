"""An interrupted run is found again when it may go on, and left alone when it may not."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from spillway.measure import checkpoint, resume
from spillway.measure.checkpoint import Ledger, Step
from spillway.record import journal, parquet

EXPERIMENT = "e3"
ORIGIN: dict[str, Any] = {"run": "1", "experiment": EXPERIMENT, "spec_hash": "a", "commit": "b", "host_boot_id": "x"}
START, END = Step("start", 0), Step("end", 0)


def cell(name: str, boot: int = 0) -> Step:
    return Step("cell", boot, "", name)


def boot_row(run: str = "1", boot: int = 0) -> dict[str, Any]:
    return {"run": run, "boot": boot, "startup_s": 2.0, "health_s": 1.0, "process_memory_bytes": 5}


def cell_row(name: str, **changed: Any) -> dict[str, Any]:
    return {"run": "1", "boot": 0, "cell": name, "outcome": "measured", "marks": "none"} | changed


def memory_row(name: str) -> dict[str, Any]:
    return {"run": "1", "boot": 0, "place": "host", "component": name}


def interrupted(runs: Path, run: str = "1", **origin: Any) -> Ledger:
    """A run that was killed in its second cell; rows of the table `memory` stand for those of a cell."""
    folder = runs / run
    folder.mkdir(parents=True)
    journal.note(folder, "started")
    ledger = Ledger(folder, EXPERIMENT, ORIGIN | {"run": run} | origin)
    ledger.begin(START)
    ledger.add("boots", [boot_row(run)])
    ledger.finish(START)
    ledger.begin(cell("a"))
    ledger.add("memory", [memory_row("a")])
    ledger.finish(cell("a"))
    ledger.begin(cell("b"))
    ledger.add("memory", [memory_row("half of b")])
    return ledger


def test_rows_of_finished_steps_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = interrupted(tmp_path)
    found = resume.continued(tmp_path, EXPERIMENT, ORIGIN)
    assert found is not None and found.ledger is not None and found.run == "1"
    ledger = found.ledger
    assert [each.step for each in ledger.checkpoints] == [START, cell("a")]
    assert ledger.checkpoints[0].tables["boots"][0]["startup_s"] == 2.0
    assert ledger.checkpoints[0].tables["boots"][0]["weights_bytes"] is None
    assert ledger.starts == written.starts == 1
    assert ledger.finished(cell("a")) and not ledger.finished(cell("b"))
    assert ledger.pending == {}, "what an interrupted step had measured is used for nothing"
    assert ledger.origin == written.origin


def test_where_and_why_it_was_interrupted_is_noted_each_time(tmp_path: Path) -> None:
    interrupted(tmp_path)
    found = resume.continued(tmp_path, EXPERIMENT, ORIGIN)
    assert found is not None and found.ledger is not None
    was = resume.resume(found.ledger)
    assert was == {"step": "cell", "boot": 0, "arm": None, "cell": "b", "reason": resume.KILLED}
    found.ledger.begin(Step("start", 0))
    journal.note(found.ledger.folder, "stopped", reason="Ctrl-C", again=True)
    resume.resume(found.ledger)
    reasons = [(each["step"], each["cell"], each["reason"]) for each in found.ledger.resumed()]
    assert reasons == [("cell", "b", resume.KILLED), ("start", None, "Ctrl-C")]
    assert found.ledger.starts == 2


@pytest.mark.parametrize("key", ["spec_hash", "commit", "environment_hash", "code_hash", "host_cpu_model"])
def test_a_run_of_something_else_is_not_continued_and_the_difference_named(tmp_path: Path, key: str) -> None:
    interrupted(tmp_path, **{key: "then"})
    found = resume.continued(tmp_path, EXPERIMENT, ORIGIN | {key: "now"})
    assert found is not None and found.ledger is None
    assert found.reason == f"{key} was 'then', is 'now'"


def test_the_same_machine_may_have_been_started_again(tmp_path: Path) -> None:
    interrupted(tmp_path)
    found = resume.continued(tmp_path, EXPERIMENT, ORIGIN | {"run": "2", "host_boot_id": "y", "measured_at": "later"})
    assert found is not None and found.ledger is not None


def test_published_runs_and_what_is_older_are_not_continued(tmp_path: Path) -> None:
    interrupted(tmp_path, "1")
    journal.note(interrupted(tmp_path, "2").folder, "published")
    assert resume.continued(tmp_path, EXPERIMENT, ORIGIN) is None


def test_a_run_that_ended_by_a_fault_of_the_experiment_is_passed_over(tmp_path: Path) -> None:
    interrupted(tmp_path, "1")
    journal.note(interrupted(tmp_path, "2").folder, "stopped", reason="no such model", again=False)
    (tmp_path / "3").mkdir()
    journal.note(tmp_path / "3", "started")
    found = resume.continued(tmp_path, EXPERIMENT, ORIGIN)
    assert found is not None and found.run == "1"


def test_a_run_that_is_under_way_is_left_alone(tmp_path: Path) -> None:
    """As another machine that shares the folder has it: its lock on the journal is seen, and goes with its process."""
    folder = interrupted(tmp_path).folder
    with resume.claim(folder) or pytest.fail("nobody else holds it"):
        found = resume.continued(tmp_path, EXPERIMENT, ORIGIN)
        assert found is not None and found.ledger is None
        assert found.reason.startswith("it is under way")
    found = resume.continued(tmp_path, EXPERIMENT, ORIGIN)
    assert found is not None and found.ledger is not None and not found.measured


def test_a_run_that_only_has_to_be_published_says_so(tmp_path: Path) -> None:
    journal.note(interrupted(tmp_path).folder, "measured", sha256={})
    found = resume.continued(tmp_path, EXPERIMENT, ORIGIN)
    assert found is not None and found.ledger is not None and found.measured


def test_killed_after_the_last_cell_is_no_interrupted_cell(tmp_path: Path) -> None:
    ledger = interrupted(tmp_path)
    ledger.finish(cell("b"))
    assert resume.resume(ledger) == {"step": "end", "boot": 0, "arm": None, "cell": None, "reason": resume.KILLED}


def test_there_is_nothing_to_continue_without_runs(tmp_path: Path) -> None:
    assert resume.continued(tmp_path / "none", EXPERIMENT, ORIGIN) is None


@pytest.mark.parametrize("damage", ["cut", "flip", "step"])
def test_damaged_checkpoints_are_not_used(tmp_path: Path, damage: str) -> None:
    ledger = interrupted(tmp_path)
    path = ledger.folder / "finished/0001" / ("step.json" if damage == "step" else "memory.parquet")
    content = bytearray(path.read_bytes())
    content[60 if damage == "flip" else 0] ^= 1
    path.write_bytes(content[:40] if damage == "cut" else content)
    found = resume.continued(tmp_path, EXPERIMENT, ORIGIN)
    assert found is not None and found.ledger is None
    assert found.reason.startswith("its checkpoints cannot be read: ")


def test_a_checkpoint_that_was_half_written_does_not_count(tmp_path: Path) -> None:
    ledger = interrupted(tmp_path)
    shutil.copytree(ledger.folder / "finished/0001", ledger.folder / "finished/.0002")
    found = resume.continued(tmp_path, EXPERIMENT, ORIGIN)
    assert found is not None and found.ledger is not None
    assert len(found.ledger.checkpoints) == 2
    found.ledger.add("memory", [memory_row("b")])
    found.ledger.finish(cell("b"))
    assert [row["component"] for row in parquet.read_rows(ledger.folder / "finished/0002/memory.parquet")] == ["b"]


def test_what_an_interrupted_step_had_measured_is_set_aside(tmp_path: Path) -> None:
    ledger = interrupted(tmp_path)
    ledger.set_aside()
    ledger.set_aside()
    for number in ("0000", "0001"):
        (row,) = parquet.read_rows(ledger.folder / "interrupted" / number / "e3.memory.parquet")
        assert row["component"] == "half of b"


def test_a_run_in_one_piece_has_neither_starts_nor_marks(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, EXPERIMENT, ORIGIN)
    ledger.checkpoints = [checkpoint.Checkpoint(cell("a"), 0, {"cells": [cell_row("a")]})]
    assert ledger.tables() == {"cells": [cell_row("a")]}


def test_cells_of_a_boot_with_two_starts_are_marked_and_others_not(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, EXPERIMENT, ORIGIN)
    journal.note(tmp_path, "resumed", step="cell", boot=0, reason="killed")
    for name, boot, start, changed in (
        ("a", 0, 0, {}),
        ("b", 0, 1, {"outcome": "failed", "marks": "cache: x"}),
        ("a", 1, 2, {"boot": 1}),
        ("b", 1, 2, {"boot": 1}),
    ):
        rows = {"cells": [cell_row(name, **changed)]}
        ledger.checkpoints.append(checkpoint.Checkpoint(cell(name, boot), start, rows))
    found = [(row["boot"], row["cell"], row["start"], row["outcome"], row["marks"]) for row in ledger.tables()["cells"]]
    split = "split_boot: cells of this boot come from starts 0, 1 of the server"
    assert found == [
        (0, "a", 0, "marked", split),
        (0, "b", 1, "failed", f"cache: x; {split}"),
        (1, "a", 2, "measured", "none"),
        (1, "b", 2, "measured", "none"),
    ]


def test_a_later_row_of_an_arm_replaces_the_earlier_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, EXPERIMENT, ORIGIN)
    for boot, arm, outcome in ((0, "a", "served"), (0, "b", "served"), (0, "a", "failed")):
        row = {"boot": boot, "arm": arm, "outcome": outcome}
        ledger.checkpoints.append(checkpoint.Checkpoint(Step("start", boot, arm), 0, {"arms": [row]}))
    assert [(row["arm"], row["outcome"]) for row in ledger.tables()["arms"]] == [("a", "failed"), ("b", "served")]


def test_a_mark_whose_reason_holds_a_semicolon_stays_one_mark() -> None:
    twice = checkpoint.marked(checkpoint.marked(cell_row("a"), "stopped: rank 0: x; rank 1: y"), "late: z")
    assert twice["outcome"] == "marked" and twice["marks"] == "stopped: rank 0: x, rank 1: y; late: z"
