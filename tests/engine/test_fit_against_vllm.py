"""Predicted weight bytes against the parameters of vLLM itself, for a small instance of each architecture: within 1 %.

vLLM is run on the CPU from a config.json alone, with dummy weights. Prints the table of both sides (pytest -s).
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spillway.fit.architectures import describe
from spillway.fit.checkpoint import component_of
from spillway.fit.weights import bytes_by_component

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = Path(os.environ.get("SPILLWAY_ENGINE_PYTHON", ROOT / ".envs" / "engine-cpu" / "bin" / "python"))
TOLERANCE = 0.01

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"}
ROUTERS = [f"model.layers.{layer}.mlp.gate" for layer in range(3)]
ATTENTION = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512}
QWEN3 = ATTENTION | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "vocab_size": 1000,
    "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = ATTENTION | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "torch_dtype": "bfloat16", "vocab_size": 1000,
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V3 = ATTENTION | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_group": 2, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "routed_scaling_factor": 2.5,
    "norm_topk_prob": True, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V41 = {
    "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32], "expert_dtype": "fp8",
    },
    "text_config": ATTENTION | {
        "model_type": "deepseek_v41_text", "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 6,
        "moe_intermediate_size": 128, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 128,
        "o_lora_rank": 64, "o_groups": 4, "sliding_window": 128, "compress_ratios": [0, 2, 2, 1, 1, 1],
        "compress_rope_theta": 160000, "kv_source_layer_ids": [1, 3], "index_source_layer_ids": [1, 3, 5],
        "index_n_heads": 4, "index_head_dim": 128, "index_topk": 64, "candidate_source_layer_id": -1, "hc_mult": 4,
        "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [], "engram_num_embeddings": [],
        "num_nextn_predict_layers": 0, "swiglu_limit": 10.0, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
        "norm_topk_prob": True, "routed_scaling_factor": 1.5, "tie_word_embeddings": False,
    },
    "vision_config": {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "patch_size": 14,
        "downsample_ratio": 3,
    },
}  # fmt: skip


def run(script: str, *arguments: object, **environment: str) -> None:
    """Run the script in the engine's Python; fails with the end of its output if it ended otherwise than well."""
    if not PYTHON.is_file():
        pytest.skip(f"no engine at {PYTHON}: make it with scripts/setup engine-cpu, or set SPILLWAY_ENGINE_PYTHON")
    scripts = HERE / "vllm_weights"
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(scripts)} | environment
    command = ["nice", str(PYTHON), str(scripts / script), *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def compare(config: dict[str, Any], found: dict[str, int], name: str) -> None:
    predicted = bytes_by_component(group.on_gpu(1) for group in describe(config).weights)
    measured: dict[str, int] = {}
    for parameter, size in found.items():
        measured[component_of(parameter)] = measured.get(component_of(parameter), 0) + size
    print(f"\n{name}: component, predicted, vLLM")
    for component in dict.fromkeys([*predicted, *measured]):
        print(f"  {component:20} {predicted.get(component, 0):>12,} {measured.get(component, 0):>12,}")
    assert set(measured) == set(predicted)
    for component, size in predicted.items():
        assert measured[component] == pytest.approx(size, rel=TOLERANCE), component
    assert sum(measured.values()) == pytest.approx(sum(predicted.values()), rel=TOLERANCE)


@pytest.mark.parametrize("config", [QWEN3, MIXTRAL, DEEPSEEK_V3], ids=["qwen3", "mixtral", "deepseek-v3"])
def test_weights_of_a_booted_engine(config: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    record = tmp_path / "record"
    run("boot.py", tmp_path, SPILLWAY_WEIGHTS_RECORD=str(record), VLLM_ENABLE_V1_MULTIPROCESSING="0")
    compare(config, json.loads(record.read_text()), request.node.name)


CONSTRUCTED = {
    "qwen3-fp8": QWEN3 | {"quantization_config": FP8_BLOCK | {"modules_to_not_convert": ROUTERS}},
    "qwen3-fp8-with-its-router": QWEN3 | {"quantization_config": FP8_BLOCK},
    "deepseek-v3-fp8": DEEPSEEK_V3 | {"quantization_config": FP8_BLOCK},
    "deepseek-v4.1": DEEPSEEK_V41,
}


@pytest.fixture(scope="module")
def constructed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of them, filled by one process, most of whose time is the import of vLLM."""
    root = tmp_path_factory.mktemp("constructed")
    for name, config in CONSTRUCTED.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    run("construct.py", *(root / name for name in CONSTRUCTED))
    return root


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_weights_of_a_constructed_model(name: str, constructed: Path, request: pytest.FixtureRequest) -> None:
    found = json.loads((constructed / name / "record.json").read_text())
    compare(CONSTRUCTED[name], found, request.node.name)
