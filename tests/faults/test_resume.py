"""Interrupted runs go on at the next cell: killed at every step and inside cells, every cell is measured once, and it shows."""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from spillway.record import journal, parquet
from tests.conftest import Project
from tests.faults.aftermath import assert_whole, command_of, gone, ours, published, read_published, wait_for
from tests.faults.conftest import CAMPAIGN, Fault, ask, with_faulty_server
from tests.faults.test_kills import EXPERIMENT, MEASURE, journal_lines

CELLS = ["prompt_tokens=64", "prompt_tokens=128"]
TABLES = ["boots", "cells", "chunks", "client_metrics", "requests", "server_metrics"]

# A measurement that kills itself when it finishes a step: just before the step's rows are safe, or just after.
SUICIDAL = """
import os, runpy, signal, sys
from spillway.measure.checkpoint import Ledger

when, finish = sys.argv.pop(1), Ledger.finish

def deadly(self, step):
    if step.what == "start" and self.finished(step):  # a boot that goes on: its new start is no step further
        return finish(self, step)
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    finish(self, step)
    os.kill(os.getpid(), signal.SIGKILL)

Ledger.finish = deadly
sys.argv = ["spillway.measure", *sys.argv[1:]]
runpy.run_module("spillway.measure", run_name="__main__")
"""


@pytest.fixture
def two_boots(small: Project) -> Project:
    ask(small, boots=2)
    return small


def the_run(project: Project) -> Path:
    """The newest run; their names begin with the time."""
    return max((project.root / f"runs/cpu/{EXPERIMENT}").iterdir())


def assert_all_measured_once(project: Project, boots: int) -> dict[str, object]:
    """Every cell of every boot is in the data once, whole; returns the provenance."""
    cells, requests = published(project, f"{EXPERIMENT}.cells"), published(project, f"{EXPERIMENT}.requests")
    asked = [(boot, cell) for boot in range(boots) for cell in CELLS]
    assert list(zip(cells.boot, cells.cell, strict=True)) == asked, "in the order in which a run in one piece gives them"
    measured = requests[requests.phase == "measured"]
    assert Counter(zip(measured.boot, measured.cell, strict=True)) == dict.fromkeys(asked, 5)
    assert not requests.duplicated(["boot", "cell", "request"]).any()
    chunks = published(project, f"{EXPERIMENT}.chunks")
    assert not chunks.duplicated(["boot", "cell", "request", "chunk"]).any()
    files = [project.root / f"data/cpu/{EXPERIMENT}.{table}.parquet" for table in TABLES]
    origins = {json.dumps(parquet.provenance(file), sort_keys=True) for file in files}
    assert len(origins) == 1
    return dict(json.loads(origins.pop()))


def finished_cells(run: Path) -> dict[tuple[int, str], str]:
    """(boot, cell) -> when it was measured, by the checkpoints on disk."""
    rows = [row for path in run.glob("finished/[0-9]*/cells.parquet") for row in parquet.read_rows(path)]
    return {(row["boot"], row["cell"]): row["started_at"] for row in rows}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("when", ["after", pytest.param("before", marks=CAMPAIGN)])
def test_killed_at_every_step(two_boots: Project, fault: Fault, when: str) -> None:
    """Each invocation gets one step further. Killed just before a step is safe, that step alone is measured again."""
    script = two_boots.root / "suicidal.py"
    script.write_text(SUICIDAL)
    before, kept = read_published(two_boots), {}
    with fault(f"kill -9 {when} each step of a run") as landed:
        kills = 0
        for _ in range(2 * (1 + len(CELLS) + 1)):  # two boots: a start, its cells, its end
            if when == "before":
                lost = two_boots.run(sys.executable, str(script), "before", EXPERIMENT, "--host", "cpu")
                assert lost.returncode == -signal.SIGKILL, lost.stderr
                kills += 1
                landed()
            done = two_boots.run(sys.executable, str(script), "after", EXPERIMENT, "--host", "cpu")
            assert done.returncode == -signal.SIGKILL, done.stderr
            kills += 1
            landed()
            assert gone(two_boots) and not assert_whole(two_boots, before, EXPERIMENT)
            now = finished_cells(the_run(two_boots))
            assert kept.items() <= now.items(), "a finished cell was measured again"
            kept = now
        done = two_boots.run(*MEASURE)
        assert done.returncode == 0, done.stderr
        assert f"goes on with run {the_run(two_boots).name}, of which 8 steps are finished" in done.stderr
        assert "ready after" not in done.stderr, "nothing was left to measure, and yet a server was started"
        origin = assert_all_measured_once(two_boots, boots=2)
        resumed = origin["resumed"]
        in_vain = when == "before"  # killed with nothing finished, the first time: there was nothing to go on with
        assert isinstance(resumed, list) and len(resumed) == kills - in_vain
        assert {each["reason"] for each in resumed} == {"it ended without a word: killed, or the machine stopped"}
        cells = published(two_boots, f"{EXPERIMENT}.cells")
        assert {(row.boot, row.cell): row.started_at for row in cells.itertuples()} == kept
        assert cells.start.is_monotonic_increasing and cells.start.nunique() == 4
        assert cells.marks.str.contains("split_boot: cells of this boot come from starts").all()
        boots = published(two_boots, f"{EXPERIMENT}.boots")
        assert set(cells.start) <= set(boots.start) and not boots.start.duplicated().any()
        assert not (the_run(two_boots) / "finished").exists()


