"""What the arithmetic knows of a model whatever its architecture, and the weight groups that architectures share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from spillway.fit.config import Config, flag, plain_format, whole
from spillway.fit.formats import Format
from spillway.fit.kv_cache import KvCache
from spillway.fit.weights import Component, Replicated, Sharding, Split, SplitVocabulary, Weights


@dataclass(frozen=True)
class Model:
    """A model as groups of weights; `cache` maps a KV cache format and a number of GPUs to one GPU's KV cache."""

    architecture: str
    weights: tuple[Weights, ...]
    expert_layers: tuple[int, ...]
    experts_per_layer: int
    experts_per_token: int
    cache: Callable[[str, int], KvCache]
    draft: tuple[Weights, ...] = ()
    """Layers that draft tokens: in the checkpoint, loaded only when the server speculates with them."""
    made_at_load: tuple[Weights, ...] = ()
    """What the engine makes beside the weights when it loads them; in no checkpoint."""
    source: str = "computed"
    """Where the bytes come from: computed from a configuration, or read from a checkpoint's headers."""

    @property
    def routed_experts(self) -> int:
        return len(self.expert_layers) * self.experts_per_layer

    def stored_as(self, formats: Mapping[str, Format], replicated: frozenset[str] = frozenset()) -> "Model":
        """The same model with some components in another format, or whole on every GPU."""

        def changed(group: Weights) -> Weights:
            sharding: Sharding = Replicated() if group.component in replicated else group.sharding
            return replace(group, format=formats.get(group.component, group.format), sharding=sharding)

        return replace(self, weights=tuple(map(changed, self.weights)), draft=tuple(map(changed, self.draft)))


def gated_mlp(component: Component, name: str, count: int, hidden: int, inner: int, stored: Format) -> list[Weights]:
    """gate and up [inner, hidden], down [hidden, inner]; the inner size is what tensor parallelism cuts."""
    return [
        Weights(component, f"{name} gate and up", 2 * count, (inner, hidden), stored, Split(0, inner, "inner values")),
        Weights(component, f"{name} down", count, (hidden, inner), stored, Split(1, inner, "inner values")),
    ]


def embedding_and_head(config: Config, hidden: int, tied_by_default: bool = False) -> list[Weights]:
    """Embedding and head [vocabulary, hidden]; tied, the head is the embedding and takes nothing."""
    plain, words = plain_format(config), whole(config, "vocab_size")
    ends = [Weights("embedding", "embedding", 1, (words, hidden), plain, SplitVocabulary())]
    if not flag(config, "tie_word_embeddings", tied_by_default):
        ends.append(Weights("head", "head", 1, (words, hidden), plain, SplitVocabulary()))
    return ends


def grouped_query_attention(
    layers: int, hidden: int, heads: int, kv_heads: int, head_size: int, linear: Format, plain: Format, biases: bool
) -> list[Weights]:
    """q, k, v [heads x head size, hidden] and o [hidden, heads x head size], with biases of q, k and v on demand."""
    shares, kv_shares = Split(0, heads, "heads"), Split(0, kv_heads, "KV heads")
    groups = [
        Weights("attention", "q", layers, (heads * head_size, hidden), linear, shares),
        Weights("attention", "k and v", 2 * layers, (kv_heads * head_size, hidden), linear, kv_shares),
        Weights("attention", "o", layers, (hidden, heads * head_size), linear, Split(1, heads, "heads")),
    ]
    if biases:
        groups += [
            Weights("attention", "q bias", layers, (heads * head_size,), plain, shares),
            Weights("attention", "k and v bias", 2 * layers, (kv_heads * head_size,), plain, kv_shares),
        ]
    return groups
