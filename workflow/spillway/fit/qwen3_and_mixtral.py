"""Qwen3-MoE and Mixtral: grouped-query attention and routed experts, shapes as in transformers' model classes."""

from functools import partial

from spillway.fit.config import (
    Config,
    flag,
    layers_of,
    linear_format,
    list_or_none,
    plain_format,
    router_format,
    whole,
    whole_or,
)
from spillway.fit.kv_cache import KvCache, grouped_query_cache
from spillway.fit.shapes import Model, embedding_and_head, gated_mlp, grouped_query_attention
from spillway.fit.weights import Weights


def qwen3_moe(config: Config) -> Model:
    """Qwen3MoeForCausalLM; layers that `mlp_only_layers` and `decoder_sparse_step` exclude have one dense MLP."""
    layers, hidden = layers_of(config), whole(config, "hidden_size")
    heads, kv_heads, head_size = _heads(config, hidden)
    experts = whole(config, "num_experts", at_least=0)
    step, dense_only = whole_or(config, "decoder_sparse_step", 1, at_least=1), list_or_none(config, "mlp_only_layers")
    sparse = tuple(i for i in range(layers) if experts and i not in dense_only and (i + 1) % step == 0)
    plain, linear = plain_format(config), linear_format(config)
    biases = flag(config, "attention_bias", False)
    weights = [
        *embedding_and_head(config, hidden),
        *grouped_query_attention(layers, hidden, heads, kv_heads, head_size, linear, plain, biases),
        Weights("norms", "layer norms", 2 * layers + 1, (hidden,), plain),
        Weights("norms", "q and k norms", 2 * layers, (head_size,), plain),
    ]
    if sparse:
        inner = whole(config, "moe_intermediate_size")
        weights += gated_mlp("routed experts", "expert", len(sparse) * experts, hidden, inner, linear)
        weights.append(Weights("router", "router", len(sparse), (experts, hidden), router_format(config)))
    if len(sparse) < layers:
        inner = whole(config, "intermediate_size")
        weights += gated_mlp("dense MLP", "MLP", layers - len(sparse), hidden, inner, linear)
    per_token = whole(config, "num_experts_per_tok") if sparse else 0
    return Model("Qwen3MoeForCausalLM", tuple(weights), sparse, experts, per_token, _cache(config))


def mixtral(config: Config) -> Model:
    """MixtralForCausalLM; every layer has routed experts of `intermediate_size`."""
    layers, hidden = layers_of(config), whole(config, "hidden_size")
    heads, kv_heads, head_size = _heads(config, hidden)
    experts = whole(config, "num_local_experts")
    plain, linear = plain_format(config), linear_format(config)
    inner = whole(config, "intermediate_size")
    weights = (
        *embedding_and_head(config, hidden),
        *grouped_query_attention(layers, hidden, heads, kv_heads, head_size, linear, plain, biases=False),
        Weights("norms", "layer norms", 2 * layers + 1, (hidden,), plain),
        *gated_mlp("routed experts", "expert", layers * experts, hidden, inner, linear),
        Weights("router", "router", layers, (experts, hidden), plain),
    )
    per_token = whole(config, "num_experts_per_tok")
    return Model("MixtralForCausalLM", weights, tuple(range(layers)), experts, per_token, _cache(config))


def _heads(config: Config, hidden: int) -> tuple[int, int, int]:
    """Query heads, KV heads and head size; without `head_dim` the heads share the hidden size, as transformers does."""
    heads = whole(config, "num_attention_heads")
    return heads, whole(config, "num_key_value_heads"), whole_or(config, "head_dim", max(1, hidden // heads), at_least=1)


def _cache(config: Config) -> partial[KvCache]:
    _, kv_heads, head_size = _heads(config, whole(config, "hidden_size"))
    return partial(grouped_query_cache, layers_of(config), kv_heads, head_size)
