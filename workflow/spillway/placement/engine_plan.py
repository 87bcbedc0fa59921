"""An engine that places experts by itself: it gets the plan in the bare form, and its log must say that it obeyed.

The published EXL3 host-expert patch (0xSero/dsv41-flash-offload, patches/vllm-exl3-host-dma.patch) reads the file that
EXL3_HOST_EXPERTS names. It checks nothing, and leaves a layer that it does not find there in GPU memory without a word; but
each rank logs one line for each layer that it places. These lines are all the proof that such an engine gives: numbers of
experts, neither bytes nor rates. Of the model's layers it also counts picks, where EXL3_EXPERT_STATS names a folder for them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from spillway.placement.counts import ExpertCounts
from spillway.placement.plan import ModelIdentity, Plan, PlanError, explain, export_bare
from spillway.placement.proof import ProofError

DECODE_ROWS = 64
"""Steps of at most this many rows count as decode with the patch."""

_PLACED = re.compile(r"EXL3 host experts: (\S+) keeps (\d+)/(\d+) experts in pinned host RAM")


def write_bare(plan: Plan, path: Path) -> None:
    """Write the bare form; raises PlanError for a plan that says more than it can."""
    path.write_text(json.dumps(export_bare(plan)) + "\n", encoding="utf-8")


def require_log(plan: Plan, log: str, ranks: int) -> None:
    """Raise ProofError unless the log of a server says of every layer, once for each rank, what the plan says."""
    said = Counter((_layer_of(plan.layers, name), int(host), int(experts)) for name, host, experts in _PLACED.findall(log))
    due = Counter({(name, len(ids), plan.model.experts): ranks for name, ids in plan.layers.items() if ids})
    if not said:
        raise ProofError("the engine's log says of no layer that its experts are on the host: it did not read the plan")
    faults = [f"not said: {_words(*line)}, {count} time(s)" for line, count in sorted((due - said).items())]
    faults += [f"said without need: {_words(*line)}, {count} time(s)" for line, count in sorted((said - due).items())]
    if faults:
        shown = "\n  ".join(faults[:20])
        raise ProofError(f"the engine's log and the plan differ in {len(faults)} places:\n  {shown}")


def counts_of(picks: object, model: ModelIdentity, layers: Sequence[str], source: str) -> ExpertCounts:
    """Counts from the patch's `expert_stats.pt` written as JSON: layer -> [picks in decode, picks in prefill], by expert.

    Layers that are not among `layers`, such as those of a draft, are left out. Raises PlanError naming `source`.
    """
    if not isinstance(picks, dict):
        raise PlanError(f"{source}: expected an object of layer names, found {type(picks).__name__}")
    found = {_layer_of(layers, name): rows for name, rows in picks.items()}
    if absent := [name for name in layers if name not in found]:
        raise PlanError(f"{source}: no picks of {absent[0]} ({len(absent)} of {len(layers)} layers absent)")
    for name in layers:
        if not isinstance(found[name], list) or len(found[name]) != 2:
            raise PlanError(f"{source}: {name}: expected two lists of picks, in decode and in prefill")
    try:
        return ExpertCounts.model_validate({
            "model": model,
            "origin": f"routing of the served model, from {source}",
            "decode_rows": DECODE_ROWS,
            "layers": {name: dict(zip(("decode", "prefill"), found[name], strict=True)) for name in layers},
        })  # fmt: skip
    except ValidationError as error:
        raise PlanError(f"{source}: {explain(error)}") from error


def _layer_of(layers: Iterable[str], name: str) -> str:
    """Our name of a layer, which the engine may call by a longer one (`language_model.model.layers.0...`)."""
    return next((layer for layer in layers if name == layer or name.endswith(f".{layer}")), name)


def _words(layer: str, host: int, experts: int) -> str:
    return f"{layer} with {host} of {experts} experts on the host"
