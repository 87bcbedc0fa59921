"""What following traffic costs and saves beside a static plan, on simulated steps: a table, from the CPU alone.

    python benchmarks/follow.py                                   # synthetic traffic of the Qwen3-30B-A3B shape
    python benchmarks/follow.py --counts coding.json general.json # traffic that alternates between recorded counts

Every figure is computed by regret.py from the rates given, none is measured. `lost` is the share of steps
that a policy serves fewer than the oracle, which knows each phase's traffic and moves experts at once and for nothing.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "workflow"), str(ROOT)]

from benchmarks.regret import (  # noqa: E402
    Chances,
    Phase,
    best_static,
    coldest,
    expected_step_s,
    follow,
    recovery_s,
    steps_served,
)
from spillway.placement.counts import load_counts  # noqa: E402
from spillway.placement.follow import Following, SwapCost, parse_residency  # noqa: E402
from spillway.placement.plan import PlanError  # noqa: E402
from spillway.placement.routing import SyntheticRouting  # noqa: E402

LAYERS, EXPERTS, TOP_K = 48, 128, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=Path, nargs="+", help="files of recorded counts that take turns as traffic")
    parser.add_argument("--host-share", type=float, default=0.3, help="share of each layer's experts on the host")
    parser.add_argument("--phase-s", type=float, default=60.0, help="seconds between two shifts")
    parser.add_argument("--phases", type=int, default=4)
    parser.add_argument("--base-ms", type=float, default=4.2, help="a step's time with every expert in GPU memory")
    parser.add_argument("--read", type=float, default=50e9, help="bytes per second of kernels that read host experts")
    parser.add_argument("--copy", type=float, default=55e9, help="bytes per second of the copy engine")
    parser.add_argument("--pause-ms", type=float, default=0.8, help="time for which mapping a swap's pages holds up the engine")
    parser.add_argument("--expert-bytes", type=int, default=9 << 20, help="of one expert where --counts does not say it")
    parser.add_argument("--residency", default="follow", help="value of SPILLWAY_RESIDENCY")
    options = parser.parse_args()
    try:
        following = parse_residency(options.residency, has_plan=True)
        if following is None:
            raise PlanError("--residency: expected follow with optional ,key=value")
        traffics, expert_bytes = traffic(options)
    except PlanError as error:
        sys.exit(f"follow: {error}")
    cost = SwapCost(expert_bytes, options.read, options.copy, 1 if following.host_copy else 2, options.pause_ms / 1e3)
    print(f"{following.setting}\n")
    print(f"{'traffic':24}{'policy':24}{'ms/step':>9}{'lost %':>8}{'host %':>8}{'swaps':>8}{'recovered s':>13}")
    for name, kinds in traffics.items():
        report(name, kinds, following, cost, options)


def traffic(options: argparse.Namespace) -> tuple[dict[str, list[Chances]], int]:
    """Kinds of traffic that take turns, by name, and the bytes of one expert; raises PlanError."""
    if options.counts:
        counts = [load_counts(path) for path in options.counts]
        if len({(c.model, tuple(c.layers)) for c in counts}) > 1:
            raise PlanError("--counts: the files are of different models")
        return {"recorded": [recorded(c.picks("decode"), c.model.top_k) for c in counts]}, counts[0].model.expert_bytes
    return {
        "5 % cold, shifting": [skewed(0), skewed(1)],
        "5 % cold, still": [skewed(0)],
        "Zipf 0.8, shifting": [zipf(0), zipf(1)],
        "Zipf 0.8, still": [zipf(0)],
        "uniform": [np.full((LAYERS, EXPERTS), TOP_K / EXPERTS)],
    }, options.expert_bytes


def recorded(picks: dict[str, tuple[int, ...]], top_k: int) -> Chances:
    table = np.array(list(picks.values()), dtype=float)
    return np.minimum(1.0, top_k * table / table.sum(1, keepdims=True))


def skewed(turn: int) -> Chances:
    """The probabilities of the synthetic routing: 38 experts, the same in every layer, share 5 % of the picks."""
    routing = SyntheticRouting(38, 0.05, shift_every_s=60.0)
    row = np.full(EXPERTS, TOP_K * 0.95 / (EXPERTS - 38))
    row[list(routing.experts(EXPERTS, turn))] = TOP_K * 0.05 / 38
    return np.tile(row, (LAYERS, 1))


def zipf(seed: int) -> Chances:
    weights = 1 / np.arange(1, EXPERTS + 1) ** 0.8
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.permutation(weights) for _ in range(LAYERS)])
    return np.minimum(1.0, TOP_K * rows / rows.sum(1, keepdims=True))


def report(name: str, kinds: list[Chances], following: Following, cost: SwapCost, options: argparse.Namespace) -> None:
    """One line for each policy: the oracle, the plan of the first phase, the best plan in hindsight, and following."""
    base_s, experts = options.base_ms / 1e3, kinds[0].shape[1]
    host = min(max(1, round(options.host_share * experts)), experts - 1)
    phases = [Phase(options.phase_s, kinds[turn % len(kinds)]) for turn in range(options.phases)]
    matched = [coldest(phase.chances, host) for phase in phases]
    plan = coldest(phases[0].chances, host, following.classes)
    oracle = steps_served(phases, matched, cost, base_s)
    rows = {
        "oracle": (oracle, matched, None, None),
        "plan of the first phase": (steps_served(phases, [plan] * len(phases), cost, base_s), [plan] * len(phases), None, None),
    }
    hindsight = [best_static(phases, host, cost, base_s)] * len(phases)
    rows["best plan in hindsight"] = (steps_served(phases, hindsight, cost, base_s), hindsight, None, None)
    for policy, (steps, masks, *_) in rows.items():
        share = np.mean([p.chances[m].sum() / p.chances.sum() for p, m in zip(phases, masks, strict=True)])
        line(name, policy, phases, steps, oracle, float(share), "", "")
    course = follow(phases, plan, following, cost, base_s, following.classes)
    slowest: float | None = 0.0
    for turn in range(1, len(phases)):
        start = turn * options.phase_s
        target = 1.1 * expected_step_s(phases[turn].chances, matched[turn], cost, base_s)
        found = recovery_s(course, start, start + options.phase_s, target)
        slowest = None if found is None or slowest is None else max(slowest, found)
    steps = len(course.step_s) * following.decide_steps
    recovered = "" if len(kinds) == 1 else "not" if slowest is None else f"{slowest:.1f}"
    line(name, "following", phases, steps, oracle, float(course.host_share.mean()), str(len(course.swaps)), recovered)


def line(
    name: str, policy: str, phases: list[Phase], steps: float, oracle: float, share: float, swaps: str, recovered: str
) -> None:
    mean_ms = 1e3 * sum(phase.seconds for phase in phases) / steps
    lost = 100 * (1 - steps / oracle)
    print(f"{name:24}{policy:24}{mean_ms:9.2f}{lost:8.1f}{100 * share:8.1f}{swaps:>8}{recovered:>13}")


if __name__ == "__main__":
    main()
