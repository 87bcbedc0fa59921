"""Real vLLM on the GPU: tokens and log probabilities with a plan equal those without one, bit for bit.

Each case boots the engine twice on a few layers of a real shape, with the model's own routing; the second boot reads
host experts in place, then staged. Needs the engine's packages on PYTHONPATH.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("the engine's packages are not on the path", allow_module_level=True)
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def run(out, *options):
    """Both arms' rows."""
    command = [sys.executable, str(ROOT / "benchmarks/placement.py"), "--out", str(out), "--own-routing"]
    command += ["--arms", "base,ours", "--batches", "", "--prompts", "", "--arm-limit", "240", *options]
    subprocess.run(command, check=True, timeout=490)
    return [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def expect_same(rows, ways):
    failed = [row for row in rows if row.get("outcome") == "failed"]
    assert not failed, failed
    compared = {row["cell"]: row for row in rows if row["cell"].startswith("outputs-")}
    assert set(compared) == {f"outputs-ours-{way}" for way in ways}
    for cell, row in compared.items():
        assert all(row["same_tokens"]) and all(row["same_logprobs"]), (cell, row)


@pytest.mark.parametrize("shape", ["qwen3-30b-a3b", "qwen3-235b-a22b-fp8"])
def test_in_place_and_staged_outputs_equal_all_in_vram(shape, tmp_path):
    from spillway.placement.plan import load_plan
    from spillway.placement.proof import require_proof

    rows = run(tmp_path, "--shape", shape, "--layers", "5")
    expect_same(rows, ["in_place", "staged"])
    (proof,) = require_proof(load_plan(tmp_path / "plan.json"), tmp_path / "proof-ours0", 1)
    assert proof.host_bytes > 0 and proof.backend_names == {"TRITON"}


@pytest.fixture
def checkpoint(tmp_path):
    """Two layers of the 30B shape with random weights in safetensors, as a published checkpoint stores them."""
    from safetensors.torch import save_file

    sys.path.insert(0, str(ROOT / "benchmarks"))
    import placement

    config = placement.SHAPES["qwen3-30b-a3b"] | {"num_hidden_layers": 2, "num_experts": 32, "vocab_size": 151936}
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator(device="cuda").manual_seed(0)

    def matrix(*shape):
        return (torch.randn(shape, generator=generator, device="cuda") * 0.02).bfloat16().cpu()

    hidden, heads, kv, head, width = 2048, 32, 4, 128, 768
    tensors = {"model.embed_tokens.weight": matrix(151936, hidden), "lm_head.weight": matrix(151936, hidden)}
    tensors["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    for i in range(2):
        layer = f"model.layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
        for name in ("q_norm", "k_norm"):
            tensors[f"{layer}.self_attn.{name}.weight"] = torch.ones(head, dtype=torch.bfloat16)
        for name, rows in (("q_proj", heads * head), ("k_proj", kv * head), ("v_proj", kv * head)):
            tensors[f"{layer}.self_attn.{name}.weight"] = matrix(rows, hidden)
        tensors[f"{layer}.self_attn.o_proj.weight"] = matrix(hidden, heads * head)
        tensors[f"{layer}.mlp.gate.weight"] = matrix(32, hidden)
        for e in range(32):
            for name, shape in (("gate_proj", (width, hidden)), ("up_proj", (width, hidden)), ("down_proj", (hidden, width))):
                tensors[f"{layer}.mlp.experts.{e}.{name}.weight"] = matrix(*shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_real_checkpoint_loads_into_both_memories(checkpoint, tmp_path):
    rows = run(tmp_path / "out", "--model", str(checkpoint), "--load-format", "safetensors", "--host-experts", "9")
    expect_same(rows, ["in_place", "staged"])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("stage_rows", ["1", "off"])
def test_two_ranks_give_the_tokens_of_two_ranks_without_a_plan(stage_rows, tmp_path):
    from spillway.placement.plan import load_plan
    from spillway.placement.proof import require_proof

    rows = run(tmp_path, "--layers", "5", "--tp", "2", "--stage-rows", stage_rows)
    expect_same(rows, ["measured"])
    require_proof(load_plan(tmp_path / "plan.json"), tmp_path / "proof-ours0", 2)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"SPILLWAY_HOST_MEMORY_BYTES": "1000000000"}, "GiB of host memory"),
        ({"SPILLWAY_STAGE_ROWS": "many"}, "SPILLWAY_STAGE_ROWS"),
    ],
)
def test_refusals_name_their_reason_before_loading(setting, reason, tmp_path, monkeypatch):
    for key, value in setting.items():
        monkeypatch.setenv(key, value)
    command = [sys.executable, str(ROOT / "benchmarks/placement.py"), "--out", str(tmp_path), "--own-routing"]
    command += ["--arms", "ours", "--layers", "5", "--batches", "", "--prompts", "", "--no-outputs"]
    subprocess.run(command, check=True, timeout=240, env=dict(os.environ))
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert row["outcome"] == "failed" and reason in row["reason"], row
