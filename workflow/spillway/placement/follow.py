"""Which experts should change places as traffic moves: pure functions from counted reads to swaps.

A swap brings one expert from the host to GPU memory and sends one of the same layer back, so a layer's number of host
experts, and with it every byte count, stays what the plan says. Reads are counted per step: an expert that several rows
of a step pick is read once, and only reads cost link time. Three rules keep swaps from chasing noise: the guest must be
read more often than the host by several standard deviations of the counts, the swap must earn its cost back within a
stated time, and an expert that moved rests for that time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spillway.placement.plan import PlanError

RESIDENCY_VARIABLE = "SPILLWAY_RESIDENCY"

Reads = NDArray[np.float64]
"""Steps in which each expert was read, `[layers, experts]`."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Following:
    """How residency follows traffic; the fields are the keys of SPILLWAY_RESIDENCY."""

    half_life_s: float = 20.0
    """Age at which a counted read weighs half."""
    swaps_per_s: float = 150.0
    """Swaps that may start per second, on average; half a second's worth may start at once."""
    pays_within_s: float = 10.0
    """Time in which a swap must save more seconds than it costs, and for which what was swapped rests."""
    certainty: float = 3.5
    """Standard deviations by which the promoted expert's reads must exceed the demoted one's."""
    shift_ratio: float = 2.0
    """Growth of the share of reads that meet the host, from one decision to the next, that makes older counts void."""
    decide_steps: int = 16
    """Steps between two decisions, the same on every rank."""
    swaps_per_step: int = 3
    """Swaps that one step boundary may start, and spare slots that are kept for them."""
    classes: int = 1
    """Most classes of experts, of which only those of one class can change places. 1 rounds every expert's tensors up to whole
    pages; 2, 4 or 8 pack them more tightly, but where the hot experts of one class grow more, they cannot all be moved."""
    host_copy: int = 0
    """1: the host keeps a copy of every expert, so that a demotion copies nothing (needs memory for all of them)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "host_copy":
                if value not in (0, 1):
                    raise ValueError(f"host_copy={value}: expected 0 or 1")
            elif field.name == "classes":
                if value not in (1, 2, 4, 8):
                    raise ValueError(f"classes={value}: expected 1, 2, 4 or 8")
            elif not value > 0:
                raise ValueError(f"{field.name}={value}: expected more than 0")

    @property
    def setting(self) -> str:
        """The value of SPILLWAY_RESIDENCY that asks for this."""
        return "follow," + ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def parse_residency(setting: str | None, has_plan: bool) -> Following | None:
    """What a value of SPILLWAY_RESIDENCY asks for; None where experts stay where the plan put them.

    `static` and `follow[,key=value...]` need a plan, `off` says that there is none. Raises PlanError for anything else.
    """
    if setting is None:
        return None
    mode, *items = setting.split(",")
    if mode not in ("off", "static", "follow") or (items and mode != "follow"):
        raise PlanError(f"{RESIDENCY_VARIABLE}={setting!r}: expected off, static, or follow with optional ,key=value")
    if (mode == "off") == has_plan:
        found = "a plan is given" if has_plan else "no plan is given (SPILLWAY_PLAN)"
        raise PlanError(f"{RESIDENCY_VARIABLE}={setting!r}, but {found}; change one of the two")
    if mode != "follow":
        return None
    try:
        given: dict[str, Any] = dict(item.split("=") for item in items)
        if len(given) != len(items):
            raise ValueError("a key is given twice")
        kinds: dict[str, Any] = {field.name: field.type for field in fields(Following)}
        unknown = sorted(set(given) - set(kinds))
        if unknown:
            raise ValueError(f"unknown keys {unknown}, expected {sorted(kinds)}")
        return Following(**{key: kinds[key](value) for key, value in given.items()})
    except ValueError as error:
        raise PlanError(f"{RESIDENCY_VARIABLE}={setting!r}: {error}") from error


@dataclass(frozen=True)
class Swap:
    """Expert `promote` of a layer moves to GPU memory, `demote` to the host; `layer` is a row of the counts."""

    layer: int
    promote: int
    demote: int


@dataclass(frozen=True)
class SwapCost:
    """What moving and not moving costs, by measured rates."""

    expert_bytes: int
    """Of one rank."""
    host_read_bytes_per_s: float
    copy_bytes_per_s: float
    copies: int
    """Copies over the link per swap: 2, or 1 where the host keeps a copy of every expert."""
    pause_s: float
    """For which a swap stops the engine: unmapping, mapping and setting access."""

    @property
    def read_s(self) -> float:
        """Link time of one read of a host expert."""
        return self.expert_bytes / self.host_read_bytes_per_s

    @property
    def swap_s(self) -> float:
        return self.copies * self.expert_bytes / self.copy_bytes_per_s + self.pause_s


@dataclass(frozen=True)
class Traffic:
    """Exponentially weighted reads, and the seconds, weighted alike, in which they were made."""

    reads: Reads
    seconds: float

    def after(self, reads: Reads, elapsed_s: float, half_life_s: float) -> "Traffic":
        """Traffic once `reads` more were made in `elapsed_s`; of a long pause only its end counts."""
        fade = 2.0 ** (-elapsed_s / half_life_s)
        return Traffic(self.reads * fade + reads, self.seconds * fade + (1 - fade) * half_life_s / np.log(2))


@dataclass(frozen=True)
class Decider:
    """What one decision hands to the next."""

    traffic: Traffic
    tokens: float
    """Swaps that may start now."""
    rested_at_s: NDArray[np.float64]
    """When each expert may move again, `[layers, experts]`."""
    at_s: float


def begin(shape: tuple[int, ...], now_s: float) -> Decider:
    """Nothing counted yet; `shape` is `[layers, experts]`."""
    return Decider(Traffic(np.zeros(shape), 0.0), 0.0, np.full(shape, -np.inf), now_s)


def decide(
    decider: Decider,
    following: Following,
    cost: SwapCost,
    now_s: float,
    reads: Reads,
    on_host: Mask,
    busy: Mask,
    started: Sequence[Swap],
    classes: int,
) -> tuple[Decider, list[Swap]]:
    """Swaps worth starting, best first, given the `reads` since the last decision and the swaps `started` since.

    `on_host` says where each expert lies, `busy` which of them a swap is moving now; both `[layers, experts]`. Only
    experts whose ids agree modulo `classes` can change places. Fewer than the budget are returned only if fewer are worth it.
    """
    elapsed_s = now_s - decider.at_s
    if elapsed_s <= 0:
        return decider, []
    earlier = decider.traffic
    if shifted(earlier, reads, on_host, following.shift_ratio):
        earlier = Traffic(np.zeros_like(reads), 0.0)
    traffic = earlier.after(reads, elapsed_s, following.half_life_s)
    rested_at_s = decider.rested_at_s.copy()
    for swap in started:
        rested_at_s[swap.layer, [swap.promote, swap.demote]] = now_s + following.pays_within_s
    burst = max(1.0, following.swaps_per_s / 2)
    tokens = min(burst, decider.tokens - len(started) + elapsed_s * following.swaps_per_s)
    movable = ~busy & (rested_at_s <= now_s)
    swaps = worthwhile(traffic, following, cost, on_host, movable, classes)[: max(0, int(tokens))]
    return replace(decider, traffic=traffic, tokens=tokens, rested_at_s=rested_at_s, at_s=now_s), swaps


def shifted(earlier: Traffic, reads: Reads, on_host: Mask, ratio: float) -> bool:
    """Whether the new reads meet the host so much more often than the earlier ones that those say nothing any more.

    A sum over all layers shows a shift within a few steps, long before a single expert's counts do. The excess must also be
    four standard deviations of a share counted from so many reads.
    """
    before, now = earlier.reads.sum(), reads.sum()
    if before == 0 or now == 0:
        return False
    expected, found = earlier.reads[on_host].sum() / before, reads[on_host].sum() / now
    noise = 4 * np.sqrt(expected * (1 - expected) / now)
    return bool(found > max(ratio * expected, expected + noise))


def worthwhile(
    traffic: Traffic, following: Following, cost: SwapCost, on_host: Mask, movable: Mask, classes: int
) -> list[Swap]:
    """Every swap that is certain enough and pays, the one that saves most first; no expert is in two of them.

    In each layer and class the most read host expert meets the least read GPU expert, then the next ones. Counts are
    taken to vary as a Poisson process does, whose variance is its mean; the fading makes that an upper bound.
    """
    gains, found = [], []
    for kind in range(classes):
        reads, host, free = traffic.reads[:, kind::classes], on_host[:, kind::classes], movable[:, kind::classes]
        guests = np.where(host & free, reads, -np.inf)
        hosts = np.where(~host & free, reads, np.inf)
        pairs = reads.shape[1] // 2
        up = np.argsort(-guests, axis=1, kind="stable")[:, :pairs]
        down = np.argsort(hosts, axis=1, kind="stable")[:, :pairs]
        wanted, least = np.take_along_axis(guests, up, 1), np.take_along_axis(hosts, down, 1)
        possible = np.isfinite(wanted) & np.isfinite(least)
        wanted, least = np.where(possible, wanted, 0.0), np.where(possible, least, 0.0)
        gain = wanted - least
        certain = gain > following.certainty * np.sqrt(wanted + least + 1.0)
        pays = gain * cost.read_s * following.pays_within_s > cost.swap_s * traffic.seconds
        for layer, rank in zip(*np.nonzero(possible & certain & pays), strict=True):
            gains.append(gain[layer, rank])
            found.append(Swap(int(layer), int(up[layer, rank]) * classes + kind, int(down[layer, rank]) * classes + kind))
    return [found[i] for i in np.argsort(-np.array(gains), kind="stable")]
