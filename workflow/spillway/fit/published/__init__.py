"""What is public about models and cards and in no config.json at hand: data files, each number with its source."""

from importlib import resources
from typing import Any

import yaml
from pydantic import Field, PositiveFloat, PositiveInt

from spillway.fit.weights import FitError
from spillway.spec.read import Strict


class Pack(Strict):
    """How a published pack stores a model, where that differs from its configuration."""

    title: str
    source: str
    formats: dict[str, str] = Field(default_factory=dict, description="component -> format, see formats.parse_format")
    replicated: list[str] = Field(default_factory=list, description="components whole on every GPU")
    on_host: list[str] = Field(default_factory=list, description="components that the deployment keeps on the host")
    weights_per_gpu_gib: dict[int, PositiveFloat] = Field(
        default_factory=dict, description="number of GPUs -> weights on each without a plan, as published"
    )


class CachePoint(Strict):
    """A size of KV cache and the tokens that an engine said it holds, at one prefill chunk."""

    chunk_tokens: PositiveInt
    cache_bytes: PositiveInt
    tokens: PositiveInt


class MeasuredCache(Strict):
    """Two points of one deployment that differ in the prefill chunk alone: they give the cache's fixed part."""

    source: str
    format: str
    points: list[CachePoint] = Field(min_length=2, max_length=2)

    def fixed_bytes(self, token_bytes: float, chunk_tokens: int) -> int:
        """Bytes of the cache that hold no token's entry at a prefill chunk, on the line through the two points."""
        first, second = ((point.chunk_tokens, point.cache_bytes - point.tokens * token_bytes) for point in self.points)
        slope = (second[1] - first[1]) / (second[0] - first[0])
        return round(first[1] + slope * (chunk_tokens - first[0]))


class PublishedModel(Strict):
    """A model's configuration and packs."""

    title: str
    source: str
    config: dict[str, Any]
    measured_cache: MeasuredCache | None = None
    packs: dict[str, Pack] = Field(default_factory=dict)


class HeadroomTerm(Strict):
    """What an engine was measured to take on one card beside weights and KV cache."""

    term: str
    gib: PositiveFloat
    source: str


class Card(Strict):
    """Rates of one GPU, in 1e9 bytes a second, and its measured headroom."""

    name: str
    matches: str = Field(description="part of the name that the driver reports")
    memory_gb_per_s: PositiveFloat
    memory_source: str
    host_read_gb_per_s: PositiveFloat
    host_read_source: str
    headroom: list[HeadroomTerm]


class _Cards(Strict):
    cards: list[Card]


def published_models() -> list[str]:
    """Names that `published_model` knows."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml") and name != "cards.yaml")


def published_model(name: str) -> PublishedModel:
    """The published model of that name; raises FitError with the known names."""
    if name not in published_models():
        raise FitError(f"model {name!r}: nothing published here under that name; known: {', '.join(published_models())}")
    return PublishedModel.model_validate(_read(f"{name}.yaml"))


def card_named(driver_name: str) -> Card | None:
    """The card whose name the driver reports like that, or None if nothing is published here about it."""
    cards = _Cards.model_validate(_read("cards.yaml")).cards
    return next((card for card in cards if card.matches in driver_name), None)


def _read(name: str) -> Any:
    return yaml.safe_load((resources.files(__name__) / name).read_text(encoding="utf-8"))
