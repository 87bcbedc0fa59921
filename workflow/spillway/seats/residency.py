"""The second limit: contexts that the KV cache keeps at once, whether or not their streams are busy."""

import numpy as np
from numpy.typing import NDArray

from spillway.seats.errors import SeatsError

Integers = NDArray[np.int64]


def contexts_that_fit(kv_cache_tokens: float, context_tokens: Integers, level: float, draws: int, seed: int) -> int:
    """The largest number of developers whose contexts together exceed the KV cache with probability at most `level`.

    One context for each developer, drawn from `context_tokens` (requests of a trace; repeat them for the time that each
    is alive). Beyond it a developer's prefix is dropped and his next turn reads the whole context again. Raises
    SeatsError for a cache or a context without tokens.
    """
    _check(kv_cache_tokens, context_tokens)
    largest = int(kv_cache_tokens / context_tokens.min())
    random = np.random.default_rng(seed)
    held, fits = np.zeros(draws), 0
    for n in range(1, largest + 1):
        held += random.choice(context_tokens, size=draws)
        if (held > kv_cache_tokens).mean() > level:
            break
        fits = n
    return fits


def mean_contexts(kv_cache_tokens: float, context_tokens: Integers) -> float:
    """How many mean contexts the KV cache holds."""
    _check(kv_cache_tokens, context_tokens)
    return float(kv_cache_tokens / context_tokens.mean())


def _check(kv_cache_tokens: float, context_tokens: Integers) -> None:
    if not kv_cache_tokens > 0:
        raise SeatsError(f"kv_cache_tokens: found {kv_cache_tokens}; expected what the engine reports at start, above 0")
    if len(context_tokens) == 0 or context_tokens.min() < 1:
        raise SeatsError("context_tokens: found none, or a context without tokens; expected contexts of 1 token or more")
