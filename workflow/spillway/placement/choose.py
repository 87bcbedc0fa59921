"""Which experts to put on the host: the builders of plans, the byte budget, and how a choice holds on other traffic."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spillway.placement.counts import ExpertCounts
from spillway.placement.plan import Choice, ModelIdentity, Plan, PlanError

Kind = Literal["decode", "prefill", "both"]
Key = tuple[str, int]


def coldest(counts: ExpertCounts, host_experts: int, kind: Kind = "both") -> Plan:
    """The `host_experts` least picked experts of the whole model, however they spread over its layers."""
    picks = counts.picks(kind)
    # Among equals, ids come before layers, so that experts never picked spread over the layers.
    ranked = sorted((picked, expert, name) for name, layer in picks.items() for expert, picked in enumerate(layer))
    _check_number(host_experts, len(ranked), "experts of the model")
    keys = [(name, expert) for _, expert, name in ranked[:host_experts]]
    return _plan(counts.model, list(picks), keys, "coldest", {"host_experts": host_experts, "kind": kind}, counts, kind)


def coldest_per_layer(counts: ExpertCounts, host_experts: int, kind: Kind = "both") -> Plan:
    """The `host_experts` least picked experts of every layer."""
    picks = counts.picks(kind)
    _check_number(host_experts, counts.model.experts, "experts of a layer")
    keys = [
        (name, expert)
        for name, layer in picks.items()
        for expert in sorted(range(len(layer)), key=lambda e: (layer[e], e))[:host_experts]
    ]
    parameters: dict[str, int | float | str] = {"host_experts": host_experts, "kind": kind}
    return _plan(counts.model, list(picks), keys, "coldest_per_layer", parameters, counts, kind)


def whole_layers(model: ModelIdentity, layers: Sequence[str], host_layers: int, counts: ExpertCounts | None = None) -> Plan:
    """Every expert of `host_layers` layers, spread evenly over the model: what a layer-wise offloader would do."""
    _check_number(host_layers, len(layers), "layers")
    chosen = [layers[(2 * i + 1) * len(layers) // (2 * host_layers)] for i in range(host_layers)]
    keys = [(name, expert) for name in chosen for expert in range(model.experts)]
    return _plan(model, layers, keys, "whole_layers", {"host_layers": host_layers}, counts, "both")


def random_experts(
    model: ModelIdentity, layers: Sequence[str], host_experts: int, seed: int, counts: ExpertCounts | None = None
) -> Plan:
    """`host_experts` experts of the whole model drawn without replacement: the control for every other choice."""
    everything = [(name, expert) for name in layers for expert in range(model.experts)]
    _check_number(host_experts, len(everything), "experts of the model")
    keys = random.Random(seed).sample(everything, host_experts)
    return _plan(model, layers, keys, "random", {"host_experts": host_experts, "seed": seed}, counts, "both")


def given(
    model: ModelIdentity, layers: Mapping[str, Sequence[int]], counts: ExpertCounts | None = None, note: str = ""
) -> Plan:
    """Exactly these experts, chosen elsewhere; `note` says where."""
    keys = [(name, expert) for name, ids in layers.items() for expert in ids]
    return _plan(model, list(layers), keys, "given", {"note": note} if note else {}, counts, "both")


def experts_over_budget(
    model: ModelIdentity, layers: int, other_bytes: int, gpu_bytes: int, kv_bytes: int, ranks: int = 1
) -> int:
    """How many experts must leave the GPUs so that everything else and the KV cache fit; 0 when all fits.

    Bytes are totals over `ranks` GPUs of `gpu_bytes` each: `other_bytes` is all that is neither a routed expert nor KV
    cache (other weights, activations, graphs, staging buffers). Raises PlanError for a number that no budget has, and when even
    no expert would fit.
    """
    least = {"gpu_bytes": (gpu_bytes, 1), "kv_bytes": (kv_bytes, 0), "other_bytes": (other_bytes, 0), "ranks": (ranks, 1)}
    for name, (found, at_least) in least.items():
        if found < at_least:
            raise PlanError(f"budget: {name}: found {found}; expected {at_least} or more")
    room = ranks * gpu_bytes - other_bytes - kv_bytes
    if room < 0:
        raise PlanError(
            f"budget: {other_bytes} bytes besides experts and {kv_bytes} of KV cache exceed {ranks} x {gpu_bytes} "
            f"bytes by {-room}; no placement of experts helps. Ask for less KV cache or more GPUs"
        )
    everything = layers * model.experts
    return max(0, everything - room // model.expert_bytes)


@dataclass(frozen=True)
class HeldOut:
    """Shares of held-out picks that reach the host, fractions of 1."""

    expected: float | None
    """What the plan expected from its own counts."""
    found: float
    """What the plan gets on the held-out counts."""
    best: float
    """What the coldest choice of the same size, made on the held-out counts themselves, would get."""
    blind: float
    """What a random choice of the same size gets on average."""

    @property
    def captured(self) -> float:
        """How much of the possible gain over a random choice the plan keeps: 1 is the best, 0 no better than random."""
        return (self.blind - self.found) / (self.blind - self.best) if self.blind > self.best else 1.0


def hold_out(plan: Plan, counts: ExpertCounts, kind: Kind = "both") -> HeldOut:
    """Compare what a plan expected with traffic it was not made from; raises PlanError for another model's counts."""
    if counts.model != plan.model or set(counts.layers) != set(plan.layers):
        raise PlanError("hold_out: the counts are of another model, or of other layers, than the plan")
    if counts.sha256 == plan.choice.counts_sha256:
        raise PlanError("hold_out: these are the counts that the plan was made from; a held-out check needs others")
    return HeldOut(
        expected=plan.choice.host_share,
        found=host_share(plan.layers, counts, kind),
        best=host_share(coldest(counts, plan.host_experts, kind).layers, counts, kind) if plan.host_experts else 0.0,
        blind=plan.host_experts / plan.all_experts,
    )


