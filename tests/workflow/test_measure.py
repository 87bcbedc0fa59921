"""Measuring, with a fake server in place of vLLM: what is asked is measured, once, alone, and whole or not at all."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from spillway.record import manifest, parquet
from tests.conftest import Project, copy_project
from tests.faults.aftermath import gone, ours, runs

pytestmark = pytest.mark.workflow


@pytest.fixture
def small(project: Project) -> Project:
    """A copy with a fast fake engine and small cells."""
    project.fake_engine("--tokens-per-second", "2000", "--prefill-tokens-per-second", "1000000")
    project.edit("experiments/e3_tpot_context.yaml", "[256, 1024, 4096]", "[64, 128]")
    project.edit("experiments/e3_tpot_context.yaml", "output_tokens: 64", "output_tokens: 8")
    return project


def intact(project: Project) -> bool:
    data = project.root / "data"
    listed = manifest.read_manifest(data)
    for file in listed:
        manifest.verify(data, file, listed)
    return not list(data.rglob(".*.parquet*"))


def test_rerun_by_name_measures_just_that_and_always_anew(small: Project) -> None:
    before = runs(small)
    seen = set()
    for _ in range(2):
        done = small.snakemake("e3_tpot_context")
        assert done.returncode == 0, done.stdout + done.stderr
        after = runs(small)
        seen.add(after["cpu/e3_tpot_context.requests.parquet"])
        assert {file for file in after if after[file] != before.get(file)} == {
            file for file in after if file.startswith("cpu/e3_tpot_context.")
        }
    assert len(seen | {before["cpu/e3_tpot_context.requests.parquet"]}) == 3
    origin = parquet.provenance(small.root / "data/cpu/e3_tpot_context.requests.parquet")
    assert origin["dirty"] is True, "the copy's experiments were edited after its commit"
    assert gone(small)


def test_two_invocations_wait_for_each_other(small: Project) -> None:
    """Snakemake counts resources within one invocation only; the second one here is another process in another folder."""
    other = copy_project(small.root.parent / "other")
    other.fake_engine("--tokens-per-second", "2000", "--prefill-tokens-per-second", "1000000")
    lock = str(small.root / "measuring.lock")
    started = [project.start("snakemake", "e3_tpot_context", SPILLWAY_LOCK=lock) for project in (small, other)]
    for process in started:
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 0, output
    spans = []
    for project in (small, other):
        (run,) = (project.root / "runs/cpu/e3_tpot_context").iterdir()
        logs = [path.stat() for path in run.rglob("server.log")]
        spans.append((run.name[:16], max(stat.st_mtime for stat in logs)))
    (first_start, first_end), (second_start, _) = sorted(spans)
    assert first_start <= time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(first_end)) <= second_start


@pytest.mark.parametrize("victim", ["snakemake", "launcher"])
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_no_process_and_no_half_file(small: Project, victim: str, blow: signal.Signals) -> None:
    before = runs(small)
    process = small.start("snakemake", "e3_tpot_context")
    deadline = time.monotonic() + 60
    while not list(small.root.glob("runs/cpu/*/*/boot0/server.log")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(random.uniform(0, 1.5))
    if victim == "snakemake":
        # What Ctrl-C does reaches the whole group; SIGTERM to Snakemake alone makes it wait for its job.
        os.killpg(process.pid, blow) if blow != signal.SIGKILL else process.kill()
    else:
        launchers = [pid for pid in ours(small) if b"spillway.measure" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        for pid in launchers:
            os.kill(pid, blow)
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert gone(small)
    assert intact(small)
    after = runs(small)
    changed = {file for file in after if after[file] != before.get(file)}
    assert changed == set() or changed == {file for file in after if file.startswith("cpu/e3_tpot_context.")}
    small.snakemake("--unlock")  # SIGKILL leaves Snakemake's own lock, and its message says so
    again = small.snakemake("e3_tpot_context")
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--die-after-requests", "6"], "the server"),
        (["--die-after-requests", "0"], "the server"),
        (["--never-healthy"], "not ready: health"),
        (["--hang-after-requests", "0"], "not ready: prefill"),
    ],
)
def test_a_server_that_fails_is_reported_and_nothing_is_published(small: Project, flags: list[str], message: str) -> None:
    small.fake_engine("--tokens-per-second", "2000", *flags)
    small.edit("experiments/hosts/cpu.yaml", "ready_timeout_s: 300", "ready_timeout_s: 8\n  answer_timeout_s: 2.0")
    before = runs(small)
    done = small.snakemake("e3_tpot_context")
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert "server.log" in done.stdout + done.stderr, "the message leads to the log"
    assert runs(small) == before
    assert gone(small)


def test_cells_with_failed_requests_are_published_with_their_marks(small: Project) -> None:
    small.fake_engine("--tokens-per-second", "2000", "--hang-after-requests", "6")
    small.edit("experiments/hosts/cpu.yaml", "ready_timeout_s: 300", "ready_timeout_s: 8\n  answer_timeout_s: 2.0")
    done = small.snakemake("e3_tpot_context")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prompt_tokens=128: failed: failed_requests" in done.stdout + done.stderr
    cells = parquet.read(small.root / "data/cpu/e3_tpot_context.cells.parquet").set_index("cell")
    assert cells.outcome["prompt_tokens=128"] == "failed"
    assert cells.requests_timeout["prompt_tokens=128"] == 5


def test_a_killed_snakemake_takes_a_long_run_with_it(small: Project) -> None:
    """Snakemake under SIGKILL cannot stop its job; the launcher notices that it is alone."""
    small.fake_engine("--tokens-per-second", "2")
    process = small.start("snakemake", "e3_tpot_context")
    deadline = time.monotonic() + 60
    while not list(small.root.glob("runs/cpu/*/*/boot0/server.log")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert ours(small), "the run was over already, so the test says nothing"
    assert gone(small)
    assert intact(small)


def test_a_calculated_experiment_starts_no_server(project: Project) -> None:
    done = project.snakemake("e11_seats")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(project.root.rglob("server.log"))
    recomputed = parquet.read(project.root / "data/cpu/e11_seats.seats_published.parquet")
    assert recomputed.agrees.all() and len(recomputed) == 10


def test_without_the_hosts_gpus_nothing_is_installed_or_measured(project: Project) -> None:
    """An engine for GPUs took minutes to install before the missing GPU was noticed, or was recorded as the host's."""
    project.fake_gpu("NVIDIA A100-SXM4-80GB")
    said = "hosts/h200.yaml: gpus: found 1 x NVIDIA H200, on a machine with NVIDIA A100-SXM4-80GB"
    done = project.snakemake("e3_tpot_context", "--config", "host=h200")
    assert done.returncode and said in done.stdout + done.stderr
    assert not (project.root / "logs/engine_environment").exists() and not (project.root / "runs").exists()
    done = project.run("python", "-m", "spillway.measure", "e3_tpot_context", "--host", "h200")
    assert done.returncode and done.stderr.startswith("spillway: ") and said in done.stderr
    assert not (project.root / "runs/h200/e3_tpot_context").exists()
    done = project.snakemake("--dry-run", "e3_tpot_context", "--config", "host=h200")
    assert done.returncode == 0, done.stderr


def test_a_start_that_memory_refuses_is_a_row(small: Project) -> None:
    """The fake server starts whatever it is given, so the prediction must be found wrong, and said to be."""
    done = small.snakemake("e1_memory")
    assert done.returncode == 0, done.stdout + done.stderr
    (attempt,) = parquet.read(small.root / "data/cpu/e1_memory.attempts.parquet").to_dict("records")
    assert (attempt["predicted"], attempt["found"], attempt["agrees"]) == ("KV cache of one sequence", "fits", False)


def test_every_file_of_a_run_tells_where_it_comes_from(small: Project) -> None:
    done = small.snakemake("e3_tpot_context")
    assert done.returncode == 0, done.stdout + done.stderr
    origins = [parquet.provenance(path) for path in (small.root / "data/cpu").glob("e3_tpot_context.*.parquet")]
    assert len({json.dumps(origin, sort_keys=True) for origin in origins}) == 1
    for name in ("run", "spec_hash", "environment_hash", "lock_hash", "model_config_hash", "commit", "host_boot_id", "engine"):
        assert origins[0][name], name