@pytest.mark.parametrize(
    "blow", [signal.SIGKILL, *(pytest.param(blow, marks=CAMPAIGN) for blow in (signal.SIGINT, signal.SIGTERM))]
)
def test_stopped_inside_a_cell(small: Project, fault: Fault, blow: signal.Signals) -> None:
    ask(small, output_tokens=40)
    with_faulty_server(small, "--tokens-per-second", "40")
    before = read_published(small)
    with fault(f"{blow.name} of the launcher inside the second cell") as landed:
        process = small.start(*MEASURE)
        assert wait_for(lambda: journal_lines(small) >= 4 or process.poll() is not None, 60)
        run = the_run(small)
        assert journal.events(run)[-1]["cell"] == CELLS[1]
        process.send_signal(blow)
        landed()
        output, _ = process.communicate(timeout=60)
        assert gone(small) and not assert_whole(small, before, EXPERIMENT)
        kept = finished_cells(run)
        assert list(kept) == [(0, CELLS[0])]
        if blow != signal.SIGKILL:
            assert f"`snakemake {EXPERIMENT}` goes on from there" in output
        again = small.run(*MEASURE)
        assert again.returncode == 0, again.stderr
        assert f"goes on with run {run.name}, of which 2 steps are finished; interrupted at step cell" in again.stderr
        assert "cell 1 of 2" not in again.stderr and "cell 2 of 2" in again.stderr
        origin = assert_all_measured_once(small, boots=1)
        reason = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}.get(blow, "it ended without a word")
        (resumed,) = origin["resumed"]  # type: ignore[misc]
        assert (resumed["boot"], resumed["cell"]) == (0, CELLS[1]) and resumed["reason"].startswith(reason)
        assert published(small, f"{EXPERIMENT}.cells").start.tolist() == [0, 1]
        third = small.run(*MEASURE)
        assert third.returncode == 0 and "goes on with" not in third.stderr, "a run that was published is never continued"
        assert len(list(run.parent.iterdir())) == 2


def test_a_server_that_died_in_a_cell(small: Project, fault: Fault) -> None:
    ask(small, output_tokens=40)
    with_faulty_server(small, "--tokens-per-second", "40")
    with fault("kill -9 of the server inside the second cell") as landed:
        process = small.start(*MEASURE)
        assert wait_for(lambda: journal_lines(small) >= 4 or process.poll() is not None, 60)
        for pid in ours(small):
            if "faulty_server.py" in command_of(pid) and "supervisor.py" not in command_of(pid):
                os.kill(pid, signal.SIGKILL)
                landed()
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 1 and "was ended by SIGKILL" in output and "dmesg" in output
        (aside,) = (the_run(small) / "interrupted").iterdir()
        (cell,) = parquet.read_rows(aside / f"{EXPERIMENT}.cells.parquet")
        assert cell["outcome"] == "failed" and "server_died" in cell["marks"]
        again = small.run(*MEASURE)
        assert again.returncode == 0, again.stderr
        (resumed,) = assert_all_measured_once(small, boots=1)["resumed"]  # type: ignore[misc]
        assert "was ended by SIGKILL" in resumed["reason"]
        cells = published(small, f"{EXPERIMENT}.cells")
        assert (cells.outcome == "marked").all() and not cells.marks.str.contains("server_died").any()


@pytest.mark.parametrize(
    "change", ["asked for", *(pytest.param(change, marks=CAMPAIGN) for change in ("specification", "code", "model"))]
)
def test_a_run_of_something_else_is_measured_anew(small: Project, fault: Fault, change: str) -> None:
    script = small.root / "suicidal.py"
    script.write_text(SUICIDAL)
    with fault(f"interrupted, then another {change}" if change != "asked for" else "interrupted, then --new") as landed:
        for _ in range(2):
            small.run(sys.executable, str(script), "after", EXPERIMENT, "--host", "cpu")
        first = the_run(small)
        assert finished_cells(first)
        landed()
        match change:
            case "specification":
                ask(small, seed=4)
            case "code":
                with (small.root / "workflow/spillway/load/client.py").open("a") as file:
                    file.write("\n")
            case "model":
                small.edit("experiments/models/tiny-qwen3-moe.yaml", "max_model_len: 8192", "max_model_len: 4096")
        done = small.run(*MEASURE, *(["--new"] if change == "asked for" else []))
        assert done.returncode == 0, done.stderr
        differs = {"specification": "spec_hash was", "code": "code_hash was", "model": "spec_hash was"}
        if change in differs:
            assert f"does not go on with the interrupted run {first.name}: " in done.stderr
            assert differs[change] in done.stderr
        assert "resumed" not in assert_all_measured_once(small, boots=1)
        assert "start" not in published(small, f"{EXPERIMENT}.cells").columns
        shutil.rmtree(first)
