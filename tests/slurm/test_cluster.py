"""The cluster profile against a real SLURM of one node: `scripts/slurm test` starts it and runs these.

Each test works in a throw-away copy of the project, with the golden server in place of vLLM.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from spillway.record import parquet
from tests.conftest import Project, copy_project
from tests.faults.aftermath import gone, ours, read_published, stop_ours, wait_for

pytestmark = [
    pytest.mark.skipif("SLURM_CONF" not in os.environ, reason="needs a SLURM of its own: scripts/slurm test"),
    pytest.mark.timeout(900),
]
CORES = len(os.sched_getaffinity(0))
# This SLURM has no accounting: squeue tells what became of a job.
SNAKEMAKE = ("--workflow-profile", "profiles/slurm", "--slurm-status-command", "squeue", "--slurm-no-account", "--config")
PROFILE = (*SNAKEMAKE, "host=cpu", "--")


def slurm(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def jobs() -> dict[str, tuple[str, str, str]]:
    """Every job that SLURM remembers: id -> partition, state, GPUs asked for."""
    rows = slurm("squeue", "--states=all", "--noheader", "--Format=JobID:20,Partition:20,State:20,tres-per-job:40").splitlines()
    return {row[:20].strip(): (row[20:40].strip(), row[40:60].strip(), row[60:].strip()) for row in rows}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = copy_project(tmp_path / "project")
    project.fake_engine("--tokens-per-second", "2000", "--prefill-tokens-per-second", "1000000")
    project.edit("experiments/e3_tpot_context.yaml", "[256, 1024, 4096]", "[64, 128]")
    project.edit("experiments/e3_tpot_context.yaml", "output_tokens: 64", "output_tokens: 8")
    slurm_key = f"slurm: {{partition: cpu, cores: {CORES}, memory_gib: 1, minutes: 30}}"
    project.edit("experiments/hosts/cpu.yaml", "measured: true\n", f"measured: true\n{slurm_key}\n")
    yield project
    stop_ours(project)


def run(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.run("snakemake", *arguments, timeout_s=400)


def test_each_experiment_is_a_job_and_what_it_measured_is_published(project):
    before, known = read_published(project), set(jobs())
    done = run(project, *PROFILE, "e10_activity", "e3_tpot_context")
    assert done.returncode == 0, done.stdout + done.stderr
    new = {job: seen for job, seen in jobs().items() if job not in known}
    assert [seen[:2] for seen in new.values()] == [("cpu", "COMPLETED")] * 2
    changed = {file.split(".")[0] for file, hashed in read_published(project).items() if before.get(file) != hashed}
    assert changed == {"cpu/e10_activity", "cpu/e3_tpot_context"}
    requests = parquet.read(project.root / "data/cpu/e3_tpot_context.requests.parquet")
    assert (requests["outcome"] == "ok").all() and set(requests["prompt_tokens"]) >= {64, 128}
    # The server and its client had the whole machine, not the one core of a task.
    assert parquet.provenance(project.root / "data/cpu/e3_tpot_context.requests.parquet")["host_cores_usable"] == CORES
    assert not ours(project)


def test_a_host_with_gpus_asks_for_them_in_its_partition(project):
    hosts = project.root / "experiments/hosts"
    text = (hosts / "cpu.yaml").read_text().replace("partition: cpu", "partition: gpu")
    (hosts / "node.yaml").write_text(
        text.replace("measured: true\n", "measured: true\ngpus: {name: none, count: 1, memory_gib: 1}\n")
    )
    for path in (project.root / "experiments").glob("e*.yaml"):
        experiment = yaml.safe_load(path.read_text())
        there = experiment["hosts"]["cpu"] if path.stem == "e10_activity" else {"not_run": "has no server to run"}
        path.write_text(yaml.safe_dump(experiment | {"hosts": experiment["hosts"] | {"node": there}}))
    known = set(jobs())
    done = run(project, *SNAKEMAKE, "host=node", "--", "e10_activity")
    assert done.returncode == 0, done.stdout + done.stderr
    ((partition, state, gpus),) = (seen for job, seen in jobs().items() if job not in known)
    assert (partition, state) == ("gpu", "COMPLETED") and re.fullmatch(r"(gres[:/])?gpu:1", gpus)
    assert "node/e10_activity.activity_profile.parquet" in read_published(project)


def test_making_numbers_is_no_job(project):
    known = set(jobs())
    run(project, *PROFILE, "build/cpu/numbers.json")  # fails, since the copy's experiment is not the recorded one
    assert "stale" in (project.root / "logs/numbers/cpu.log").read_text()
    assert set(jobs()) == known


def test_a_host_that_names_no_partition_is_refused_in_the_job(project):
    before = read_published(project)
    path = project.root / "experiments/hosts/cpu.yaml"
    path.write_text(re.sub(r"slurm: .*\n", "", path.read_text()))
    done = run(project, *PROFILE, "e10_activity")
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "experiments/hosts/cpu.yaml: slurm: found nothing, in a job of the partition 'cpu'" in said
    assert read_published(project) == before and not ours(project)


@pytest.mark.parametrize("how", ["scancel", "Ctrl-C"])
def test_a_job_that_is_cancelled_leaves_nothing_and_the_next_one_measures(project, how):
    project.fake_engine("--tokens-per-second", "2", "--prefill-tokens-per-second", "1000000")
    before, known = read_published(project), set(jobs())
    snakemake = project.start("snakemake", *PROFILE, "e3_tpot_context")
    try:
        # Snakemake, the job's script, its Snakemakes, the measurement, and a server that has begun to answer.
        assert wait_for(lambda: list((project.root / "runs").rglob("server.log")), 120), "no server in the job"
        assert len(ours(project)) >= 5
        ((job, _),) = ((job, seen) for job, seen in jobs().items() if job not in known)
        if how == "scancel":
            slurm("scancel", job)
        else:
            os.killpg(snakemake.pid, signal.SIGINT)
        said, _ = snakemake.communicate(timeout=300)
    finally:
        snakemake.kill()
    assert snakemake.returncode == 1, said
    assert wait_for(lambda: jobs()[job][1] == "CANCELLED", 120), jobs()
    assert gone(project, 120), ours(project)
    assert read_published(project) == before
    assert not [path for path in (project.root / "data").rglob(".*.parquet*")]
    project.fake_engine("--tokens-per-second", "2000", "--prefill-tokens-per-second", "1000000")
    again = run(project, *PROFILE, "e3_tpot_context")
    assert again.returncode == 0, again.stdout + again.stderr
    assert read_published(project) != before
