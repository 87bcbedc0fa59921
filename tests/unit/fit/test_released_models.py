"""Bytes and parameters computed from a configuration against what the released checkpoints say of themselves."""

from typing import Any

from spillway.fit.architectures import describe
from spillway.fit.weights import bytes_by_component, parameters


def test_qwen3_and_mixtral_checkpoints_to_the_byte(
    qwen3_30b: dict[str, Any], qwen3_235b: dict[str, Any], mixtral_8x7b: dict[str, Any]
) -> None:
    # total_size of each model.safetensors.index.json on Hugging Face
    for config, total in ((qwen3_30b, 61_064_245_248), (qwen3_235b, 470_187_269_120), (mixtral_8x7b, 93_405_585_408)):
        assert sum(bytes_by_component(describe(config).weights).values()) == total


def test_deepseek_v3_checkpoint_by_data_type(deepseek_v3: dict[str, Any]) -> None:
    # The hub's safetensors metadata of deepseek-ai/DeepSeek-V3: BF16 3,918,786,560 values, F8_E4M3 680,571,043,840,
    # F32 41,555,600 (scales and correction biases).
    model = describe(deepseek_v3)
    values = {"bf16": 0, "fp8 128x128": 0, "fp32": 0}
    for group in (*model.weights, *model.draft):
        values[group.format.name] += group.parameters
        values["fp32"] += group.scale_bytes // 4
    assert values == {"bf16": 3_918_786_560, "fp8 128x128": 680_571_043_840, "fp32": 41_555_600}


def test_deepseek_v41_checkpoint_to_the_byte_and_parameter(deepseek_v41: dict[str, Any]) -> None:
    # model.safetensors.index.json of deepseek-ai/DeepSeek-V4.1-Flash at dba1be0a: total_size 510,286,023,000; parameters
    # by group as counted from its headers (bojieli/OpenTallas, data/inventory/deepseek-v4.1-flash.json).
    model = describe(deepseek_v41)
    assert sum(group.bytes for group in (*model.weights, *model.draft)) == 510_286_023_000
    by_component = {name: 0 for name in bytes_by_component(model.weights)}
    for group in model.weights:
        by_component[group.component] += group.parameters
    assert by_component["routed experts"] == 543_581_798_400
    assert by_component["engram tables"] == 196_613_849_600
    assert parameters(model.draft) == 13_589_544_960 + 635_817_570
    assert parameters(model.weights) + parameters(model.draft) == 763_205_315_794


def test_tied_embeddings_take_no_head(qwen3_30b: dict[str, Any]) -> None:
    tied = bytes_by_component(describe(qwen3_30b | {"tie_word_embeddings": True}).weights)
    apart = bytes_by_component(describe(qwen3_30b).weights)
    assert "head" not in tied
    assert sum(apart.values()) - sum(tied.values()) == 151_936 * 2048 * 2


def test_layers_without_experts_have_one_dense_mlp(qwen3_30b: dict[str, Any]) -> None:
    model = describe(qwen3_30b | {"mlp_only_layers": [0], "decoder_sparse_step": 2})
    assert model.expert_layers == tuple(range(1, 48, 2))
    assert bytes_by_component(model.weights)["dense MLP"] == 24 * 3 * 2048 * 6144 * 2


def test_zero_experts_leave_a_dense_model(qwen3_30b: dict[str, Any]) -> None:
    model = describe(qwen3_30b | {"num_experts": 0})
    assert model.routed_experts == 0
    assert "routed experts" not in bytes_by_component(model.weights)
