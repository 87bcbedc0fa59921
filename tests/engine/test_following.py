"""Experts that change places: on stand-ins of the CUDA driver and vLLM, and in real vLLM on the CPU on that driver.

What is tested is all ours: mappings, copies, spare slots, staging, what a refusing driver leaves, the journal and its check.
"""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spillway.engine.tinymodel import write_model
from spillway.placement.discovery import write_discovery

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = Path(os.environ.get("SPILLWAY_ENGINE_PYTHON", ROOT / ".envs" / "engine-cpu" / "bin" / "python"))
# The matrices are small, and threads that wait for each other on a busy machine take many times as long as one.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no engine at {PYTHON}: scripts/setup engine-cpu"),
]


def stand_in(script, folder, *arguments, path=()):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPILLWAY_", "VLLM_", "PYTHON"))}
    found = os.pathsep.join([*map(str, path), str(ROOT / "workflow")])
    done = subprocess.run(
        [str(PYTHON), str(HERE / "stand_in" / script), str(folder), *map(str, arguments)],
        capture_output=True, text=True, timeout=230, env=clean | {"PYTHONPATH": found} | ONE_THREAD,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("case", "swaps", "staged"),
    [("moves", 70, True), ("host copy", 70, True), ("moves unstaged", 10, False), ("host copy unstaged", 10, False)],
)
def test_outputs_and_bytes_stay_right_and_nothing_leaks_while_experts_move(tmp_path, case, swaps, staged):
    result = stand_in("moving.py", tmp_path, case, swaps)
    assert result["equal"], "an output differs from the unplaced model's"
    assert result["bytes"], "an expert lies where the follower does not think, or has other bytes"
    assert result["stages"] == staged
    for before, after in (result["slots"], result["memory"], result["mapped"]):
        assert before == after, "spare slots, memory or mappings were leaked"
    done, told = result["swaps"]
    assert done == told >= swaps
    assert result["as journal"] and result["per layer"] == [3, 2, 4]
    # Two experts and two tensors at every 64th swap.
    low, high, counted, steps = result["reads"]
    assert low == high == counted == steps + 1, "reads were miscounted; the first step is the one that proves the placement"
    assert result["audits"] == 4 * (done // 64)


@pytest.mark.parametrize("case", ["failures", "host copy failures"])
def test_whichever_driver_call_of_a_swap_fails_every_expert_stays_readable(tmp_path, case):
    result = stand_in("moving.py", tmp_path, case)
    assert result["equal"] and result["bytes"]
    assert set(result["calls"]) == {"cuMemcpyAsync", "cuMemUnmap", "cuMemMap", "cuMemSetAccess"}
    # Two copies to the GPU, then three calls for each of two tensors in two views; the same back but for the copies.
    there, back = 2 + 12, 12 + (2 if case == "failures" else 0)
    assert result["outcomes"] == ["not promoted"] * there + ["not demoted"] * back
    assert result["stopped"] == there + back, "following went on after a failure"
    assert result["slots"] == (24 if case == "failures" else 12)


def test_a_range_that_cannot_be_mapped_again_ends_the_engine(tmp_path):
    error = stand_in("moving.py", tmp_path, "hole")["error"]
    assert error.startswith("LostPages: ") and "could not be mapped again" in error


def test_all_ranks_stop_where_one_fails(tmp_path):
    result = stand_in("moving.py", tmp_path, "ranks")
    assert result == {
        "stopped": "rank 1: no such page", "moving": 0, "swaps": 1, "last": "stopped", "bytes": True,
    }  # fmt: skip


def test_two_ranks_swap_the_same_experts_before_the_same_steps_until_one_fails(tmp_path):
    folders = [tmp_path / "rank0", tmp_path / "rank1"]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(lambda rank: stand_in("moving.py", folders[rank], "two ranks", rank), (0, 1)))
    assert all(rank["equal"] and rank["bytes"] and rank["steps"] == ranks[0]["steps"] for rank in ranks)
    first, second = (rank["moved"] for rank in ranks)
    (failed,) = [number for number, move in enumerate(second) if move[-1] != "done"]
    assert failed > 10 and first[:failed] == second[:failed]
    assert all(move[-1] == "done" for move in first)
    stopped = {rank["stopped"] for rank in ranks}
    assert len(stopped) == 1 and stopped.pop().startswith("rank 1: cu")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moving")
    write_model(folder / "model", {"layers": 2, "experts": 16, "experts_per_token": 4, "hidden": 256, "expert_hidden": 256})
    discovery = write_discovery(folder / "discovery")
    return folder, discovery, stand_in("vllm_moving.py", folder, "plain", path=discovery)["answers"][0]


def same(answers, due):
    return all(found == expected[: len(found)] for answer in answers for found, expected in zip(answer, due, strict=True))


def test_a_thousand_swaps_in_vllm_change_no_token_and_leak_nothing(tiny):
    folder, discovery, due = tiny
    result = stand_in("vllm_moving.py", folder, "fed", 1000, path=discovery)
    assert same(result["answers"], due), "tokens or log probabilities differ from those without a plan"
    done, told = result["swaps"]
    assert done == told >= 1000 and result["as journal"]
    for before, after in (result["slots"], result["memory"]):
        assert before == after
    assert result["staged"] and len(due) == 2


def test_the_planner_brings_what_is_read_to_gpu_memory(tiny):
    folder, discovery, due = tiny
    result = stand_in("vllm_moving.py", folder, "followed", 3, path=discovery)
    assert same(result["answers"], due)
    planned, now = result["host_reads"]
    assert now < planned, "what lies on the host now was read more often than what the plan put there"
    assert result["as journal"]
