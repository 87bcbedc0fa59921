"""The machine around a run: a clock that is set, locks that were left, a set-up that was interrupted."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, Project
from tests.faults.aftermath import gone, published, wait_for
from tests.faults.conftest import CAMPAIGN, Fault
from tests.faults.test_kills import EXPERIMENT, assert_each_cell_once

STEPPING_CLOCK = '''
"""Run a measurement while somebody sets the clock: every reading of the wall clock is a day off, back and forth."""
import datetime, runpy, sys, time
import spillway.measure.experiment, pandas

real_datetime, real_time, readings = datetime.datetime, time.time, [0]

def off_s():
    readings[0] += 1
    return 86_400 * (1 if readings[0] % 2 else -1)

class Stepping(real_datetime):
    @classmethod
    def now(cls, tz=None):
        return real_datetime.now(tz) + datetime.timedelta(seconds=off_s())

datetime.datetime = Stepping
time.time = lambda: real_time() + off_s()
sys.argv = ["spillway.measure", *sys.argv[1:]]
try:
    runpy.run_module("spillway.measure", run_name="__main__")
finally:
    print(f"{readings[0]} readings of the wall clock", file=sys.stderr)
'''
CALCULATE = (sys.executable, "-m", "spillway.measure", "e10_activity", "--host", "cpu")


def test_steps_of_the_clock_change_no_duration(small: Project, fault: Fault) -> None:
    """Setting the real clock would disturb everything else on the machine, and Linux has no namespace for it."""
    script = small.root / "stepping_clock.py"
    script.write_text(STEPPING_CLOCK)
    with fault("clock set back and forth by a day") as landed:
        started_s = time.monotonic()
        done = small.run(sys.executable, str(script), EXPERIMENT, "--host", "cpu")
        elapsed_s = time.monotonic() - started_s
        assert done.returncode == 0, done.stderr
        assert int(done.stderr.splitlines()[-1].split()[0]) > 5, "the clock was hardly read, so the test says nothing"
        landed()
        assert_each_cell_once(small)
        boots, cells = published(small, f"{EXPERIMENT}.boots"), published(small, f"{EXPERIMENT}.cells")
        requests = published(small, f"{EXPERIMENT}.requests")
        times = [boots.startup_s, boots.health_s, cells.duration_s, requests.ttft_s, requests.e2e_s, requests.end_s]
        for values in times:
            assert (values > 0).all() and (values < elapsed_s).all()
        assert gone(small)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dead process", json.dumps({"pid": 4_194_303, "experiment": "e3_tpot_context", "since": "2026-01-01T00:00:00+00:00"})),
        pytest.param(
            "another start of the machine",
            json.dumps({"pid": 1, "boot_id": "0" * 36, "experiment": "e1_memory", "since": "2020"}),
            marks=CAMPAIGN,
        ),
        pytest.param("half-written", '{"pid": 12', marks=CAMPAIGN),
    ],
)
def test_a_stale_lock_holds_nobody_up(project: Project, fault: Fault, name: str, content: str) -> None:
    (project.root / "measuring.lock").write_text(content)
    with fault(f"stale lock: {name}") as landed:
        landed()
        done = project.run(*CALCULATE)
        assert done.returncode == 0, done.stderr
        assert "waits" not in done.stderr


@pytest.mark.parametrize(
    "name", ["is a symbolic link", *(pytest.param(name, marks=CAMPAIGN) for name in ("folder is absent", "is a folder"))]
)
def test_a_lock_that_cannot_be_taken_is_told(project: Project, fault: Fault, name: str) -> None:
    lock = project.root / "locks" / "lock"
    if name != "folder is absent":
        lock.parent.mkdir()
    if name == "is a symbolic link":
        lock.symlink_to("elsewhere")
    if name == "is a folder":
        lock.mkdir()
    with fault(f"lock: {name}") as landed:
        landed()
        done = project.run(*CALCULATE, SPILLWAY_LOCK=str(lock))
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert str(lock) in done.stderr
        again = project.run(*CALCULATE)
        assert again.returncode == 0, again.stderr


# In place of an interpreter that makes environments: slow enough to be killed at any point, and as half-done then.
STUB_PYTHON = """#!/bin/sh
case "$*" in
    *"import sys; sys.exit"* | *ensurepip*) exit 0 ;;
    *"import pip"*) [ -e "$(dirname "$0")/pip" ] ;;
    *"-m venv"*)
        mkdir -p "$3/bin"; sleep 0.1; cp "$0" "$3/bin/python"; sleep 0.1; touch "$3/bin/pip" ;;
    *"-m pip install"*)
        here=$(dirname "$0"); rm -f "$here/installed"
        for part in 1 2 3 4; do sleep 0.05; echo $part >> "$here/parts"; done
        touch "$here/installed" ;;
    *) exit 0 ;;
esac
"""


@pytest.fixture
def setup_folder(tmp_path: Path) -> Path:
    """scripts/setup with a lock to install and an interpreter that only pretends to."""
    folder = tmp_path / "project"
    for name in ("scripts", "envs", "stubs"):
        (folder / name).mkdir(parents=True)
    shutil.copy2(ROOT / "scripts/setup", folder / "scripts/setup")
    for name in ("envs/harness.txt", "pyproject.toml"):
        (folder / name).write_text("locked\n")
    for version in ("python3.11", "python3.12", "python3.13", "python3"):
        (folder / "stubs" / version).write_text(STUB_PYTHON)
        (folder / "stubs" / version).chmod(0o755)
    return folder


@pytest.mark.parametrize("victim", ["all of it", "the script alone"])
def test_an_interrupted_set_up_is_repeated(setup_folder: Path, fault: Fault, victim: str, pytestconfig: pytest.Config) -> None:
    rng = random.Random(pytestconfig.getoption("seed", 0))
    environment = os.environ | {"PATH": f"{setup_folder / 'stubs'}:{os.environ['PATH']}"}
    marker = setup_folder / ".envs/harness/.lock"
    command = [str(setup_folder / "scripts/setup"), "harness"]
    with fault(f"kill -9 of scripts/setup: {victim}") as landed:
        for _ in range(3):
            process = subprocess.Popen(
                command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            time.sleep(rng.uniform(0, 0.8))
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL) if victim == "all of it" else process.kill()
                    landed()
            process.wait()
            assert wait_for(lambda group=process.pid: not alive_in(group), 30), "what the script had started never ends"
            if not marker.exists():
                continue
            assert (setup_folder / ".envs/harness/bin/installed").exists(), "half an environment counts as made"
            shutil.rmtree(setup_folder / ".envs")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert marker.read_text().strip()
        assert (setup_folder / ".envs/harness/bin/installed").exists()
        again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (again.returncode, again.stdout) == (0, "")


def alive_in(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