def host_share(layers: Mapping[str, Sequence[int]], counts: ExpertCounts, kind: Kind = "both") -> float:
    """Share of the counted picks that reach the experts in `layers`."""
    picks = counts.picks(kind)
    return sum(picks[name][e] for name, ids in layers.items() for e in ids) / sum(map(sum, picks.values()))


def _check_number(wanted: int, available: int, what: str) -> None:
    if not 1 <= wanted <= available:
        raise PlanError(f"asked for {wanted} of the {available} {what}; choose a number from 1 to {available}")


def _plan(
    model: ModelIdentity,
    names: Sequence[str],
    keys: Sequence[Key],
    builder: Literal["coldest", "coldest_per_layer", "whole_layers", "random", "given"],
    parameters: dict[str, int | float | str],
    counts: ExpertCounts | None,
    kind: Kind,
) -> Plan:
    if counts is not None and (counts.model != model or set(counts.layers) != set(names)):
        raise PlanError("the counts are of another model, or of other layers, than the plan")
    layers: dict[str, list[int]] = {name: [] for name in names}
    for name, expert in keys:
        layers[name].append(expert)
    ordered = {name: tuple(sorted(ids)) for name, ids in layers.items()}
    choice = Choice(builder=builder, parameters=parameters)
    if counts is not None:
        choice = Choice(
            builder=builder,
            parameters=parameters,
            counts_sha256=counts.sha256,
            counted_picks=sum(map(sum, counts.picks(kind).values())),
            host_share=host_share(ordered, counts, kind),
        )
    return Plan(model=model, choice=choice, layers=ordered)


def describe(plan: Plan) -> str:
    """A few lines for people: size, share, how chosen, and how unevenly it falls on the layers."""
    sizes = [len(ids) for ids in plan.layers.values()]
    share = "unknown" if plan.choice.host_share is None else f"{plan.choice.host_share:.2%}"
    whole = sum(size == plan.model.experts for size in sizes)
    lines = [
        f"plan {plan.sha256[:12]} ({plan.choice.builder}) for model {plan.model.config_sha256[:12]}",
        f"host: {plan.host_experts} of {plan.all_experts} experts ({plan.host_experts / plan.all_experts:.1%}), "
        f"{plan.host_bytes / 2**30:.2f} GiB before rounding; expected share of picks: {share}",
        f"layers: {len(sizes)}, host experts per layer {min(sizes)} to {max(sizes)}, "
        f"{sizes.count(0)} with none, {whole} wholly on the host",
    ]
    if plan.parameters:
        lines.append(f"whole parameters: {', '.join(plan.parameters)}")
    return "\n".join(lines)
