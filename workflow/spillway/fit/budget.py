"""Everything that a model takes on a host, as lines that each say where they come from, and whether it fits.

Sums are for one GPU (tensor parallelism makes all equal) and for the whole host.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import psutil

from spillway.fit.shapes import Model
from spillway.fit.weights import FitError, Weights
from spillway.placement.layout import plan_layout
from spillway.spec.host import Host

GIB, MIB = 2**30, 2**20
VLLM_UTILISATION = 0.92
"""Share of a GPU's memory that vLLM 0.32 uses unless `gpu-memory-utilization` says otherwise (vllm/config/cache.py)."""

Place = Literal["gpu", "host"]
Kind = Literal["weights", "KV cache", "headroom"]
Stage = Literal[
    "fits", "host memory", "weights", "no room for KV cache", "KV cache of one sequence", "KV cache of all sequences"
]


@dataclass(frozen=True)
class Line:
    """Bytes of one component, on each GPU or on the whole host, and where the number comes from."""

    place: Place
    kind: Kind
    component: str
    bytes: int
    source: str


@dataclass(frozen=True)
class Capacity:
    """Memory of a host; `usable_bytes` is what the engine may use of one GPU. No GPUs: the host's memory serves."""

    gpus: int
    gpu_bytes: int
    usable_bytes: int
    host_bytes: int | None
    cache_limit_bytes: int | None = None
    """What the engine is told to give the KV cache (`kv-cache-memory-bytes`); None: whatever is left."""

    def __post_init__(self) -> None:
        if not self.gpus and self.host_bytes is None:
            raise FitError("host_memory_gib: found nothing; expected the memory of a host without GPUs, in GiB")

    @property
    def main(self) -> Place:
        """Where the model is computed."""
        return "gpu" if self.gpus else "host"


@dataclass(frozen=True)
class Demand:
    """What the server is to hold: tokens of a sequence, sequences at once, the cache's format, draft layers or not."""

    context_tokens: int
    sequences: int
    cache: str
    draft: bool = False


@dataclass(frozen=True)
class OnHost:
    """What a placement puts into host memory: ids of experts by layer, and whole components."""

    experts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    components: frozenset[str] = frozenset()
    paged: bool = False
    """Whether experts lie in 2 MiB pages, as Spillway's plugin places them, and round up to them."""

    @property
    def expert_count(self) -> int:
        return sum(len(ids) for ids in self.experts.values())


@dataclass(frozen=True)
class Budget:
    """All lines of one placement on one host."""

    lines: tuple[Line, ...]
    capacity: Capacity
    one_sequence_bytes: int

    def total(self, place: Place, kind: Kind | None = None) -> int:
        return sum(line.bytes for line in self.lines if line.place == place and kind in (None, line.kind))

    def by_component(self, place: Place) -> dict[str, int]:
        """Component -> bytes, in order of first appearance."""
        found: dict[str, int] = {}
        for line in self.lines:
            if line.place == place:
                found[line.component] = found.get(line.component, 0) + line.bytes
        return found

    @property
    def usable_bytes(self) -> int:
        """What the engine may use where the model is computed."""
        return self.capacity.usable_bytes if self.capacity.gpus else self.capacity.host_bytes or 0

    @property
    def spare_bytes(self) -> int:
        """Bytes left where the model is computed; negative: that many are missing."""
        return self.usable_bytes - self.total(self.capacity.main)

    @property
    def host_spare_bytes(self) -> int | None:
        """Bytes left in host memory; negative: that many are missing; None: its size is not known."""
        return None if self.capacity.host_bytes is None else self.capacity.host_bytes - self.total("host")

    @property
    def stage(self) -> Stage:
        """Where a server of this budget would fail, in the order in which vLLM starts; `fits` if nowhere.

        The host's part must fit host memory, where its size is known. Weights must fit the memory itself, or loading
        runs out of it; with the headroom they must leave something of what the engine may use; that must hold one
        sequence. A server without room for all sequences starts, and makes them wait.
        """
        main = self.capacity.main
        if main == "gpu" and self.host_spare_bytes is not None and self.host_spare_bytes < 0:
            return "host memory"
        if self.total(main, "weights") > (self.capacity.gpu_bytes if main == "gpu" else self.usable_bytes):
            return "weights"
        needed = self.total(main, "KV cache")
        room = min(self.spare_bytes + needed, self.capacity.cache_limit_bytes or self.usable_bytes)
        if room <= 0:
            return "no room for KV cache"
        if room < self.one_sequence_bytes:
            return "KV cache of one sequence"
        return "fits" if room >= needed else "KV cache of all sequences"

    @property
    def fits(self) -> bool:
        return self.stage == "fits"

    @property
    def margin(self) -> tuple[int, str]:
        """Bytes to spare, negative if missing, and of what: of that memory which decides `stage`."""
        where = "on each GPU" if self.capacity.gpus else "of host memory"
        if self.stage == "host memory":
            return self.host_spare_bytes or 0, "of host memory"
        limit = self.capacity.cache_limit_bytes
        if limit is not None and self.stage.startswith("KV cache") and self.spare_bytes >= 0:
            return limit - self.total(self.capacity.main, "KV cache"), "of what kv-cache-memory-bytes grants the KV cache"
        return self.spare_bytes, where


