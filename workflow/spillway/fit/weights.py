"""A model's weights as groups of equal matrices: whole, as a checkpoint stores them, and per GPU, as vLLM loads them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

from spillway.fit.formats import Format

Component = Literal[
    "routed experts",
    "shared experts",
    "router",
    "dense MLP",
    "attention",
    "norms",
    "residual mixing",
    "embedding",
    "head",
    "engram tables",
    "engram projections",
    "draft layers",
    "vision",
    "other",
]
"""The kinds of weights that a memory line can be about, in the order in which tables show them."""

VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary of embedding and head to a multiple of this (vocab_parallel_embedding.py)."""


class FitError(ValueError):
    """A model, host or plan whose memory cannot be computed; the message says what was found and what would do."""


@dataclass(frozen=True)
class Replicated:
    """Every GPU holds the whole matrix."""


@dataclass(frozen=True)
class Split:
    """Tensor parallelism cuts `axis` into equal shares of whole `units` (heads, values); fewer units are repeated."""

    axis: int
    units: int
    what: str


@dataclass(frozen=True)
class SplitVocabulary:
    """Tensor parallelism cuts the rows after padding the vocabulary."""


Sharding = Replicated | Split | SplitVocabulary
WHOLE = Replicated()


@dataclass(frozen=True)
class Weights:
    """`count` equal matrices of one component: `shape` is [outputs, inputs], or [values] for a vector."""

    component: Component
    name: str
    count: int
    shape: tuple[int, ...]
    format: Format
    sharding: Sharding = WHOLE

    @property
    def parameters(self) -> int:
        return self.count * prod(self.shape)

    @property
    def value_bytes(self) -> int:
        return self.count * self.format.value_bytes(self.shape)

    @property
    def scale_bytes(self) -> int:
        return self.count * self.format.scale_bytes(self.shape)

    @property
    def bytes(self) -> int:
        return self.value_bytes + self.scale_bytes

    def on_gpu(self, gpus: int) -> "Weights":
        """What one of `gpus` holds under tensor parallelism; raises FitError if the shape cannot be cut that way."""
        match self.sharding:
            case Replicated():
                return self
            case SplitVocabulary():
                # vLLM pads to a multiple of 64, then each rank takes an equal share.
                padded = ceil(self.shape[0] / VOCABULARY_PADDING) * VOCABULARY_PADDING
                if padded % gpus:
                    raise FitError(f"{self.name}: a vocabulary of {padded} rows cannot be cut into {gpus} equal shares")
                return replace(self, shape=(padded // gpus, *self.shape[1:]))
            case Split(axis, units, what):
                if units % gpus and gpus % units:
                    raise FitError(f"{self.name}: {units} {what} cannot be shared by {gpus} GPUs")
                share = self.shape[axis] // units * max(1, units // gpus)
                return replace(self, shape=(*self.shape[:axis], share, *self.shape[axis + 1 :]))


def bytes_by_component(weights: Iterable[Weights]) -> dict[Component, int]:
    """Component -> bytes, in the order of first appearance."""
    total: dict[Component, int] = {}
    for group in weights:
        total[group.component] = total.get(group.component, 0) + group.bytes
    return total


def parameters(weights: Iterable[Weights]) -> int:
    """Number of weight values, scales not counted."""
    return sum(group.parameters for group in weights)
