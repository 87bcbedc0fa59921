"""The smallest plan that fits, and what it costs: fewest experts on the host, time of one decode step from rates."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from spillway.fit.budget import Budget, Capacity, Demand, OnHost, budget, dense_bytes, expert_value_bytes
from spillway.fit.shapes import Model
from spillway.fit.weights import FitError

Headroom = tuple[tuple[str, int, str], ...]


def spread(model: Model, experts: int) -> dict[int, tuple[int, ...]]:
    """`experts` experts over all layers as evenly as can be; ids only stand for how many. Raises FitError for too many."""
    layers = len(model.expert_layers)
    if not 0 <= experts <= model.routed_experts:
        raise FitError(f"{experts} experts to move: the model has {model.routed_experts}")
    if not layers:
        return {}
    each, more = divmod(experts, layers)
    return {layer: tuple(range(each + (i < more))) for i, layer in enumerate(model.expert_layers)}


def all_on_host(model: Model, start: OnHost) -> OnHost:
    """Every routed expert on the host beside what `start` puts there."""
    return replace(start, experts=spread(model, model.routed_experts))


def smallest_plan(
    model: Model, capacity: Capacity, demand: Demand, start: OnHost, headroom: Headroom
) -> tuple[OnHost, Budget] | None:
    """The plan with the fewest experts on the host that fits the GPUs beside what `start` puts there; None if none does.

    Whether the host has room for it is in the budget's `stage`: no other plan asks less of the host. Bytes on a GPU fall
    with every expert moved, except for page rounding, so the first guess is exact or a few experts off.
    """

    def attempt(experts: int) -> tuple[OnHost, Budget]:
        plan = replace(start, experts=spread(model, experts))
        return plan, budget(model, capacity, demand, plan, headroom)

    if not capacity.gpus or not model.routed_experts:
        return None
    each = expert_value_bytes(model, capacity.gpus)
    experts = 0  # if none need to move, memory is not what is lacking, and no plan helps
    while True:
        plan, found = attempt(experts)
        if found.spare_bytes >= 0:
            break
        if experts == model.routed_experts:
            return None
        experts = min(model.routed_experts, experts - found.spare_bytes // each)
    while experts and (fewer := attempt(experts - 1))[1].spare_bytes >= 0:  # rounding may have overshot
        experts, (plan, found) = experts - 1, fewer
    return (plan, found) if experts else None


def layer_numbers(source: str, layers: Mapping[str, object]) -> dict[int, tuple[int, ...]]:
    """Expert ids by the number of their layer, from a plan's by the layer's name; `source` names the plan in errors."""
    numbered: dict[int, tuple[int, ...]] = {}
    for name, ids in layers.items():
        found = re.search(r"(?:^|\.)layers\.(\d+)\.", f"{name}.")
        if found is None or int(found[1]) in numbered:
            raise FitError(f"{source}: {name}: expected a name with layers.N., each N once")
        if not isinstance(ids, list | tuple) or not all(type(expert) is int for expert in ids):
            raise FitError(f"{source}: {name}: found {ids!r}; expected a list of expert ids")
        numbered[int(found[1])] = tuple(ids)
    return numbered


@dataclass(frozen=True)
class Rates:
    """What one GPU reads, in bytes a second: from its own memory, and from host memory in place."""

    memory: float
    host: float


@dataclass(frozen=True)
class Step:
    """Predicted time of one decode step, weights only: all in GPU memory, and with a plan."""

    cold_share: float
    resident_s: float
    overlapped_s: float
    summed_s: float

    @property
    def slowdown(self) -> tuple[float, float]:
        """Times the all-in-memory step: host reads hidden behind memory reads, and added to them."""
        return self.overlapped_s / self.resident_s, self.summed_s / self.resident_s


def decode_step(model: Model, gpus: int, rows: int, cold_share: float, rates: Rates) -> Step:
    """One decode step of `rows` tokens when `cold_share` of the routed picks fall on host experts.

    U = E (1 - (1 - k/E)^rows) distinct experts a layer (uniform routing), of which at most rows x k x share are cold:
    cold picks seldom coincide. T_host = L c b / BW_host, T_memory = (L (U - c) b + D) / BW_memory, with b the bytes of
    one expert and D the dense weights on one GPU. KV reads and fixed costs are not in it.
    """
    if not 0 <= cold_share <= 1:
        raise FitError(f"cold share {cold_share}: expected a number from 0 to 1")
    layers, experts, picks = len(model.expert_layers), model.experts_per_layer, model.experts_per_token
    expert, dense = expert_value_bytes(model, gpus), dense_bytes(model, gpus)
    distinct = experts * (1 - (1 - picks / experts) ** rows)
    cold = min(distinct, rows * picks * cold_share)
    host_s = layers * cold * expert / rates.host
    memory_s = (layers * (distinct - cold) * expert + dense) / rates.memory
    resident_s = (layers * distinct * expert + dense) / rates.memory
    return Step(cold_share, resident_s, max(host_s, memory_s), host_s + memory_s)
