"""What `spillway fit` predicts for the machines of the largest model: `data/predicted/fit.csv`, made anew by

    python -m spillway.fit.predicted

The paper prints it before anybody has run anything there. A test compares the file with what the prediction is now.
"""

import csv
import io
from pathlib import Path
from typing import Any

from spillway.fit.architectures import describe
from spillway.fit.budget import GIB, Budget, Demand, OnHost, budget, capacity_of
from spillway.fit.config import Config
from spillway.fit.placing import layer_numbers, smallest_plan
from spillway.placement import choose
from spillway.placement.plan import identify_model, moe_layers
from spillway.placement.routing import SyntheticRouting
from spillway.record import manifest
from spillway.spec.arm import Arm, PlanChoice
from spillway.spec.experiment import OnHost as Asked
from spillway.spec.experiment import Resolved, resolve

FILE = "predicted/fit.csv"
EXPERIMENT, HOSTS = "e9_all_in_vram", ("h200x4", "h200x8")
CONTEXT_TOKENS, SEQUENCES, CACHE = 131_072, 2, "bf16"
HEADROOM_BYTES = 8 * GIB
"""Of each GPU, for all that is neither weights nor KV cache. Assumed: nothing is published of this card
(fit/published/cards.yaml); on the article's card it is 7.1 GiB."""
WHOLE, SMALLEST = "nothing on the host", "smallest plan that fits"


def rows(root: Path) -> list[dict[str, Any]]:
    """One row for each host and placement: bytes on each GPU and on the whole host; raises SpecError and FitError.

    A host that cannot hold the model whole also gets the smallest plan that fits and the plan of each arm of the experiment.
    """
    found = []
    for host_name in HOSTS:
        asked = resolve(root, EXPERIMENT, host_name)
        assert isinstance(asked, Resolved) and isinstance(asked.on, Asked) and asked.served_model.source.kind == "shape"
        model, capacity = describe(asked.served_model.source.config), capacity_of(asked.host)
        demand = Demand(CONTEXT_TOKENS, SEQUENCES, CACHE)
        headroom = (("headroom", HEADROOM_BYTES, "assumed"),)
        placed = {WHOLE: (OnHost(), budget(model, capacity, demand, OnHost(), headroom))}
        if smallest := smallest_plan(model, capacity, demand, OnHost(paged=True), headroom):
            placed[SMALLEST] = smallest
        for name, arm in asked.on.served().items():
            if arm.plan is not None:
                plan = _plan(asked.served_model.source.config, arm)
                placed[f"arm {name}"] = plan, budget(model, capacity, demand, plan, headroom)
        for name, (plan, predicted) in placed.items():
            known = {"host": host_name, "machine": asked.host.title, "model": asked.served_model.title, "placement": name}
            counted = {"parameters": sum(group.parameters for group in model.weights), "all_experts": model.routed_experts}
            found.append(known | counted | _amounts(plan, predicted, model.routed_experts))
    return found


def _plan(config: Config, arm: Arm) -> OnHost:
    """The coldest experts of each layer by the arm's routing: which they are decides what pages waste."""
    assert isinstance(arm.plan, PlanChoice) and arm.plan.choose == "coldest_per_layer" and arm.routing is not None
    model, layers = identify_model(config), moe_layers(config)
    counts = SyntheticRouting(arm.routing.unpopular, arm.routing.cold_share, arm.routing.seed).counts(model, layers)
    plan = choose.coldest_per_layer(counts, round(arm.plan.host_share * model.experts))
    return OnHost(layer_numbers(EXPERIMENT, plan.layers), paged=True)


def _amounts(plan: OnHost, predicted: Budget, experts: int) -> dict[str, Any]:
    return {
        "context_tokens": CONTEXT_TOKENS,
        "sequences": SEQUENCES,
        "host_experts": plan.expert_count,
        "host_experts_fraction": round(plan.expert_count / experts, 6),
        "weights_bytes": predicted.total("gpu", "weights"),
        "kv_cache_bytes": predicted.total("gpu", "KV cache"),
        "headroom_bytes": predicted.total("gpu", "headroom"),
        "usable_bytes": predicted.usable_bytes,
        "spare_bytes": predicted.spare_bytes,
        "host_bytes": predicted.total("host"),
        "outcome": predicted.stage,
    }


def text(root: Path) -> str:
    """The file's content as it is computed now."""
    predicted = rows(root)
    made = io.StringIO()
    writer = csv.DictWriter(made, list(predicted[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(predicted)
    return made.getvalue()


def write(root: Path) -> Path:
    """Write the file and its row of the manifest; returns the file's path."""
    content = text(root)
    return manifest.write_file(root / manifest.DATA, FILE, content.encode(), content.count("\n") - 1)


if __name__ == "__main__":
    print(write(Path(".")))
