"""What this rank finds in its own memory: the contents of its proof."""

from collections.abc import Sequence

import torch
import vllm
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from spillway.placement.checksum import checksum
from spillway.placement.pages import bytes_at
from spillway.placement.placement import WEIGHTS, PlacedLayer, Placement
from spillway.placement.proof import ExpertSample, FollowingProof, LayerProof, RankProof, SwitchOver, TensorProof
from spillway.placement.refusals import Refused
from spillway.placement.routing import routing_in_force
from spillway.placement.switch_over import crossing, rows_to_time
from spillway.placement.timing import draw_picks, seconds

_PROBE_BYTES = 256 << 20


def find_evidence(placement: Placement) -> RankProof:
    """Read back where every placed weight lies, compare sampled experts, and time reads of both memories.

    What is looked at are the layers' own parameters, which their kernels will use.
    """
    torch.cuda.synchronize()
    with placement.timed("check"):
        layers = {name: _layer(placement, layer) for name, layer in placement.layers.items()}
        parameters = {name: tensor.bytes_found(tensor.tensor)["host"] for name, tensor in placement.parameters.items()}
    with placement.timed("probe"):
        host_rate, gpu_rate, copy_rate = _rates(placement)
    compilation = placement.config.compilation_config
    return RankProof(
        # Without experts on the host there is no switch-over to measure.
        state="loaded" if layers else "ready",
        rank=placement.rank,
        ranks=placement.ranks,
        plan_sha256=placement.plan.sha256,
        engine=vllm.__version__,
        device=torch.cuda.get_device_name(placement.pages.device),
        numa_node=placement.pages.node,
        layers=layers,
        parameters=parameters,
        host_read_bytes_per_s=host_rate,
        gpu_read_bytes_per_s=gpu_rate,
        host_copy_bytes_per_s=copy_rate,
        staging_bytes=placement.staging_bytes,
        largest_graph_rows=max(compilation.cudagraph_capture_sizes or [0]),
        following=_following(placement),
        routing=routing_in_force(),
        seconds=dict(placement.seconds),
    )


def _following(placement: Placement) -> FollowingProof | None:
    if placement.following is None:
        return None
    tensors = [tensor for layer in placement.layers.values() if layer.follows for tensor in layer.tensors.values()]
    return FollowingProof(
        setting=placement.following.setting,
        classes=max(tensor.layout.classes for tensor in tensors),
        spare_bytes=sum(spares.bytes for spares in placement.spares.values()),
        copied_bytes=sum(tensor.copied_bytes for tensor in tensors),
    )


def _layer(placement: Placement, layer: PlacedLayer) -> LayerProof:
    module, backend = layer.module, placement.backend
    assert backend is not None
    tensors, on_host = {}, {}
    for key, placed in layer.tensors.items():
        found, on_host[key] = placed.found(module.get_parameter(key))
        tensors[key] = TensorProof(
            experts=placed.layout.experts,
            expert_bytes=placed.layout.expert_bytes,
            host_bytes=found["host"],
            gpu_bytes=found["gpu"],
        )
    if len(set(on_host.values())) > 1:
        raise Refused(f"{layer.name}: the tensors of one expert lie in different memories: on the host are {on_host}")
    if placement.staging is not None:
        placement.staging.begin(layer.index)
    samples = []
    for (key, expert), loaded in layer.loaded.items():
        placed = layer.tensors[key]
        parameter = module.get_parameter(key)
        samples.append(
            ExpertSample(
                expert=expert,
                tensor=key,
                memory=placement.pages.memory_at(parameter[expert].data_ptr()),
                loaded=loaded,
                in_place=checksum(parameter[expert]),
                staged=None if placed.staged is None else checksum(placed.staged[expert]),
            )
        )
    if placement.staging is not None:
        placement.staging.end(layer.index)
    return LayerProof(host_experts=on_host[WEIGHTS[0]], backend=backend, tensors=tensors, samples=tuple(samples))


