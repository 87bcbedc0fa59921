"""Real vLLM on the GPU: tokens and log probabilities with a plan equal those without one, bit for bit.

Each case boots the engine twice on a small checkpoint of random weights, with the model's own routing; the second boot
reads host experts in place, then staged, then overwritten, which must show. Needs the engine's packages on PYTHONPATH.
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
    """Both arms' rows, in so little GPU memory that such tests may run beside each other."""
    command = [sys.executable, str(ROOT / "benchmarks/placement.py"), "--out", str(out), "--own-routing"]
    command += ["--arms", "base,ours", "--batches", "", "--prompts", "", "--arm-limit", "240", *options]
    command += ["--memory", "0.15", "--kv-cache-bytes", str(4 * 2**30)]
    subprocess.run(command, check=True, timeout=490)
    return [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def expect_same(rows, ways):
    failed = [row for row in rows if row.get("outcome") == "failed"]
    assert not failed, failed
    compared = {row["cell"].removeprefix("outputs-ours-"): row for row in rows if row["cell"].startswith("outputs-")}
    assert set(compared) - {"zeroed"} == set(ways)
    for way in ways:
        assert all(compared[way]["same_tokens"]) and all(compared[way]["same_logprobs"]), (way, compared[way])
    if "zeroed" in compared:
        assert not any(compared["zeroed"]["same_logprobs"]), "host experts do not matter here: the comparison proves nothing"


def write_checkpoint(folder, kind, device="cuda"):
    """Five layers of the 30B shape with 32 experts and random weights in safetensors, as published checkpoints store them.

    The weights have a trained model's size, so that every expert matters: with vLLM's dummy weights none does, and all
    layers are equal. Five layers share two staging buffers, which a layer mixed up with another would show.
    """
    from safetensors.torch import save_file

    sys.path.insert(0, str(ROOT / "benchmarks"))
    import placement

    layers, experts, vocabulary, hidden, heads, kv, head, width = 5, 32, 151936, 2048, 32, 4, 128, 768
    config = placement.SHAPES["qwen3-30b-a3b"] | {"num_hidden_layers": layers, "num_experts": experts}
    if kind == "fp8":
        unquantised = ["lm_head", *[f"model.layers.{i}.mlp.gate" for i in range(layers)]]
        quantisation = placement.SHAPES["qwen3-235b-a22b-fp8"]["quantization_config"]
        config["quantization_config"] = quantisation | {"modules_to_not_convert": unquantised}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator(device=device).manual_seed(0)
    tensors = {}

    def add(name, *shape, quantised=True):
        drawn = torch.randn(shape, generator=generator, device=device)
        if kind == "fp8" and quantised:
            tensors[f"{name}.weight"] = (drawn * 64).to(torch.float8_e4m3fn).cpu()
            blocks = torch.rand([-(-n // 128) for n in shape], generator=generator, device=device)
            tensors[f"{name}.weight_scale_inv"] = ((blocks + 0.5) * 0.02 / 64).cpu()
        else:
            tensors[f"{name}.weight"] = (drawn * 0.02).bfloat16().cpu()

    def add_ones(name, size):
        tensors[f"{name}.weight"] = torch.ones(size, dtype=torch.bfloat16)

    add("model.embed_tokens", vocabulary, hidden, quantised=False)
    add("lm_head", vocabulary, hidden, quantised=False)
    add_ones("model.norm", hidden)
    for i in range(layers):
        layer = f"model.layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            add_ones(f"{layer}.{name}", hidden)
        for name in ("q_norm", "k_norm"):
            add_ones(f"{layer}.self_attn.{name}", head)
        for name, rows in (("q_proj", heads * head), ("k_proj", kv * head), ("v_proj", kv * head)):
            add(f"{layer}.self_attn.{name}", rows, hidden)
        add(f"{layer}.self_attn.o_proj", hidden, heads * head)
        add(f"{layer}.mlp.gate", experts, hidden, quantised=False)
        for e in range(experts):
            for name, shape in (("gate_proj", (width, hidden)), ("up_proj", (width, hidden)), ("down_proj", (hidden, width))):
                add(f"{layer}.mlp.experts.{e}.{name}", *shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_in_place_and_staged_outputs_equal_all_in_vram(kind, tmp_path):
    from spillway.placement.plan import load_plan
    from spillway.placement.proof import require_proof

    checkpoint, out = write_checkpoint(tmp_path / "checkpoint", kind), tmp_path / "out"
    rows = run(out, "--model", str(checkpoint), "--load-format", "safetensors", "--host-experts", "9")
    expect_same(rows, ["in_place", "staged"])
    (proof,) = require_proof(load_plan(out / "plan.json"), out / "proof-ours0", 1)
    assert proof.host_bytes > 0 and proof.backend_names == {"TRITON"}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("stage_rows", ["1", "off"])
def test_two_ranks_give_the_tokens_of_two_ranks_without_a_plan(stage_rows, tmp_path):
    from spillway.placement.plan import load_plan
    from spillway.placement.proof import require_proof

    checkpoint, out = write_checkpoint(tmp_path / "checkpoint", "bf16"), tmp_path / "out"
    options = ["--load-format", "safetensors", "--host-experts", "9", "--tp", "2", "--stage-rows", stage_rows]
    rows = run(out, "--model", str(checkpoint), *options)
    expect_same(rows, ["measured"])
    require_proof(load_plan(out / "plan.json"), out / "proof-ours0", 2)


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
    command += ["--arms", "ours", "--layers", "5", "--batches", "", "--prompts", ""]
    subprocess.run(command, check=True, timeout=240, env=dict(os.environ))
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert row["outcome"] == "failed" and reason in row["reason"], row
