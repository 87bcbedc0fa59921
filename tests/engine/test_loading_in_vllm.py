"""Real vLLM on the CPU, with a plan on the stand-in driver: what is placed is proved by every rank.

Engine and workers are processes of their own, as in a server. A plan that is not obeyed to the letter ends the start.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from spillway.engine.tinymodel import write_model
from spillway.placement import choose
from spillway.placement.discovery import ENTRY_POINT, write_discovery
from spillway.placement.plan import Plan, identify_model, moe_layers, read_json
from spillway.placement.proof import Asked, check_proofs, load_proofs

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = Path(os.environ.get("SPILLWAY_ENGINE_PYTHON", ROOT / ".envs" / "engine-cpu" / "bin" / "python"))
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no engine at {PYTHON}: scripts/setup engine-cpu"),
]
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model, and a plugin that puts the stand-ins in place before Spillway's."""
    folder = tmp_path_factory.mktemp("loading")
    write_model(folder / "model", {"layers": 2, "experts": 16, "experts_per_token": 4, "hidden": 256, "expert_hidden": 256})
    write_discovery(folder)
    entry_points = folder / "spillway_placement-0.dist-info" / "entry_points.txt"
    text = entry_points.read_text()
    entry_points.write_text(text.replace(ENTRY_POINT, "spillway_placement = vllm_plugin:register"))
    assert entry_points.read_text() != text
    return folder


def plan_of(folder: Path, host: int, *parameters: str) -> Plan:
    """A plan of `host` random experts, and of whole parameters."""
    config = read_json(folder / "model" / "config.json")
    plan = choose.random_experts(identify_model(config), moe_layers(config), host, 0)
    return plan.model_copy(update={"parameters": parameters})


def start(folder: Path, out: Path, plan: Plan, ranks: int = 1, **arguments: object) -> subprocess.CompletedProcess[str]:
    """One start of vLLM, with the plan in `out`; it answers with 8 tokens."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPILLWAY_", "VLLM_", "PYTHON"))}
    path = os.pathsep.join(map(str, (folder, HERE / "stand_in", ROOT / "workflow")))
    settings = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    plan.save(out / "plan.json")
    settings |= {"SPILLWAY_PLAN": str(out / "plan.json"), "SPILLWAY_PROOF_DIR": str(out / "proof")}
    script = [str(PYTHON), str(HERE / "stand_in" / "vllm_loading.py"), str(folder), str(ranks), json.dumps(arguments)]
    return subprocess.run(script, env=clean | settings, capture_output=True, text=True, timeout=230, cwd=out)


def test_every_rank_proves_the_experts_and_the_embedding_that_it_placed(folder, tmp_path):
    plan = plan_of(folder, 12, EMBEDDING)
    done = start(folder, tmp_path, plan, ranks=2)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert check_proofs(plan, load_proofs(tmp_path / "proof"), 2, Asked()) == []


def test_a_plan_that_was_not_obeyed_ends_the_start(folder, tmp_path):
    done = start(folder, tmp_path, plan_of(folder, 12), model_impl="transformers")
    assert done.returncode != 0
    reason = "Refused: the plan was not obeyed: no layer of this model is"
    assert [line for line in (done.stdout + done.stderr).splitlines() if reason in line], done.stderr[-3000:]
    assert not list(tmp_path.glob("proof/rank*.json"))