def _rates(placement: Placement) -> tuple[float, float, float | None]:
    """Bytes per second: kernels reading host pages, kernels reading GPU memory, the copy engine filling a buffer."""
    layer = max(placement.layers.values(), key=_host_bytes, default=None)
    tensors = placement.parameters if layer is None else layer.tensors
    tensor = max(tensors.values(), key=lambda t: t.layout.host_bytes)
    host = bytes_at(tensor.host_address, tensor.layout.host_bytes, placement.pages.device).view(torch.float32)
    gpu = torch.zeros(_PROBE_BYTES // 4, dtype=torch.float32, device=host.device)
    host_rate = tensor.layout.host_bytes / seconds(host.sum)
    gpu_rate = _PROBE_BYTES / seconds(gpu.sum)
    if placement.staging is None or layer is None:
        return host_rate, gpu_rate, None
    return host_rate, gpu_rate, _host_bytes(layer) / placement.staging.copy_seconds(layer.index)


def _host_bytes(layer: PlacedLayer) -> int:
    return sum(int(tensor.layout.host_bytes) for tensor in layer.tensors.values())


def find_switch_over(
    placement: Placement, layer: PlacedLayer, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> RankProof:
    """The finished proof: what a layer's experts cost in place and staged, for the numbers of rows up to this step's.

    A staged step is taken to last as long as the longer of its two parts, which are timed one after the other: the copy of a
    layer, and computing from copies.

    `x [rows, hidden]`, `weights` and `ids` `[rows, top_k]` are of the engine's first step, which is its largest: vLLM
    runs it to size the KV cache. The ids timed are drawn with the share of picks that the plan expects on the host.
    """
    assert placement.proof is not None, "a step ran before the weights were loaded"
    plan, host = placement.plan, layer.host
    share = plan.choice.host_share if plan.choice.host_share is not None else len(host) / plan.model.experts
    top_k = ids.shape[1]
    x = x.clone()

    def compute(picks: torch.Tensor) -> float:
        rows = picks.shape[0]
        return seconds(lambda: RoutedExperts.forward_modular(layer.module, x[:rows], weights[:rows], picks))

    def draw(rows: int, wanted: float) -> torch.Tensor:
        return draw_picks(rows, plan.model.experts, top_k, host, wanted, x.device).to(ids.dtype)

    with placement.timed("switch_over"):
        kernel_rate = _kernel_rate(plan.model.experts, layer, x[:1], weights[:1], ids[:1])
        switch_over = None
        if placement.staging is not None:
            copy_s = placement.staging.copy_seconds(layer.index)
            rows = rows_to_time(x.shape[0])
            in_place, staged = [], []
            for count in rows:
                picks = draw(count, share)
                in_place.append(compute(picks))
                with layer.reading_staged():
                    staged.append(max(copy_s, compute(picks)))
            chosen = placement.stage_rows
            switch_over = SwitchOver(
                rows=chosen if isinstance(chosen, int) else crossing(rows, in_place, staged),
                rows_timed=tuple(rows),
                in_place_s=tuple(in_place),
                staged_s=tuple(staged),
                copy_s=copy_s,
                host_share=share,
                measured=not isinstance(chosen, int),
            )
    return placement.proof.model_copy(
        update={
            "state": "ready",
            "kernel_read_bytes_per_s": kernel_rate,
            "switch_over": switch_over,
            "seconds": dict(placement.seconds),
        }
    )


def _kernel_rate(experts: int, layer: PlacedLayer, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> float | None:
    """Bytes per second at which the experts' kernel reads host experts for one row, beyond what GPU experts cost.

    Every expert is read once per pass, and a pass reads more than the GPU's cache holds. None where the layer has too
    few experts on either side for that.
    """
    top_k, host = ids.shape[1], layer.host
    on_gpu = [e for e in range(experts) if e not in set(host)]
    rows = min(len(host), len(on_gpu)) // top_k
    pass_bytes = rows * top_k * sum(int(tensor.layout.expert_bytes) for tensor in layer.tensors.values())
    if pass_bytes < _PROBE_BYTES:
        return None

    def read(side: Sequence[int]) -> float:
        picks = torch.tensor(side[: rows * top_k], dtype=ids.dtype, device=ids.device).view(rows, 1, top_k)

        def run() -> None:
            for row in picks:
                RoutedExperts.forward_modular(layer.module, x, weights, row)

        return seconds(run)

    extra_s = read(host) - read(on_gpu)
    return pass_bytes / extra_s if extra_s > 0 else None
