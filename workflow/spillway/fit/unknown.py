"""A model of an architecture that is not known here: what its checkpoint's headers say, the rest stated by the user."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

from spillway.fit.checkpoint import Stored, stored_bytes_by_component
from spillway.fit.formats import Plain
from spillway.fit.kv_cache import KvCache
from spillway.fit.shapes import Model
from spillway.fit.weights import Component, FitError, Split, Weights

FACTS: dict[str, str] = {
    "experts_per_token": "routed experts that work for one token in one layer",
    "kv_token_bytes": "bytes of KV cache for one token, on each GPU",
    "expert_layers": "layers that have routed experts",
    "experts_per_layer": "routed experts in each of those layers",
    "expert_bytes": "bytes of one routed expert",
    "other_bytes": "bytes of all other weights",
}
FROM_HEADERS = ("expert_layers", "experts_per_layer", "expert_bytes", "other_bytes")
_BYTE = Plain("as stored", 1)


def parse_facts(texts: Sequence[str]) -> dict[str, int]:
    """Facts given as NAME=NUMBER; raises FitError for an unknown name or something that is no whole number."""
    facts: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in FACTS:
            raise FitError(f"--fact {text}: unknown name; expected one of: {', '.join(FACTS)}")
        if not number.isdecimal():
            raise FitError(f"--fact {text}: expected {name}= and a whole number")
        facts[name] = int(number)
    return facts


def model_from_facts(architecture: str, tensors: Sequence[Stored] | None, facts: Mapping[str, int]) -> Model:
    """A model from facts, and from headers where there are any; raises FitError naming each number that is missing.

    Routed experts are cut evenly by tensor parallelism. All else is taken as whole on every GPU: an upper bound, since
    what an unknown engine cuts is not known.
    """
    numbers = {**(_headers(tensors) if tensors else {}), **facts}
    missing = [name for name in FACTS if name not in numbers]
    if missing:
        lines = [f"  --fact {name}=N    {FACTS[name]}" for name in missing]
        hint = "" if tensors else "\n(a checkpoint's headers would give " + ", ".join(FROM_HEADERS) + ")"
        raise FitError(f"architecture {architecture}: not known here; state what is missing:\n" + "\n".join(lines) + hint)
    experts = numbers["expert_layers"] * numbers["experts_per_layer"]
    weights: list[Weights] = []
    if experts:
        size = numbers["expert_bytes"]
        weights.append(Weights("routed experts", "expert", experts, (size,), _BYTE, Split(0, size, "bytes")))
    if tensors and "other_bytes" not in facts:
        stored = stored_bytes_by_component(tensors)
        weights += [Weights(name, name, 1, (size,), _BYTE) for name, size in stored.items() if name != "routed experts"]
    else:
        other: Component = "other"
        weights.append(Weights(other, "other weights", 1, (numbers["other_bytes"],), _BYTE))
    return Model(
        architecture=architecture,
        weights=tuple(weights),
        expert_layers=tuple(range(numbers["expert_layers"])),
        experts_per_layer=numbers["experts_per_layer"],
        experts_per_token=numbers["experts_per_token"],
        cache=partial(_stated_cache, numbers["kv_token_bytes"]),
        source="checkpoint header" if tensors else "stated",
    )


def _stated_cache(token_bytes: int, format_name: str, gpus: int) -> KvCache:
    return KvCache(token_bytes)


def _headers(tensors: Sequence[Stored]) -> dict[str, int]:
    """Layers, experts and bytes from names such as layers.3.mlp.experts.17.w1.weight or a fused [experts, ...] tensor."""
    layers: set[int] = set()
    ids: set[int] = set()
    fused: set[int] = set()
    for tensor in tensors:
        if found := re.search(r"layers\.(\d+)\..*\bexperts\.(\d+)\.", tensor.name):
            layers.add(int(found[1]))
            ids.add(int(found[2]))
        elif (found := re.search(r"layers\.(\d+)\..*\bexperts\.", tensor.name)) and len(tensor.shape) == 3:
            layers.add(int(found[1]))
            fused.add(tensor.shape[0])
    stored = stored_bytes_by_component(tensors)
    total, routed = sum(stored.values()), stored.get("routed experts", 0)
    numbers = {"other_bytes": total - routed}
    if not layers and not routed:
        return {**numbers, "expert_layers": 0, "experts_per_layer": 0, "expert_bytes": 0, "experts_per_token": 0}
    counts = fused | ({len(ids)} if ids else set())
    if len(counts) == 1 and layers and routed % prod((len(layers), *counts)) == 0:
        each = counts.pop()
        numbers |= {"expert_layers": len(layers), "experts_per_layer": each, "expert_bytes": routed // (len(layers) * each)}
    return numbers
