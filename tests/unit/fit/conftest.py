"""Configurations of released models, cut to the keys that decide bytes."""

from typing import Any

import pytest

from spillway.fit.published import published_model

QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}
FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"}


@pytest.fixture
def qwen3_30b() -> dict[str, Any]:
    """Qwen/Qwen3-30B-A3B."""
    return QWEN3 | {
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
    }


@pytest.fixture
def qwen3_235b() -> dict[str, Any]:
    """Qwen/Qwen3-235B-A22B."""
    return QWEN3 | {
        "hidden_size": 4096,
        "moe_intermediate_size": 1536,
        "intermediate_size": 12288,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
    }


@pytest.fixture
def mixtral_8x7b() -> dict[str, Any]:
    """mistralai/Mixtral-8x7B-v0.1."""
    return {
        "architectures": ["MixtralForCausalLM"],
        "torch_dtype": "bfloat16",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }


@pytest.fixture
def deepseek_v3() -> dict[str, Any]:
    """deepseek-ai/DeepSeek-V3."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "torch_dtype": "bfloat16",
        "quantization_config": FP8_BLOCK,
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }


@pytest.fixture
def deepseek_v41() -> dict[str, Any]:
    """deepseek-ai/DeepSeek-V4.1-Flash."""
    return dict(published_model("deepseek-v4.1-flash").config)
