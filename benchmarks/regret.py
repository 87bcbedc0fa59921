"""What following would have cost on given traffic, beside the best plan in hindsight and an oracle: no GPU, no engine.

A step takes a fixed time plus the link time of the host experts that it reads. Each expert of a layer is read in a step
with a given probability, independently (the reads of one stream). Swaps cost what `SwapCost` says, which stops the engine here
even for the copies, and take effect at the decision after the one that asked for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spillway.placement.follow import Following, Mask, Swap, SwapCost, begin, decide

Chances = NDArray[np.float64]
"""Probability that a step reads each expert, `[layers, experts]`."""


@dataclass(frozen=True)
class Phase:
    """Traffic of one kind for a time."""

    seconds: float
    chances: Chances


@dataclass(frozen=True)
class Course:
    """How a run went: one entry per interval of `Following.decide_steps` steps."""

    at_s: NDArray[np.float64]
    step_s: NDArray[np.float64]
    host_share: NDArray[np.float64]
    """Share of reads that met the host."""
    swaps: tuple[tuple[float, Swap], ...]
    """With the time at which each started."""
    on_host: Mask
    """At the end."""

    @property
    def mean_step_s(self) -> float:
        return float(self.step_s.mean())


def coldest(reads: NDArray[np.float64], host: int, classes: int = 1) -> Mask:
    """The `host` least read experts of each layer, taken from every class of ids in equal parts."""
    mask = np.zeros(reads.shape, dtype=bool)
    for kind in range(classes):
        mine = reads[:, kind::classes]
        count = host // classes + (kind < host % classes)
        chosen = np.argsort(mine, axis=1, kind="stable")[:, :count]
        np.put_along_axis(mask[:, kind::classes], chosen, True, 1)
    return mask


def follow(
    phases: Sequence[Phase],
    plan: Mask,
    following: Following,
    cost: SwapCost,
    base_step_s: float,
    classes: int = 1,
    seed: int = 0,
) -> Course:
    """Run the phases, beginning with a plan's residency."""
    rng = np.random.default_rng(seed)
    on_host = plan.copy()
    none = np.zeros_like(plan)
    decider = begin(plan.shape, 0.0)
    steps = following.decide_steps
    now, end = 0.0, 0.0
    at, step_s, share, swaps = [], [], [], []
    pending: list[Swap] = []
    for phase in phases:
        end += phase.seconds
        while now < end:
            reads = rng.binomial(steps, phase.chances).astype(np.float64)
            met = float(reads[on_host].sum())
            taken = base_step_s + met / steps * cost.read_s + len(pending) * cost.swap_s / steps
            at.append(now)
            step_s.append(taken)
            share.append(met / max(1.0, float(reads.sum())))
            swaps += [(now, swap) for swap in pending]
            now += taken * steps
            for swap in pending:
                on_host[swap.layer, swap.promote], on_host[swap.layer, swap.demote] = False, True
            decider, wanted = decide(decider, following, cost, now, reads, on_host, none, pending, classes)
            pending = wanted[: following.swaps_per_step * steps]
    return Course(np.array(at), np.array(step_s), np.array(share), tuple(swaps), on_host)


def expected_step_s(chances: Chances, on_host: Mask, cost: SwapCost, base_step_s: float) -> float:
    """Mean step time of a phase whose residency stands still."""
    return base_step_s + float(chances[on_host].sum()) * cost.read_s


def steps_served(phases: Sequence[Phase], plans: Sequence[Mask], cost: SwapCost, base_step_s: float) -> float:
    """Expected steps in the phases' time, each phase with the residency of `plans` that belongs to it."""
    pairs = zip(phases, plans, strict=True)
    return sum(phase.seconds / expected_step_s(phase.chances, plan, cost, base_step_s) for phase, plan in pairs)


def best_static(phases: Sequence[Phase], host: int, cost: SwapCost, base_step_s: float) -> Mask:
    """The plan that serves most steps if kept throughout, known in hindsight: of all traffic, or of one of the phases."""
    total = sum((phase.chances * phase.seconds for phase in phases), np.zeros_like(phases[0].chances))
    plans = [coldest(total, host), *(coldest(phase.chances, host) for phase in phases)]
    return max(plans, key=lambda plan: steps_served(phases, [plan] * len(phases), cost, base_step_s))


def recovery_s(course: Course, shift_s: float, until_s: float, target_step_s: float, window: int = 8) -> float | None:
    """Time after a shift from which on a running mean of `window` intervals stays at or below the target; None if never."""
    inside = (course.at_s >= shift_s) & (course.at_s < until_s)
    times, steps = course.at_s[inside], course.step_s[inside]
    if len(steps) < window:
        return None
    mean = np.convolve(steps, np.full(window, 1 / window), "valid")
    above = np.nonzero(mean > target_step_s)[0]
    if len(above) == 0:
        return 0.0
    last = int(above[-1]) + window
    return None if last >= len(times) else float(times[last] - shift_s)