def capacity_of(host: Host) -> Capacity:
    """Memory of a host as its file states it; a host without GPUs and without `host_memory_gib` is this machine."""
    host_bytes = None if host.host_memory_gib is None else round(host.host_memory_gib * GIB)
    limit = host.engine.arguments.get("kv-cache-memory-bytes")
    if isinstance(limit, bool) or not isinstance(limit, int | None):
        raise FitError(f"engine.arguments.kv-cache-memory-bytes: found {limit!r}; expected a whole number of bytes")
    if host.gpus is None:
        return Capacity(0, 0, 0, psutil.virtual_memory().total if host_bytes is None else host_bytes, limit)
    share = host.engine.arguments.get("gpu-memory-utilization", VLLM_UTILISATION)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise FitError(f"engine.arguments.gpu-memory-utilization: found {share!r}; expected a number in (0, 1]")
    gpu_bytes = round(host.gpus.memory_gib * GIB)
    gpus = host.engine.arguments.get("tensor-parallel-size", host.gpus.count)
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= host.gpus.count:
        raise FitError(
            f"engine.arguments.tensor-parallel-size: found {gpus!r}; expected 1 to the host's {host.gpus.count} GPUs"
        )
    return Capacity(gpus, gpu_bytes, round(gpu_bytes * share), host_bytes, limit)


def budget(
    model: Model, capacity: Capacity, demand: Demand, on_host: OnHost, headroom: Sequence[tuple[str, int, str]] = ()
) -> Budget:
    """The lines of a placement; `headroom` is (term, bytes per GPU, source). Raises FitError for an unfit placement."""
    _check(model, on_host)
    gpus, main = max(1, capacity.gpus), capacity.main
    if main == "host" and (on_host.expert_count or on_host.components):
        raise FitError("a plan moves weights from GPU memory to the host, and this host has no GPUs; serve without one")
    lines: list[Line] = []
    groups = [*model.weights, *model.made_at_load, *(model.draft if demand.draft else ())]
    share = on_host.expert_count / model.routed_experts if model.routed_experts else 0.0
    for group in groups:
        here = group.on_gpu(gpus)
        moved = 0
        if group.component in on_host.components:
            moved = here.bytes
        elif group.component == "routed experts":
            moved = round(here.value_bytes * share)  # scales stay in GPU memory
        if here.bytes - moved:
            lines.append(Line(main, "weights", group.component, here.bytes - moved, model.source))
        if moved:
            lines.append(Line("host", "weights", group.component, moved * gpus, model.source))
    if on_host.paged and on_host.expert_count:
        gpu_rounding, host_rounding = page_rounding(model, gpus, on_host)
        rounding = [Line("gpu", "weights", "page rounding", gpu_rounding, "computed")]
        rounding.append(Line("host", "weights", "page rounding", host_rounding, "computed"))
        lines += [line for line in rounding if line.bytes]
    cache = model.cache(demand.cache, gpus)
    tokens = demand.context_tokens * demand.sequences
    what = f"computed: {demand.sequences} x {demand.context_tokens:,} tokens, {demand.cache}"
    lines.append(Line(main, "KV cache", "KV cache", cache.bytes(tokens, demand.sequences), what))
    lines += [Line(main, "headroom", term, size, source) for term, size, source in headroom]
    return Budget(tuple(lines), capacity, cache.bytes(demand.context_tokens, 1))


