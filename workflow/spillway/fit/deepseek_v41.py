"""DeepSeek-V4.1: shared latent attention, hyper-connections, Engram tables, DSpark draft layers and a vision tower.

Shapes follow vLLM 0.32's models/deepseek_v41 and models/deepseek_v4/common/vision.py, data types the released
checkpoint. A configuration nests the text model under `text_config` and the vision tower under `vision_config`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from spillway.fit.config import Config, block_sides, layers_of, part, plain_format, whole, whole_or
from spillway.fit.formats import BF16, FP32, Format, Fp4, Fp8Block, Rows
from spillway.fit.kv_cache import KvCache, value_bytes
from spillway.fit.shapes import Model, gated_mlp
from spillway.fit.weights import WHOLE, FitError, Sharding, Split, SplitVocabulary, Weights
from spillway.spec.shown import shown

# Bytes of one entry of the compressed cache and of the indexer's key cache. bf16: 512 and 128 values. fp8: 448 fp8,
# 64 bf16 rotary and 8 of scales; 128 fp8 and one fp32 scale (vLLM's fp8_ds_mla). fp4: the technical report's 288 and 68.
ENTRY_BYTES = {"bf16": 1024 + 256, "fp8": 584 + 132, "fp4": 288 + 68}
WINDOW_ENTRY_BYTES = {"bf16": 1024, "fp8": 584, "fp4": 584}
ENGRAM_SCALE_GROUP = 32


def deepseek_v41(config: Config) -> Model:
    """DeepseekV41ForCausalLM; every layer of the backbone has routed experts."""
    text = {**config, **part(config, "text_config")}
    layers, hidden = layers_of(text), whole(text, "hidden_size")
    experts, inner = whole(text, "n_routed_experts"), whole(text, "moe_intermediate_size")
    linear, expert = _formats(text)
    vision = part(config, "vision_config")
    routers = 2 if vision else 1
    plain, words = plain_format(text), whole(text, "vocab_size")
    weights = [
        Weights("embedding", "embedding", 1, (words, hidden), plain, SplitVocabulary()),
        Weights("head", "head", 1, (words, hidden), plain, SplitVocabulary()),
        *_layers(text, layers, experts, routers, linear, expert),
        *_compressors(text),
        *_indexers(text, linear),
        Weights("norms", "last norm", 1, (hidden,), plain),
        *_engram(text, linear),
        *gated_mlp("routed experts", "expert", layers * experts, hidden, inner, expert),
    ]
    if vision:
        weights += _vision(vision, hidden)
    return Model(
        architecture="DeepseekV41ForCausalLM",
        weights=tuple(weights),
        expert_layers=tuple(range(layers)),
        experts_per_layer=experts,
        experts_per_token=whole(text, "num_experts_per_tok"),
        cache=_cache_of(text, layers),
        draft=_draft(text, routers, linear, expert),
    )


def _formats(text: Config) -> tuple[Format, Format]:
    """Formats of the linear layers and of the routed experts: with FP4 experts, FP8 scales are one byte (e8m0)."""
    if text.get("quantization_config") is None:
        return plain_format(text), plain_format(text)
    quantization = part(text, "quantization_config")
    sides, kind = block_sides(quantization.get("weight_block_size")), quantization.get("expert_dtype", "fp4")
    if quantization.get("quant_method") != "fp8" or sides is None or kind not in ("fp4", "fp8"):
        raise FitError(
            f"config.json: quantization_config: found {shown(quantization)}; expected quant_method fp8, weight_block_size "
            "[rows, columns] and expert_dtype fp4 or fp8"
        )
    rows, columns = sides
    linear = Fp8Block(rows, columns, scale_width_bytes=1 if kind == "fp4" else 4)
    return linear, Fp4() if kind == "fp4" else linear


def _layers(text: Config, layers: int, experts: int, routers: int, linear: Format, expert: Format) -> list[Weights]:
    """What every layer has beside routed experts: attention, shared expert, router, norms, hyper-connections."""
    hidden, heads, size = (whole(text, key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    query_rank, output_rank, output_groups = (whole(text, key) for key in ("q_lora_rank", "o_lora_rank", "o_groups"))
    copies = whole(text, "hc_mult")
    mixes = (2 + copies) * copies
    by_heads, by_groups = Split(0, heads, "heads"), Split(0, output_groups, "output groups")
    shared = whole(text, "n_shared_experts", at_least=0) * whole(text, "moe_intermediate_size")
    return [
        Weights("attention", "wq_a", layers, (query_rank, hidden), linear),
        Weights("attention", "wkv", layers, (size, hidden), linear),
        Weights("attention", "wq_b", layers, (heads * size, query_rank), linear, by_heads),
        Weights("attention", "wo_a", layers, (output_groups * output_rank, heads * size // output_groups), linear, by_groups),
        Weights("attention", "wo_b", layers, (hidden, output_groups * output_rank), linear, replace(by_groups, axis=1)),
        Weights("attention", "sinks", layers, (heads,), FP32, by_heads),
        Weights("norms", "q norm", layers, (query_rank,), BF16),
        Weights("norms", "kv norm", layers, (size,), BF16),
        Weights("norms", "layer norms", 2 * layers, (hidden,), BF16),
        Weights("router", "router", layers, (experts, hidden), BF16),
        Weights("router", "correction biases", routers * layers, (experts,), FP32),
        Weights("residual mixing", "projections", 2 * layers, (mixes, copies * hidden), FP32),
        Weights("residual mixing", "bases", 2 * layers, (mixes,), FP32),
        Weights("residual mixing", "scales", 2 * layers, (3,), FP32),
        *(gated_mlp("shared experts", "shared expert", layers, hidden, shared, linear) if shared else []),
    ]


def _compressors(text: Config) -> list[Weights]:
    """The layers that write the compressed cache: a projection, a gate where several tokens become one, a norm."""
    hidden, size, sources = whole(text, "hidden_size"), whole(text, "head_dim"), _ids(text, "kv_source_layer_ids")
    gated = [layer for layer in sources if _ratio(text, layer) > 1]
    return [
        Weights("attention", "ungated compressors", len(sources) - len(gated), (size, hidden), BF16),
        Weights("attention", "gated compressors", 2 * len(gated), (size, hidden), BF16),
        Weights("norms", "compressor norms", len(sources), (size,), BF16),
    ]


def _indexers(text: Config, linear: Format) -> list[Weights]:
    """The layers that choose positions; those that also write the compressed cache make its index keys."""
    hidden, size, rank = whole(text, "hidden_size"), whole(text, "head_dim"), whole(text, "q_lora_rank")
    heads, key = whole(text, "index_n_heads"), whole(text, "index_head_dim")
    choosing, writing = len(_ids(text, "index_source_layer_ids")), len(_ids(text, "kv_source_layer_ids"))
    return [
        Weights("attention", "indexer queries", choosing, (heads * key, rank), linear),
        Weights("attention", "indexer head weights", choosing, (heads, hidden), BF16),
        Weights("attention", "indexer keys", writing, (key, size), BF16),
        Weights("norms", "indexer key norms", writing, (key,), BF16),
    ]


def _engram(text: Config, linear: Format) -> list[Weights]:
    """The n-gram tables, one for each Engram layer, and the projection of a token's rows to keys and a value."""
    tables = _ids(text, "engram_num_embeddings")
    if not tables:
        return []
    hidden, copies, width = whole(text, "hidden_size"), whole(text, "hc_mult"), whole(text, "engram_head_dim")
    rows_read = (whole(text, "engram_max_ngram_size") - 1) * whole(text, "engram_n_heads")
    stored = Rows(8, width // ENGRAM_SCALE_GROUP)
    outputs = hidden * (copies + 1)
    return [
        *(Weights("engram tables", "table", 1, (rows, width), stored, Split(0, rows, "rows")) for rows in tables),
        Weights("engram projections", "wkv", len(tables), (outputs, rows_read * width), linear, Split(0, outputs, "outputs")),
        Weights("engram projections", "q and k weights", 2 * len(tables), (copies, hidden), BF16),
    ]


def _draft(text: Config, routers: int, linear: Format, expert: Format) -> tuple[Weights, ...]:
    """DSpark: whole layers with fewer experts, fed by hidden states of some layers, and a low-rank Markov head."""
    drafts = whole_or(text, "num_nextn_predict_layers", 0)
    if not drafts:
        return ()
    hidden, words, rank = whole(text, "hidden_size"), whole(text, "vocab_size"), whole(text, "dspark_markov_rank")
    experts, targets = whole(text, "dspark_n_routed_experts"), len(_ids(text, "dspark_target_layer_ids"))
    groups = [
        *_layers(text, drafts, experts, routers, linear, expert),
        *gated_mlp("draft layers", "expert", drafts * experts, hidden, whole(text, "moe_intermediate_size"), expert),
        Weights("draft layers", "main projection", 1, (hidden, targets * hidden), linear),
        Weights("draft layers", "norms", 2, (hidden,), BF16),
        Weights("draft layers", "Markov head", 2, (words, rank), BF16),
        Weights("draft layers", "confidence head", 1, (1, hidden + rank), BF16),
    ]
    return tuple(replace(group, component="draft layers") for group in groups)


def _vision(vision: Config, hidden: int) -> list[Weights]:
    """A vision transformer and the projector of 3 x 3 patches; vLLM cuts both by heads or inner size."""
    layers, width, heads = layers_of(vision), whole(vision, "hidden_size"), whole(vision, "num_attention_heads")
    inner, patch = whole(vision, "intermediate_size"), whole(vision, "patch_size")
    merged = width * whole(vision, "downsample_ratio") ** 2
    by_heads = Split(0, heads, "vision heads")

    def group(name: str, count: int, shape: tuple[int, ...], stored: Format, sharding: Sharding = WHOLE) -> Weights:
        return Weights("vision", name, count, shape, stored, sharding)

    return [
        group("patch embedding", 1, (width, 3 * patch**2), BF16),
        group("patch embedding bias", 1, (width,), BF16),
        group("q, k and v", 3 * layers, (width, width), BF16, by_heads),
        group("q, k and v biases", 3 * layers, (width,), BF16, by_heads),
        group("o", layers, (width, width), BF16, replace(by_heads, axis=1)),
        group("o biases", layers, (width,), BF16),
        *gated_mlp("vision", "MLP", layers, width, inner, BF16),
        group("norms", 2 * layers + 1, (width,), BF16),
        group("projector in", 1, (hidden, merged), BF16, Split(0, hidden, "outputs")),
        group("projector in bias", 1, (hidden,), BF16, Split(0, hidden, "outputs")),
        group("projector out", 1, (hidden, hidden), BF16, Split(1, hidden, "inputs")),
        group("projector out bias", 1, (hidden,), BF16),
        group("image marks", 3, (hidden,), BF16),
    ]


def _cache_of(text: Config, layers: int) -> Callable[[str, int], KvCache]:
    """Compressed entries of the layers that write them, and a sliding window in every layer; whole on every GPU.

    Per token: the sum over writing layers of 1 / ratio, times an entry. Per sequence: layers x window entries. What the
    engine adds with the prefill chunk is a measured term, not this.
    """
    entries = sum(1 / _ratio(text, layer) for layer in _ids(text, "kv_source_layer_ids"))
    window = whole(text, "sliding_window")

    def cache(format_name: str, gpus: int) -> KvCache:
        return KvCache(
            token_bytes=entries * value_bytes(format_name, ENTRY_BYTES),
            sequence_bytes=layers * window * WINDOW_ENTRY_BYTES[format_name],
        )

    return cache


def _ids(text: Config, key: str) -> Sequence[int]:
    """A list of whole numbers of the configuration; raises FitError naming the key."""
    value = text.get(key)
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise FitError(f"config.json: {key}: found {shown(value)}; expected a list of whole numbers")
    return value


def _ratio(text: Config, layer: int) -> int:
    ratios = _ids(text, "compress_ratios")
    if not 0 <= layer < len(ratios) or ratios[layer] < 1:
        raise FitError(f"config.json: compress_ratios: no ratio of at least 1 for layer {layer}, which writes the cache")
    return ratios[layer]
