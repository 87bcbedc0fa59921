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


def test_a_plan_whose_layers_stand_in_another_order_is_the_same(measured, tmp_path):
    folder, _ = measured
    result = one_rank(tmp_path, "other order")
    assert all(result["equal"]) and result["faults"] == []
    (first,), (turned,) = (load_proofs(each / "proof") for each in (folder, tmp_path))
    assert turned.staging_bytes == first.staging_bytes and turned.layers == first.layers
    assert list(load_plan(tmp_path / "plan.json").layers) == list(reversed(load_plan(folder / "plan.json").layers))


def test_an_expert_that_no_sample_looks_at_is_found_in_the_other_memory(tmp_path):
    faults = one_rank(tmp_path, "misplaced")["faults"]
    assert "rank 0: model.layers.0.mlp.experts: experts [1, 2, 4, 5] on the host, plan: [1, 2, 5]" in faults


def test_a_parameter_alone_can_be_placed_and_proved(tmp_path):
    result = one_rank(tmp_path, "parameters")
    assert all(result["equal"]) and result["faults"] == [] and result["in_place"] == []
    (proof,) = load_proofs(tmp_path / "proof")
    # 1000 rows of 1 KiB.
    assert proof.state == "ready" and proof.parameters == {"model.embed_tokens.weight": 2 << 20}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("missing layer", "PlanError: the plan does not name layer model.layers.9.mlp.experts"),
        ("extra layer", "PlanError: the plan is for another model: layers that the model does not have: model.layers.5"),
        ("unknown parameter", "PlanError: parameters that the plan puts on the host but this model does not have"),
        ("own experts", "Refused: the plan was not obeyed"),
        ("own experts, embedding", "Refused: the plan was not obeyed"),
        ("never finished", "Refused: vLLM never finished the weights of model.layers.2.mlp.experts (1 layers)"),
        ("repacked", "was repacked after loading"),
        ("torn", "Refused: model.layers.0.mlp.experts: the tensors of one expert lie in different memories"),
        ("no host memory", "HostMemoryError: the plan needs"),
        ("no memory for both", "placed already), SPILLWAY_HOST_MEMORY_BYTES leaves"),
        ("driver refuses", "PageError: host NUMA node 0 gave"),
    ],
)
def test_what_cannot_be_placed_is_an_error(tmp_path, case, reason):
    result = one_rank(tmp_path, case)
    assert reason in result["error"]
    found_after = ("never finished", "repacked", "torn")
    assert result["loaded"] == (case in found_after), "refused after weights were loaded"
    assert not list(tmp_path.glob("proof/rank*.json")), "a proof was left behind"
