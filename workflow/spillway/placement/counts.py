"""How often each expert was picked: the file that plans are chosen from."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from spillway.engine.topology import show_list
from spillway.placement.plan import Frozen, ModelIdentity, PlanError, canonical_sha256, explain, read_json

COUNTS_VARIABLE = "SPILLWAY_COUNTS"
"""Environment variable of a server that is to count its picks: the file that they go to."""


class LayerCounts(Frozen):
    """Picks of each expert of one layer, by the kind of step that made them."""

    decode: tuple[int, ...] = Field(description="picks in steps of at most `decode_rows` rows, by expert id")
    prefill: tuple[int, ...] = Field(description="picks in larger steps, by expert id")


class ExpertCounts(Frozen):
    """Picks of each expert of each layer; `origin` says what was counted (a run, or a synthetic routing)."""

    schema_version: Literal["spillway.counts/1"] = "spillway.counts/1"
    model: ModelIdentity
    origin: str
    decode_rows: int = Field(ge=1, description="steps of at most this many rows count as decode")
    layers: dict[str, LayerCounts] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_count_per_expert(self) -> "ExpertCounts":
        for name, layer in self.layers.items():
            for kind in ("decode", "prefill"):
                counts = getattr(layer, kind)
                if len(counts) != self.model.experts:
                    raise ValueError(f"layers.{name}.{kind}: {len(counts)} counts for {self.model.experts} experts")
                if min(counts) < 0:
                    raise ValueError(f"layers.{name}.{kind}: a count is negative")
        return self

    @property
    def sha256(self) -> str:
        return canonical_sha256(self.model_dump(mode="json"))

    def picks(self, kind: Literal["decode", "prefill", "both"] = "both") -> dict[str, tuple[int, ...]]:
        """Picks by layer and expert id; raises PlanError when a layer was never routed, since nothing is cold then."""
        chosen = {
            name: tuple(
                (d if kind != "prefill" else 0) + (p if kind != "decode" else 0)
                for d, p in zip(layer.decode, layer.prefill, strict=True)
            )
            for name, layer in self.layers.items()
        }
        idle = [name for name, counts in chosen.items() if not any(counts)]
        if idle:
            raise PlanError(f"counts: no {kind} picks in {', '.join(_in_ranges(idle))}; record more traffic")
        return chosen

    def since(self, earlier: "ExpertCounts") -> "ExpertCounts":
        """Picks made after `earlier` was read from the same server, so without its warm-up; PlanError if it was not."""
        if (earlier.model, earlier.origin, set(earlier.layers)) != (self.model, self.origin, set(self.layers)):
            raise PlanError("counts: the earlier ones are of another model, routing or server")
        try:
            layers = {
                name: LayerCounts(
                    decode=_less(layer.decode, earlier.layers[name].decode),
                    prefill=_less(layer.prefill, earlier.layers[name].prefill),
                )
                for name, layer in self.layers.items()
            }
        except ValueError as error:
            raise PlanError(f"counts: the earlier ones are of another server: {error}") from error
        return self.model_copy(update={"layers": layers})

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.model_dump(mode="json")) + "\n", encoding="utf-8")


def keep_current(path: Path, save: Callable[[Path], None]) -> None:
    """Run `save`, which writes the file anew from time to time; there is none before its first time nor after it failed.

    An older file would pass for what was counted until now.
    """
    path.unlink(missing_ok=True)
    try:
        save(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _in_ranges(names: Iterable[str]) -> list[str]:
    """Names of layers, those that differ in their first number alone as one: model.layers.0-46,48.mlp.experts."""
    numbers: dict[tuple[str, ...], list[int]] = {}
    for name in names:
        before, *rest = re.split("([0-9]{1,9})", name, maxsplit=1)
        numbers.setdefault((before, *rest[1:]), []).extend(map(int, rest[:1]))
    return sorted(show_list(found).join(around) if found else around[0] for around, found in numbers.items())


def _less(later: tuple[int, ...], earlier: tuple[int, ...]) -> tuple[int, ...]:
    if any(a < b for a, b in zip(later, earlier, strict=True)):
        raise ValueError("a count went down")
    return tuple(a - b for a, b in zip(later, earlier, strict=True))


def load_counts(path: Path) -> ExpertCounts:
    """Read and check a file of counts; raises PlanError naming the file, the key and what is wrong there."""
    try:
        return ExpertCounts.model_validate(read_json(path))
    except ValidationError as error:
        raise PlanError(f"{path}: {explain(error)}") from error
