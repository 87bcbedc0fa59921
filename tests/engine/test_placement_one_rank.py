"""One rank's placement on stand-ins of the CUDA driver and vLLM: the weights move, the outputs do not, the proof holds.

Needs an interpreter with torch: the engine's.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from spillway.placement.plan import load_plan
from spillway.placement.proof import load_proofs

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = Path(os.environ.get("SPILLWAY_ENGINE_PYTHON", ROOT / ".envs" / "engine-cpu" / "bin" / "python"))
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no engine at {PYTHON}: scripts/setup engine-cpu"),
]


def one_rank(folder, case="measured"):
    script = HERE / "stand_in" / "one_rank.py"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPILLWAY_")}
    done = subprocess.run(
        [str(PYTHON), str(script), str(folder), case], capture_output=True, text=True, timeout=100,
        env=environment | {"PYTHONPATH": str(ROOT / "workflow"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rank")
    return folder, one_rank(folder)


def test_outputs_are_the_unplaced_models_in_place_and_staged(measured):
    _, result = measured
    assert len(result["equal"]) == 25 and all(result["equal"])
    # Four placed layers; steps: first (measured: staged from 64 rows), again, staged, in place, staged.
    assert result["in_place"] == [False] * 12 + [True] * 4 + [False] * 4


def test_the_proof_satisfies_the_checker(measured):
    folder, result = measured
    assert result["faults"] == []
    (proof,) = load_proofs(folder / "proof")
    plan = load_plan(folder / "plan.json")
    assert proof.switch_over.rows == 64 and proof.staging_bytes > 0 and proof.state == "ready"
    assert {name for name, ids in plan.layers.items() if ids} == set(proof.layers)


def test_a_copy_made_after_loading_is_undone(measured):
    folder, result = measured
    (proof,) = load_proofs(folder / "proof")
    # Experts of half a page leave gaps in the range; the copy would have closed them, on the GPU.
    assert result["contiguous"] == [False, True, False, False, False]
    layer = proof.layers["model.layers.0.mlp.experts"].tensors["w13_weight"]
    assert layer.host_bytes == 4 << 20, "three experts of 1 MiB, two odd and one even: two pages"


def test_staging_can_be_switched_off(tmp_path):
    result = one_rank(tmp_path, "off")
    assert all(result["equal"]) and all(result["in_place"]) and result["faults"] == []
    (proof,) = load_proofs(tmp_path / "proof")
    assert proof.staging_bytes == 0 and proof.switch_over is None


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("missing layer", "PlanError: the plan does not name layer model.layers.9.mlp.experts"),
        ("extra layer", "PlanError: the plan is for another model: layers that the model does not have: model.layers.5"),
        ("repacked", "was repacked after loading"),
        ("no host memory", "HostMemoryError: the plan needs"),
        ("driver refuses", "PageError: host NUMA node 0 gave"),
    ],
)
def test_what_cannot_be_placed_is_an_error(tmp_path, case, reason):
    result = one_rank(tmp_path, case)
    assert reason in result["error"]
    assert result["loaded"] == (case == "repacked"), "refused after weights were loaded"
    assert not list(tmp_path.glob("proof/rank*.json")), "a proof was left behind"
