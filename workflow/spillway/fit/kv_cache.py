"""Bytes of the KV cache: a fixed part, a part per sequence and a slope per token, never one divided by the other."""

from dataclasses import dataclass

from spillway.fit.weights import FitError

VALUE_BYTES = {"bf16": 2, "fp8": 1}
"""Cache format -> bytes of one cached value, where the cache holds plain values."""


@dataclass(frozen=True)
class KvCache:
    """One GPU's KV cache: `fixed_bytes + sequences * sequence_bytes + tokens * token_bytes`."""

    token_bytes: float
    sequence_bytes: int = 0
    fixed_bytes: int = 0

    def bytes(self, tokens: int, sequences: int) -> int:
        """Bytes for `sequences` sequences that hold `tokens` tokens together."""
        return round(self.fixed_bytes + sequences * self.sequence_bytes + tokens * self.token_bytes)


def value_bytes(cache: str, known: dict[str, int] = VALUE_BYTES) -> int:
    """Bytes of one cached value in the cache format; raises FitError with the known ones."""
    if cache not in known:
        raise FitError(f"KV cache format {cache!r}: expected one of: {', '.join(known)}")
    return known[cache]


def grouped_query_cache(layers: int, kv_heads: int, head_size: int, cache: str, gpus: int) -> KvCache:
    """Keys and values: 2 x layers x one GPU's KV heads x head size x width a token; too few KV heads are repeated."""
    return KvCache(2 * layers * max(1, kv_heads // gpus) * head_size * value_bytes(cache))


def latent_cache(layers: int, latent: int, rotary: int, cache: str) -> KvCache:
    """Multi-head latent attention: one latent and one rotary key a token and layer, whole on every GPU."""
    return KvCache(layers * (latent + rotary) * value_bytes(cache))
