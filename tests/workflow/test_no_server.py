"""Whatever is done to files or flags, building from recorded data starts no server and loses no data."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Project

pytestmark = pytest.mark.workflow
MEASURING = re.compile(r"^rule (e\d+_\w+|measure):|spillway\.measure", re.MULTILINE)


def planned(project: Project, *arguments: str) -> str:
    done = project.snakemake("-n", "-p", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def hashes(project: Project) -> str:
    command = "find data -type f -print0 | sort -z | xargs -0 sha256sum"
    return subprocess.run(["sh", "-c", command], cwd=project.root, capture_output=True, text=True, check=True).stdout


def test_clone_builds_the_paper_without_measuring(project: Project) -> None:
    plan = planned(project, "paper.pdf")
    assert "rule numbers:" in plan
    assert not MEASURING.search(plan)


def test_default_target_does_not_measure(project: Project) -> None:
    assert not MEASURING.search(planned(project))


def test_forcing_everything_does_not_measure(project: Project) -> None:
    assert not MEASURING.search(planned(project, "-F", "paper.pdf"))


def test_newer_experiment_files_do_not_measure(project: Project) -> None:
    for path in (project.root / "experiments").rglob("*.yaml"):
        path.touch()
    assert not MEASURING.search(planned(project, "all"))


def test_deleting_all_output_keeps_the_data(project: Project) -> None:
    before = hashes(project)
    built = project.snakemake("build/cpu/numbers.json")
    assert built.returncode == 0, built.stdout + built.stderr
    done = project.snakemake("all", "--delete-all-output")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (project.root / "build/cpu/numbers.json").exists(), "nothing was deleted, so the test says nothing"
    assert hashes(project) == before


def test_the_pattern_would_find_a_measurement(project: Project) -> None:
    project.fake_engine()
    assert MEASURING.search(planned(project, "e3_tpot_context"))


@pytest.mark.parametrize("target", ["paper.pdf", "all"])
def test_a_missing_data_file_ends_the_build_by_name_though_everything_is_built(project: Project, target: str) -> None:
    """The hard case: later files exist and are newer, so that a careless graph says there is nothing to do."""
    for file in ["build/cpu/numbers.json", "build/cpu/paper/paper.tex", "build/cpu/paper/paper.pdf", "paper.pdf"]:
        path = project.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    missing = Path("data/cpu/e3_tpot_context.requests.parquet")
    (project.root / missing).unlink()
    done = project.snakemake(target)
    assert done.returncode != 0
    assert str(missing) in done.stdout + done.stderr


@pytest.mark.parametrize("target", ["e13_agent", "papr.pdf", "E1_memory"])
def test_a_target_typed_wrong_is_answered_with_the_list(project: Project, target: str) -> None:
    done = project.snakemake(target)
    answer = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"{target}: no such target" in answer
    assert "e13_agents" in answer
    assert "paper.pdf" in answer


@pytest.mark.parametrize(
    ("setting", "message"),
    [("hots=cpu", "unknown setting; expected: host"), ("host=gpu9", "no such host; in experiments/hosts/: cpu")],
)
def test_a_setting_typed_wrong_is_refused(project: Project, setting: str, message: str) -> None:
    done = project.snakemake("paper.pdf", "--config", setting)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
