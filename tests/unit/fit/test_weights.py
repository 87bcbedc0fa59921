"""Formats in bytes, and how tensor parallelism cuts a matrix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.fit.architectures import describe
from spillway.fit.formats import BF16, Exl3, Fp4, Fp8Block, Rows, parse_format
from spillway.fit.weights import WHOLE, FitError, Split, SplitVocabulary, Weights


def test_formats_of_one_expert_matrix() -> None:
    shape = (2304, 5120)
    assert (BF16.value_bytes(shape), BF16.scale_bytes(shape)) == (2 * 2304 * 5120, 0)
    assert (Fp8Block().value_bytes(shape), Fp8Block().scale_bytes(shape)) == (2304 * 5120, 18 * 40 * 4)
    assert (Fp4().value_bytes(shape), Fp4().scale_bytes(shape)) == (2304 * 5120 // 2, 2304 * 160)
    assert (Exl3(3).value_bytes(shape), Exl3(3).scale_bytes(shape)) == (2304 * 5120 * 3 // 8, 2 * (2304 + 5120))
    assert (Rows(8, 8).value_bytes((10, 256)), Rows(8, 8).scale_bytes((10, 256))) == (2560, 80)


def test_a_block_at_the_edge_has_a_scale_of_its_own() -> None:
    assert Fp8Block().scale_bytes((129, 1)) == 2 * 4


@pytest.mark.parametrize("text", ["fp8", "exl3:9", "int4", "rows:4", "fp8:128", ""])
def test_unknown_formats_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match="exl3:BITS"):
        parse_format(text)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 64))
def test_a_split_matrix_adds_up_to_the_whole(gpus: int, each: int) -> None:
    whole = Weights("attention", "q", 3, (8 * each, 16), BF16, Split(0, 8, "heads"))
    assert whole.on_gpu(gpus).bytes * gpus == whole.bytes


def test_fewer_kv_heads_than_gpus_are_repeated() -> None:
    whole = Weights("attention", "k", 1, (4 * 128, 2048), BF16, Split(0, 4, "KV heads"))
    assert whole.on_gpu(8).shape == (128, 2048)


def test_a_replicated_matrix_is_whole_on_every_gpu() -> None:
    norm = Weights("norms", "norm", 1, (2048,), BF16, WHOLE)
    assert norm.on_gpu(4) == norm


def test_the_vocabulary_is_padded_before_it_is_cut() -> None:
    words = Weights("embedding", "embedding", 1, (1718, 256), BF16, SplitVocabulary())
    assert words.on_gpu(1).shape == (1728, 256)
    assert words.on_gpu(2).shape == (864, 256)


def test_heads_that_cannot_be_shared_are_an_error() -> None:
    with pytest.raises(FitError, match="q: 32 heads cannot be shared by 3 GPUs"):
        Weights("attention", "q", 1, (32 * 128, 2048), BF16, Split(0, 32, "heads")).on_gpu(3)


def test_kv_cache_per_token_is_two_halves_of_every_layer(qwen3_30b: dict[str, object]) -> None:
    model = describe(qwen3_30b)
    assert model.cache("bf16", 1).token_bytes == 2 * 48 * 4 * 128 * 2
    assert model.cache("fp8", 4).token_bytes == 2 * 48 * 1 * 128
    assert model.cache("bf16", 8).token_bytes == 2 * 48 * 1 * 128 * 2  # 4 KV heads on 8 GPUs
    with pytest.raises(FitError, match="expected one of: bf16, fp8"):
        model.cache("fp4", 1)


def test_latent_cache_is_whole_on_every_gpu(deepseek_v3: dict[str, object]) -> None:
    assert describe(deepseek_v3).cache("bf16", 8).token_bytes == 61 * 576 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size: found None"),
        ({"num_hidden_layers": "48"}, "num_hidden_layers: found '48'"),
        ({"torch_dtype": "int3"}, "torch_dtype"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM; known: Qwen3MoeForCausalLM"),
        ({"architectures": []}, "architectures: found"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: found 'no'"),
    ],
)
def test_wrong_configurations_name_the_key(qwen3_30b: dict[str, object], change: dict[str, object], message: str) -> None:
    with pytest.raises(FitError, match=message):
        describe(qwen3_30b | change)


def test_a_missing_key_is_named(qwen3_30b: dict[str, object]) -> None:
    del qwen3_30b["moe_intermediate_size"]
    with pytest.raises(FitError, match="moe_intermediate_size: found nothing"):
        describe(qwen3_30b)


def test_a_sliding_window_is_bytes_of_a_sequence(deepseek_v41: dict[str, object]) -> None:
    cache = describe(deepseek_v41).cache("fp8", 2)
    assert cache.sequence_bytes == 40 * 128 * 584
    assert cache.bytes(tokens=1000, sequences=3) == 3 * 40 * 128 * 584 + 1000 * 1790


def test_absorbed_matrices_are_made_at_load_and_in_no_checkpoint(deepseek_v3: dict[str, object]) -> None:
    # W_UK [512, 128 heads, 128] and W_UV [512, 128 heads, 128] of 61 layers in bf16, cut by heads
    model = describe(deepseek_v3)
    (absorbed,) = model.made_at_load
    assert absorbed.bytes == 61 * 512 * 128 * (128 + 128) * 2
    assert absorbed.on_gpu(8).bytes * 8 == absorbed.bytes