def page_rounding(model: Model, gpus: int, on_host: OnHost) -> tuple[int, int]:
    """Bytes lost to 2 MiB pages: on one GPU, and on the host for all GPUs; gate and up are one tensor, down another."""
    gpu = host = 0
    for part in _expert_tensors(model, gpus):
        for ids in on_host.experts.values():
            if ids:
                layer_gpu, layer_host = _rounding(model.experts_per_layer, part, tuple(ids))
                gpu, host = gpu + layer_gpu, host + layer_host
    return gpu, host * gpus


@lru_cache(maxsize=256)
def _rounding(experts: int, expert_bytes: int, ids: tuple[int, ...]) -> tuple[int, int]:
    layout = plan_layout(experts, expert_bytes, ids)
    return layout.gpu_rounding_bytes, layout.host_rounding_bytes


def _expert_tensors(model: Model, gpus: int) -> list[int]:
    """Bytes of one expert in each tensor of a layer on one GPU, scales not counted."""
    groups = [group.on_gpu(gpus) for group in model.weights if group.component == "routed experts"]
    return [group.value_bytes // model.routed_experts for group in groups]


def expert_value_bytes(model: Model, gpus: int) -> int:
    """Bytes that one routed expert of one layer takes on each of `gpus`, scales not counted."""
    return sum(_expert_tensors(model, gpus))


def dense_bytes(model: Model, gpus: int) -> int:
    """Bytes of weights that one GPU reads for every step whatever the routing: no table, no expert, no vision."""
    read = {"attention", "shared experts", "dense MLP", "router", "norms", "residual mixing", "engram projections", "head"}
    ends = {group.component for group in model.weights}
    tied = "head" not in ends
    groups: list[Weights] = [g for g in model.weights if g.component in read or (tied and g.component == "embedding")]
    return sum(group.on_gpu(gpus).bytes for group in groups)


def _check(model: Model, on_host: OnHost) -> None:
    strange = sorted(set(on_host.experts) - set(model.expert_layers))
    if strange:
        raise FitError(f"plan: layers {strange} hold no routed experts in this model")
    for layer, ids in on_host.experts.items():
        outside = [expert for expert in ids if not 0 <= expert < model.experts_per_layer]
        if outside or len(set(ids)) != len(ids):
            raise FitError(
                f"plan: layer {layer}: ids {outside or list(ids)} are outside 0..{model.experts_per_layer - 1} or repeated"
            )
    known = {group.component for group in model.weights}
    if unknown := sorted(on_host.components - known):
        raise FitError(f"plan: the model has no {', '.join(unknown)}; it has: {', '.join(sorted(known))}")


# How vLLM 0.32 says at its start what it lacks; the stage that each message belongs to.
FAILURES: tuple[tuple[str, Stage], ...] = (
    (r"No available memory for the cache blocks", "no room for KV cache"),
    (r"larger than the available KV cache memory", "KV cache of one sequence"),
    (r"OutOfMemoryError|CUDA out of memory|cuMemCreate.*out of memory|DefaultCPUAllocator: can't allocate", "weights"),
)


def stage_of_log(log: str) -> Stage | None:
    """The stage at which a server's log says that memory ran out, None if it says nothing of the kind."""
    for pattern, stage in FAILURES:
        if re.search(pattern, log):
            return stage
    return None
