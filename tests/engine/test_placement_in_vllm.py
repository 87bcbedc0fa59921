"""In real vLLM on the CPU: the class is replaced once in every process, and a plan without a GPU is refused."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from spillway.engine.tinymodel import SHAPE, write_model
from spillway.placement import choose
from spillway.placement.counts import load_counts
from spillway.placement.discovery import write_discovery
from spillway.placement.plan import identify_model, moe_layers, read_json

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SPILLWAY_ENGINE_PYTHON", ROOT / ".envs" / "engine-cpu" / "bin" / "python"))
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no engine at {PYTHON}: scripts/setup engine-cpu"),
]
# 40 tokens: on a processor with AMX, vLLM 0.32's experts die of an illegal instruction if its first step has fewer than 33.
ANSWER = """
import sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(model=sys.argv[1], dtype="bfloat16", enforce_eager=True, max_model_len=256, skip_tokenizer_init=True,
              kv_cache_memory_bytes=1 << 26)
    out = llm.generate([{"prompt_token_ids": list(range(5, 45))}], SamplingParams(max_tokens=3, ignore_eos=True, temperature=0))
    print("ANSWER", list(out[0].outputs[0].token_ids))
"""
REGISTER_TWICE = """
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from spillway.placement.plugin import register
register(); register()
print("REPLACED", op_registry_oot["RoutedExperts"].__name__, issubclass(op_registry_oot["RoutedExperts"], RoutedExperts))
op_registry_oot["RoutedExperts"] = RoutedExperts
try:
    register()
except RuntimeError as error:
    print("OTHER", error)
"""


def run(folder, code, *arguments, **environment):
    path = os.pathsep.join(map(str, write_discovery(folder / "discovery")))
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPILLWAY_", "VLLM_", "PYTHON"))}
    script = folder / "script.py"
    script.write_text(code)
    settings = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return subprocess.run(
        [str(PYTHON), str(script), *map(str, arguments)], env=clean | settings | environment,
        capture_output=True, text=True, timeout=230, cwd=folder,
    )  # fmt: skip


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    write_model(folder, SHAPE)
    return folder


def test_registering_again_changes_nothing_and_another_plugin_is_named(tmp_path):
    done = run(tmp_path, REGISTER_TWICE, SPILLWAY_COUNTS=str(tmp_path / "counts.json"))
    assert "REPLACED PlacedRoutedExperts True" in done.stdout, done.stderr[-2000:]
    assert "another plugin (vllm.model_executor.layers.fused_moe.routed_experts.RoutedExperts)" in done.stdout


def test_every_process_replaces_the_class_once_and_a_plan_is_refused_without_a_gpu(tmp_path, model):
    config = read_json(model / "config.json")
    choose.random_experts(identify_model(config), moe_layers(config), 10, 0).save(tmp_path / "plan.json")
    done = run(
        tmp_path, ANSWER, model,
        SPILLWAY_PLAN=str(tmp_path / "plan.json"), SPILLWAY_PROOF_DIR=str(tmp_path / "proof"),
    )  # fmt: skip
    log = done.stdout + done.stderr
    assert done.returncode != 0 and "ANSWER" not in done.stdout
    assert "Refused: this server cannot be started with a plan: placement needs a CUDA GPU" in log
    processes = re.findall(r"RoutedExperts replaced by PlacedRoutedExperts in process (\d+)", log)
    assert len(processes) >= 2 and len(set(processes)) == len(processes), processes


def test_without_a_plan_nothing_is_replaced(tmp_path, model):
    done = run(tmp_path, ANSWER, model)
    assert "ANSWER [" in done.stdout, done.stderr[-2000:]
    assert "replaced by" not in done.stdout + done.stderr


def test_picks_of_a_running_server_are_counted(tmp_path, model):
    """40 prompt tokens and two fed back, four layers, top-4: 168 picks in each layer, warm-up apart."""
    script = ANSWER.replace(
        "    out =", "    import shutil, time; time.sleep(7); shutil.copy(sys.argv[2], sys.argv[3])\n    out ="
    )
    script += "    time.sleep(7)\n"
    after, before = tmp_path / "after.json", tmp_path / "before.json"
    done = run(tmp_path, script, model, after, before, SPILLWAY_COUNTS=str(after))
    assert "ANSWER [" in done.stdout, done.stderr[-2000:]
    counted = load_counts(after).since(load_counts(before))
    assert counted.origin == "routing of the served model" and set(counted.layers) == set(
        moe_layers(read_json(model / "config.json"))
    )
    assert [sum(picks) for picks in counted.picks().values()] == [168] * 4
