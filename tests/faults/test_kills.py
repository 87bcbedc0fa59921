"""kill -9 at a random moment, of every process that takes part in a measurement."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spillway.record import manifest
from tests.conftest import ROOT, Project
from tests.faults.aftermath import assert_whole, command_of, gone, ours, published, read_published, wait_for
from tests.faults.conftest import Fault, with_faulty_server

EXPERIMENT = "e3_tpot_context"
MEASURE = (sys.executable, "-m", "spillway.measure", EXPERIMENT, "--host", "cpu")
MILESTONES = 6
"""Lines of the journal of a run of two cells: started, begins (the start, each cell, the publication), measured, published."""

Find = Callable[[Project, subprocess.Popen[str]], list[int]]
Victims = dict[str, tuple[tuple[str, ...], Find]]
"""Name -> the command to start, and how to find the process to kill."""


def which(part: str) -> Find:
    """The processes of a copy whose command line holds `part`."""
    return lambda project, _: [pid for pid in ours(project) if part in command_of(pid)]


def launched(_: Project, process: subprocess.Popen[str]) -> list[int]:
    return [process.pid]


VICTIMS: Victims = {
    "Snakemake": (("snakemake", EXPERIMENT), launched),
    "the launcher": (MEASURE, launched),
    "the supervisor": (MEASURE, which("supervisor.py")),
    "the server": (
        MEASURE,
        lambda project, _: [p for p in which("faulty_server.py")(project, _) if "supervisor.py" not in command_of(p)],
    ),
    "the server's worker": (MEASURE, which("faulty-worker")),
    "the client's self-check": (MEASURE, which("delay_server")),
}


@pytest.mark.timeout(900)
def test_killed_at_random_moments(small: Project, kills_chain: tuple[int, int], fault: Fault) -> None:
    with_faulty_server(small, "--fault", "worker")
    kill_in_a_row(small, kills_chain, VICTIMS, fault, longest_wait_s=1.0, patience_s=100)


def kill_in_a_row(
    project: Project, chain: tuple[int, int], victims: Victims, fault: Fault, longest_wait_s: float, patience_s: float
) -> None:
    """Several kills: each next run finds what the last one left and is killed as well, and then one runs to the end."""
    seed, length = chain
    rng = random.Random(seed)
    for kill in range(length):
        victim = list(victims)[(seed + kill) % len(victims)]  # in turn, so that each gets its share
        command, find = victims[victim]
        with fault(f"kill -9 of {victim}") as landed:
            kill_once(project, command, find, rng, landed, longest_wait_s, patience_s)
            if kill == length - 1:
                run_to_the_end(project, patience_s)


def kill_once(
    project: Project,
    command: tuple[str, ...],
    find: Find,
    rng: random.Random,
    landed: Callable[[], None],
    longest_wait_s: float,
    patience_s: float,
) -> None:
    """Start a measurement, kill a process of it at a random moment, and hold it to what must be true then.

    The moment is a line of the run's journal and a wait after it, so that it falls everywhere on a machine of any speed.
    """
    before = read_published(project)
    lines, wait_s = rng.randrange(MILESTONES), rng.uniform(0, longest_wait_s)
    if lines == MILESTONES - 1:
        wait_s = rng.uniform(0, 0.03)  # the publication takes about as long
    lines += journal_lines(project)
    process = project.start(*command)
    wait_for(lambda: journal_lines(project) >= lines or process.poll() is not None, patience_s)
    time.sleep(wait_s)
    found: list[int] = []
    wait_for(lambda: found.extend(find(project, process)) or found or process.poll() is not None, patience_s)
    if process.poll() is None and hit(found):
        landed()
    output, _ = process.communicate(timeout=patience_s)
    assert gone(project), [command_of(pid) for pid in ours(project)]
    manifest.complete(project.root / "data")  # as the next run does, should the kill have fallen into the publication
    if assert_whole(project, before, EXPERIMENT):
        assert_each_cell_once(project)
    elif process.returncode >= 0 and command == MEASURE:
        assert process.returncode != 0
        assert "Traceback" not in output, output
        assert "what was measured is in" in output and "spillway: " in output, output
    if command != MEASURE:
        project.snakemake("--unlock")  # SIGKILL leaves Snakemake's own lock, and its message says so


def run_to_the_end(project: Project, patience_s: float) -> None:
    """The next run works: it publishes what was asked, every cell once."""
    before = read_published(project)
    again = project.run(*MEASURE, timeout_s=patience_s)
    assert again.returncode == 0, again.stdout + again.stderr
    assert assert_whole(project, before, EXPERIMENT), "the next run published nothing"
    assert_each_cell_once(project)


def journal_lines(project: Project) -> int:
    """Lines of all journals of the experiment's runs."""
    return sum(len(path.read_bytes().splitlines()) for path in project.root.glob("runs/cpu/*/*/journal.jsonl"))


def hit(pids: list[int]) -> bool:
    """Whether a process was there to be killed; a zombie is not."""
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                os.kill(pid, signal.SIGKILL)
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


def assert_each_cell_once(project: Project) -> None:
    """What was asked is in the data, every request of every cell once."""
    requests = published(project, f"{EXPERIMENT}.requests")
    cells = published(project, f"{EXPERIMENT}.cells")
    assert sorted(cells.cell) == ["prompt_tokens=128", "prompt_tokens=64"]
    assert not requests.duplicated(["boot", "cell", "request"]).any()
    assert requests[requests.phase == "measured"].groupby("cell").size().to_dict() == dict.fromkeys(cells.cell, 5)


@pytest.fixture
def real(small: Project) -> Project:
    """The copy with stock vLLM in place of the fake server."""
    engine = ROOT / ".envs/engine-cpu"
    if not (engine / "bin/python").exists():
        pytest.skip("no engine in .envs/engine-cpu: scripts/setup engine-cpu")
    shutil.rmtree(small.root / ".envs/engine-cpu")
    (small.root / ".envs/engine-cpu").symlink_to(engine)
    (engine / ".ready").touch()
    return small


REAL_VICTIMS: Victims = {
    "Snakemake": (("snakemake", EXPERIMENT), launched),
    "the launcher": (MEASURE, launched),
    "the supervisor": (MEASURE, which("supervisor.py")),
    "vLLM's server": (
        MEASURE,
        lambda project, _: [p for p in which("api_server")(project, _) if "supervisor.py" not in command_of(p)],
    ),
    "vLLM's engine core": (MEASURE, which("EngineCore")),
    "vLLM's worker": (MEASURE, which("Worker")),
}


@pytest.mark.engine
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_with_real_vllm(real: Project, real_chain: tuple[int, int], fault: Fault) -> None:
    kill_in_a_row(real, real_chain, {f"{name}, real vLLM": how for name, how in REAL_VICTIMS.items()}, fault, 8.0, 400)
