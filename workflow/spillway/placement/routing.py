"""Synthetic routing with a chosen share of picks on a chosen set of experts, for speed without real weights.

Dummy weights route nearly uniformly, so skew must be imposed. In every layer the same `unpopular` experts get `share` of
the picks; all other experts get the rest, evenly. A plan that puts exactly these on the host has `share` as its cold
share; any other plan gets what it catches. Every number measured so is labelled with `routing_in_force`.
"""

import os
import random
import time
from dataclasses import dataclass
from typing import Any

from spillway.placement.counts import ExpertCounts, LayerCounts
from spillway.placement.plan import ModelIdentity, PlanError
from spillway.spec.shown import shown

ROUTING_VARIABLE = "SPILLWAY_ROUTING"
STRATEGY_VARIABLE = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
STRATEGY = "spillway"
_TURN_STEPS = 16
"""Steps between two looks at the clock, which all ranks take together."""


@dataclass(frozen=True)
class SyntheticRouting:
    """`unpopular` experts per layer, drawn with `seed`, get `share` of the picks (a fraction of 1)."""

    unpopular: int
    share: float
    seed: int = 0
    shift_every_s: float | None = None
    """Other experts become unpopular whenever Unix time passes a multiple of this; None: always the same."""
    sets: int = 2
    """Sets of unpopular experts that take turns where they change."""

    def __post_init__(self) -> None:
        if self.shift_every_s is not None and not (self.shift_every_s > 0 and self.sets > 1):
            raise ValueError(f"{self}: need a time above 0 between shifts, and more than one set")
        if self.unpopular < 1 or not 0 <= self.share <= 1:
            raise ValueError(f"{self}: need at least one unpopular expert and a share from 0 to 1")

    def experts(self, experts: int, turn: int = 0) -> tuple[int, ...]:
        """Ids of the unpopular experts of a layer with `experts` experts, ascending; the same in every layer.

        `turn` is the set whose turn it is; plans are made for the first one.
        """
        if self.unpopular >= experts:
            raise ValueError(f"{self}: a layer has {experts} experts; some must stay popular")
        seed = self.seed if turn == 0 else f"{self.seed} {turn}"
        return tuple(sorted(random.Random(seed).sample(range(experts), self.unpopular)))

    def turn(self, unix_s: float) -> int:
        """Which set is unpopular at a time."""
        return 0 if self.shift_every_s is None else int(unix_s // self.shift_every_s) % self.sets

    def counts(self, model: ModelIdentity, layers: tuple[str, ...], picks_per_layer: int = 10_000_000) -> ExpertCounts:
        """Expected picks, for the builders of plans; `origin` says that they are synthetic."""
        unpopular = set(self.experts(model.experts))
        cold = round(self.share * picks_per_layer / self.unpopular)
        hot = round((1 - self.share) * picks_per_layer / (model.experts - self.unpopular))
        layer = LayerCounts(
            decode=tuple(cold if e in unpopular else hot for e in range(model.experts)), prefill=(0,) * model.experts
        )
        return ExpertCounts(model=model, origin=self.label, decode_rows=1, layers=dict.fromkeys(layers, layer))

    @property
    def label(self) -> str:
        shifts = "" if self.shift_every_s is None else f", {self.sets} sets of them in turn, {self.shift_every_s:g} s each"
        return f"synthetic: {self.unpopular} experts (seed {self.seed}) get {self.share:g} of picks{shifts}"

    @property
    def setting(self) -> str:
        """The value of SPILLWAY_ROUTING that asks for this routing."""
        shifts = "" if self.shift_every_s is None else f",shift_every_s={self.shift_every_s},sets={self.sets}"
        return f"unpopular={self.unpopular},share={self.share},seed={self.seed}{shifts}"

    @classmethod
    def parse(cls, setting: str) -> "SyntheticRouting":
        """The routing that a value of SPILLWAY_ROUTING asks for; raises PlanError for one that does not parse."""
        try:
            fields = dict(item.split("=") for item in setting.split(","))
            return cls(unpopular=int(fields.pop("unpopular")), share=float(fields.pop("share")), **_optional(fields))
        except (KeyError, ValueError) as error:
            raise PlanError(
                f"{ROUTING_VARIABLE}={shown(setting)}: expected unpopular=N,share=X with an optional seed=N, "
                f"shift_every_s=X, sets=N ({str(error)[:200]})"
            ) from error


def _optional(fields: dict[str, str]) -> dict[str, Any]:
    kinds: dict[str, Any] = {"seed": int, "shift_every_s": float, "sets": int}
    if set(fields) - set(kinds):
        raise ValueError(f"unknown keys {sorted(set(fields) - set(kinds))}")
    return {key: kinds[key](value) for key, value in fields.items()}


def routing_in_force() -> str | None:
    """Label of the synthetic routing that this process's environment asks for; None for the model's own routing."""
    strategy = os.environ.get(STRATEGY_VARIABLE)
    if not strategy:
        return None
    if strategy != STRATEGY:
        return f"synthetic: vLLM's strategy {strategy}"
    return SyntheticRouting.parse(os.environ[ROUTING_VARIABLE]).label


def register_strategy() -> None:
    """Register the routing of this process's environment with vLLM's routing simulator.

    Raises PlanError where the environment asks for it by one of its two variables only.
    """
    strategy_asked = os.environ.get(STRATEGY_VARIABLE)
    if strategy_asked != STRATEGY:
        if ROUTING_VARIABLE in os.environ:
            found = "is not set" if strategy_asked is None else f"is {shown(strategy_asked)}"
            raise PlanError(f"{ROUTING_VARIABLE} needs {STRATEGY_VARIABLE}={STRATEGY}, which {found}; set both or neither")
        return
    if ROUTING_VARIABLE not in os.environ:
        raise PlanError(f"{STRATEGY_VARIABLE}={STRATEGY} needs {ROUTING_VARIABLE}, for example unpopular=38,share=0.05")
    routing = SyntheticRouting.parse(os.environ[ROUTING_VARIABLE])

    import torch
    from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator, RoutingStrategy

    from spillway.placement.boundary import before_each_step, of_all_ranks
    from spillway.placement.pick import pick_experts

    class ChosenShare(RoutingStrategy):  # type: ignore[misc]
        def __init__(self) -> None:
            self._made: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}
            self._turn, self._steps = 0, 0

        def set_share(self, share: float) -> None:
            """Change the share between steps; graphs already captured follow."""
            # The tensors were made by a step of the engine, which runs in inference mode.
            with torch.inference_mode():
                for _, current in self._made.values():
                    current.fill_(share)

        def before_step(self, rows: int) -> None:
            """Let the set whose turn it is be unpopular from the next step on, the same on every rank."""
            self._steps += 1
            if self._steps % _TURN_STEPS:
                return
            turn = of_all_ranks(routing.turn(time.time()))[0]
            if turn == self._turn:
                return
            self._turn = turn
            for (experts, _), (unpopular, _) in self._made.items():
                unpopular.copy_(self._mask(experts))

        def _mask(self, experts: int) -> torch.Tensor:
            mask = torch.zeros(experts, dtype=torch.int32, device="cpu")
            mask[list(routing.experts(experts, self._turn))] = 1
            return mask

        def route_tokens(
            self,
            hidden_states: torch.Tensor,
            router_logits: torch.Tensor,
            top_k: int,
            indices_type: torch.dtype | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            key = (router_logits.shape[-1], router_logits.device)
            if key not in self._made:
                share = torch.tensor([routing.share], dtype=torch.float32, device=key[1])
                self._made[key] = self._mask(key[0]).to(key[1]), share
            return pick_experts(router_logits, *self._made[key], top_k, indices_type)

    strategy = ChosenShare()
    RoutingSimulator.register_strategy(STRATEGY, strategy)
    if routing.shift_every_s is not None:
        before_each_step("routing", strategy.before_step)
