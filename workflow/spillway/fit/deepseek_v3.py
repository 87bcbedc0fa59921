"""DeepSeek-V3 (and R1): multi-head latent attention, shared and routed experts, one layer that drafts."""

from dataclasses import replace

from spillway.fit.config import Config, layers_of, linear_format, plain_format, whole, whole_or
from spillway.fit.formats import FP32, Format
from spillway.fit.kv_cache import KvCache, latent_cache
from spillway.fit.shapes import Model, embedding_and_head, gated_mlp
from spillway.fit.weights import Split, SplitVocabulary, Weights


def deepseek_v3(config: Config) -> Model:
    """DeepseekV3ForCausalLM; the first `first_k_dense_replace` layers have one dense MLP."""
    layers, hidden = layers_of(config), whole(config, "hidden_size")
    experts, shared = whole(config, "n_routed_experts"), whole_or(config, "n_shared_experts", 0)
    dense, step = whole_or(config, "first_k_dense_replace", 0), whole_or(config, "moe_layer_freq", 1, at_least=1)
    inner = whole(config, "moe_intermediate_size")
    sparse = tuple(i for i in range(layers) if i >= dense and i % step == 0)
    plain, linear = plain_format(config), linear_format(config)
    weights = [
        *embedding_and_head(config, hidden),
        *_latent_attention(config, layers, hidden, linear, plain),
        Weights("norms", "layer norms", 2 * layers + 1, (hidden,), plain),
        *_experts(len(sparse), experts, shared, hidden, inner, linear, plain),
    ]
    if len(sparse) < layers:
        weights += gated_mlp("dense MLP", "MLP", layers - len(sparse), hidden, whole(config, "intermediate_size"), linear)
    drafts = whole_or(config, "num_nextn_predict_layers", 0)
    latent, rotary = whole(config, "kv_lora_rank"), whole(config, "qk_rope_head_dim")

    def cache(format_name: str, gpus: int) -> KvCache:
        return latent_cache(layers, latent, rotary, format_name)

    return Model(
        architecture="DeepseekV3ForCausalLM",
        weights=tuple(weights),
        expert_layers=sparse,
        experts_per_layer=experts,
        experts_per_token=whole(config, "num_experts_per_tok"),
        cache=cache,
        draft=_draft_layers(config, drafts, hidden, experts, shared, inner, linear, plain),
        made_at_load=_absorbed(config, layers, plain),
    )


def _latent_attention(config: Config, layers: int, hidden: int, linear: Format, plain: Format) -> list[Weights]:
    """Queries and keys through low ranks; the down projections stay whole, the up projections are cut by heads."""
    heads, latent, rotary = (whole(config, k) for k in ("num_attention_heads", "kv_lora_rank", "qk_rope_head_dim"))
    plain_key, value = whole(config, "qk_nope_head_dim"), whole(config, "v_head_dim")
    query_rank = whole_or(config, "q_lora_rank", 0)
    by_heads = Split(0, heads, "heads")
    queries = heads * (plain_key + rotary)
    groups = [
        Weights("attention", "kv_a", layers, (latent + rotary, hidden), linear),
        Weights("norms", "kv_a norm", layers, (latent,), plain),
        Weights("attention", "kv_b", layers, (heads * (plain_key + value), latent), linear, by_heads),
        Weights("attention", "o", layers, (hidden, heads * value), linear, Split(1, heads, "heads")),
    ]
    if not query_rank:
        return [*groups, Weights("attention", "q", layers, (queries, hidden), linear, by_heads)]
    return [
        *groups,
        Weights("attention", "q_a", layers, (query_rank, hidden), linear),
        Weights("norms", "q_a norm", layers, (query_rank,), plain),
        Weights("attention", "q_b", layers, (queries, query_rank), linear, by_heads),
    ]


def _experts(layers: int, experts: int, shared: int, hidden: int, inner: int, linear: Format, plain: Format) -> list[Weights]:
    """Routed experts, the shared experts as one MLP, the router and its float32 correction bias."""
    groups = [
        *gated_mlp("routed experts", "expert", layers * experts, hidden, inner, linear),
        Weights("router", "router", layers, (experts, hidden), plain),
        Weights("router", "correction bias", layers, (experts,), FP32),
    ]
    if shared:
        groups += gated_mlp("shared experts", "shared expert", layers, hidden, shared * inner, linear)
    return groups


def _absorbed(config: Config, layers: int, plain: Format) -> tuple[Weights, ...]:
    """kv_b once more, in two plain parts, which vLLM keeps so that decoding works on latents.

    Source: vLLM 0.32 model_executor/layers/attention/mla_attention.py, process_weights_after_loading.
    """
    heads, latent = whole(config, "num_attention_heads"), whole(config, "kv_lora_rank")
    rows = heads * (whole(config, "qk_nope_head_dim") + whole(config, "v_head_dim"))
    return (Weights("attention", "absorbed kv_b", layers, (rows, latent), plain, Split(0, heads, "heads")),)


def _draft_layers(
    config: Config, drafts: int, hidden: int, experts: int, shared: int, inner: int, linear: Format, plain: Format
) -> tuple[Weights, ...]:
    """A whole layer with experts, the projection of two hidden states to one, and its own embedding and head."""
    if not drafts:
        return ()
    words = whole(config, "vocab_size")
    groups = [
        *_latent_attention(config, drafts, hidden, linear, plain),
        *_experts(drafts, experts, shared, hidden, inner, linear, plain),
        Weights("norms", "layer norms", 5 * drafts, (hidden,), plain),
        Weights("draft layers", "projection", drafts, (hidden, 2 * hidden), plain),
        Weights("draft layers", "embedding and head", 2 * drafts, (words, hidden), plain, SplitVocabulary()),
    ]
    return tuple(replace(group, component="draft layers") for group in groups)
