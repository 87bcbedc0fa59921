"""One rank's placement: from the plan in the environment to layers whose weights lie where it says."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size, get_tp_group
from vllm.platforms import current_platform

from spillway.placement.checksum import checksum, checksums
from spillway.placement.follow import RESIDENCY_VARIABLE, parse_residency
from spillway.placement.host_memory import require_host_memory
from spillway.placement.journal import journal_path
from spillway.placement.layout import Layout, placed_layout, plan_layout
from spillway.placement.plan import PlanError, check_model, load_plan
from spillway.placement.proof import DIRECTORY_VARIABLE, STAGE_ROWS_VARIABLE, RankProof, SwitchOver, proof_path
from spillway.placement.refusals import Refused, refusals
from spillway.placement.served import identify_served

PLAN_VARIABLE = "SPILLWAY_PLAN"
WEIGHTS = ("w13_weight", "w2_weight")
NOTHING_PLACED = (
    "the plan was not obeyed: no layer of this model is vLLM's RoutedExperts itself, which is what is placed. Its experts are "
    "of a class of their own, as with --model-impl transformers; serve it without a plan"
)


class PlacedLayer:
    """One layer with experts on the host: its placed tensors, and the experts sampled for the proof."""

    def __init__(
        self, name: str, index: int, module: torch.nn.Module, host: tuple[int, ...], tensors: dict[str, Any], follows: bool
    ) -> None:
        self.name, self.index, self.module, self.host, self.tensors = name, index, module, host, tensors
        self.follows = follows
        self._staged = {
            key: torch.nn.Parameter(tensor.staged, requires_grad=False)
            for key, tensor in tensors.items()
            if tensor.staged is not None
        }
        experts = tensors[WEIGHTS[0]].layout.experts
        self.sampled = sorted({host[0], host[-1], *[e for e in range(experts) if e not in host][:1]})
        self.loaded: dict[tuple[str, int], str] = {}
        # Of every expert, where experts can change places.
        self.checksums: dict[tuple[str, int], str] = {}

    def note_loaded(self) -> None:
        """Keep checksums of the sampled experts as the loader left them."""
        self.loaded = {(key, e): checksum(t.tensor[e]) for key, t in self.tensors.items() for e in self.sampled}
        if self.follows:
            found = {key: checksums(t.tensor) for key, t in self.tensors.items()}
            self.checksums = {(key, e): each for key, sums in found.items() for e, each in enumerate(sums)}

    def restore(self) -> None:
        """Make the layer's parameters the placed tensors again if a step after loading replaced them by copies.

        Raises Refused when that step changed the bytes, since the kernels then expect something else than was placed.
        """
        for key, placed in self.tensors.items():
            parameter = self.module.get_parameter(key)
            if parameter.shape != placed.tensor.shape or parameter.dtype != placed.tensor.dtype:
                raise Refused(f"{self.name}.{key} became {tuple(parameter.shape)} {parameter.dtype} after loading")
            for e in self.sampled:
                if checksum(parameter[e]) != self.loaded[key, e]:
                    raise Refused(f"{self.name}.{key}: expert {e} was repacked after loading")
            parameter.data = placed.tensor
            if self.follows:
                placed.fill_copies(torch.cuda.current_stream())

    @contextmanager
    def reading_staged(self) -> Iterator[None]:
        """Let the layer's kernels read the staged view inside."""
        parameters = self.module._parameters
        in_place = {key: parameters[key] for key in self._staged}
        parameters.update(self._staged)
        try:
            yield
        finally:
            parameters.update(in_place)


class Placement:
    """What this rank places; made before its first layer exists."""

    def __init__(self, config: Any) -> None:
        """Read the plan and refuse what cannot work; `config` is vLLM's VllmConfig.

        Raises PlanError for a plan that is unsound or another model's, Refused for settings that rule plans out.
        """
        self.plan = load_plan(Path(os.environ[PLAN_VARIABLE]))
        self.following = parse_residency(os.environ.get(RESIDENCY_VARIABLE), has_plan=True)
        reasons = refusals(config, current_platform.is_cuda())
        if self.plan.parameters and embedding_is_shared(config.model_config):
            reasons.append("the output layer shares the embedding, which each step would then read over the link")
        if reasons:
            raise Refused("this server cannot be started with a plan: " + "; ".join(reasons))
        if DIRECTORY_VARIABLE not in os.environ:
            raise Refused(f"{DIRECTORY_VARIABLE} is not set, so the proof of placement has no place to go")
        check_model(self.plan, identify_served(config.model_config))
        self.config = config
        self.rank, self.ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        self.proof_folder = Path(os.environ[DIRECTORY_VARIABLE])
        self.proof_folder.mkdir(parents=True, exist_ok=True)
        for left_over in (proof_path, journal_path):
            left_over(self.proof_folder, self.rank).unlink(missing_ok=True)

        # Only now: these modules need a CUDA build of torch.
        from spillway.placement.pages import Pages
        from spillway.placement.staging import Staging

        self.pages = Pages(torch.cuda.current_device())
        self.stage_rows = stage_rows(os.environ.get(STAGE_ROWS_VARIABLE))
        self.staging = None if self.stage_rows == "off" else Staging()
        self.staging_bytes = 0
        self.spares: dict[str, Any] = {}
        self.follower: Any = None
        self.layers: dict[str, PlacedLayer] = {}
        self.parameters: dict[str, Any] = {}
        self.backend: str | None = None
        self.seconds: dict[str, float] = {}
        self.switch_over: SwitchOver | None = None
        self.proof: RankProof | None = None
        self._constructed: list[str] = []
        self._all_made = False
        self._layouts: dict[tuple[int, int, tuple[int, ...]], Layout] = {}
        self._staging_units: dict[tuple[str, int], list[Any]] = {}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time spent inside to `seconds[what]`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def place(self, name: str, layer: torch.nn.Module, top_k: int, backend: str) -> PlacedLayer | None:
        """Move a new layer's experts to where the plan says, before they are loaded; None if all stay on the GPU."""
        weights = {key: layer.get_parameter(key) for key in WEIGHTS}
        self._check(name, weights, top_k)
        if not self._constructed:
            self._prepare(weights)
        self._constructed.append(name)
        self.backend = backend
        host = self.plan.layers[name]
        if not host:
            return None

        from spillway.placement.exchange import ExchangeTensor
        from spillway.placement.pages import PlacedTensor

        follows = self.following is not None and len(host) < self.plan.model.experts
        tensors: dict[str, Any] = {}
        for key, weight in weights.items():
            layout = self._layout(weight, host)
            with self.timed("place"):
                units = self._staging_for(key, layout)
                if self.following is not None and follows:
                    tensors[key] = ExchangeTensor(self.pages, layout, weight, units, bool(self.following.host_copy))
                else:
                    tensors[key] = PlacedTensor(self.pages, layout, weight, units)
            weight.data = tensors[key].tensor
        # The layer's own first allocation goes back to the driver, so that the next layer's does not come on top of it.
        torch.cuda.empty_cache()
        if self.staging is not None:
            self.staging.layers.append(list(tensors.values()))
        self.layers[name] = PlacedLayer(name, len(self.layers), layer, host, tensors, follows)
        return self.layers[name]

    def place_parameter(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Move a whole new parameter to the host, before it is loaded."""
        from spillway.placement.pages import PlacedTensor

        whole = parameter.data.unsqueeze(0)
        layout = plan_layout(1, whole[0].numel() * whole.element_size(), (0,))
        require_host_memory(layout.host_bytes, self.ranks, self._host_bytes())
        self.parameters[name] = PlacedTensor(self.pages, layout, whole, None)
        parameter.data = self.parameters[name].tensor.squeeze(0)
        torch.cuda.empty_cache()

    def _check(self, name: str, weights: dict[str, torch.nn.Parameter], top_k: int) -> None:
        if name not in self.plan.layers:
            raise PlanError(f"the plan does not name layer {name} of this model")
        for key, weight in weights.items():
            if not weight.is_cuda or weight.shape[0] != self.plan.model.experts:
                raise Refused(
                    f"{name}.{key}: {tuple(weight.shape)} on {weight.device}, expected all "
                    f"{self.plan.model.experts} experts on the GPU"
                )
        expert_bytes = sum(w[0].numel() * w.element_size() for w in weights.values()) * self.ranks
        if (expert_bytes, top_k) != (self.plan.model.expert_bytes, self.plan.model.top_k):
            raise PlanError(
                f"{name}: {expert_bytes} bytes per expert and top-{top_k}, "
                f"plan: {self.plan.model.expert_bytes} and top-{self.plan.model.top_k}"
            )

    def _prepare(self, weights: dict[str, torch.nn.Parameter]) -> None:
        """Check host memory for the whole plan, and take the spare slots."""
        hosts = [ids for ids in self.plan.layers.values() if ids]
        need = sum(self._layout(weight, host).host_bytes for weight in weights.values() for host in hosts)
        mixed = [host for host in hosts if len(host) < self.plan.model.experts]
        if self.following is not None and self.following.host_copy:
            need += sum(self._layout(weight, host).gpu_bytes for weight in weights.values() for host in mixed)
        require_host_memory(need, self.ranks, self._host_bytes())
        # No rank may take memory before all ranks have looked.
        get_tp_group().barrier()
        if self.following is not None:
            self._take_spares(weights, mixed)

    def _host_bytes(self) -> int:
        """Bytes that this rank has placed on the host so far."""
        placed = [*self.parameters.values(), *(t for layer in self.layers.values() for t in layer.tensors.values())]
        return sum(int(tensor.layout.host_bytes) for tensor in placed)

    def _staging_for(self, key: str, layout: Layout) -> list[Any] | None:
        """Units of the staging buffer whose turn it is, at least as many as the next layer needs; None without staging.

        A buffer grows with the layers, as they are made: the plan's file need not name them in that order.
        """
        if self.staging is None:
            return None
        units = self._staging_units.setdefault((key, len(self.layers) % 2), [])
        more = max(0, layout.host_units - len(units))
        units += self.pages.allocate("gpu", layout.unit_bytes, more)
        self.staging_bytes += more * layout.unit_bytes
        return units

    def _take_spares(self, weights: dict[str, torch.nn.Parameter], mixed: list[tuple[int, ...]]) -> None:
        from spillway.placement.exchange import Spares

        assert self.following is not None
        if not mixed:
            raise Refused(
                f"{RESIDENCY_VARIABLE} asks to follow traffic, but the plan has no layer with experts in both memories"
            )
        # A swap holds its slot over one boundary between steps, or over two where the demoted expert is copied as well.
        each = self.following.swaps_per_step * (1 if self.following.host_copy else 2)
        for key, weight in weights.items():
            self.spares[key] = Spares(self.pages, self._layout(weight, mixed[0]), each)

    def _layout(self, tensor: torch.Tensor, host: tuple[int, ...]) -> Layout:
        key = (tensor.shape[0], tensor[0].numel() * tensor.element_size(), host)
        if key not in self._layouts:
            self._layouts[key] = placed_layout(*key, None if self.following is None else self.following.classes)
        return self._layouts[key]

    def require_made(self) -> None:
        """Raise PlanError unless every layer and parameter that the plan names exists by now: before any weight is loaded."""
        if self._all_made:
            return
        check_model(self.plan, self.plan.model, self._constructed)
        absent = sorted(set(self.plan.parameters) - set(self.parameters))
        if absent:
            raise PlanError(
                f"parameters that the plan puts on the host but this model does not have, or that are no token "
                f"embedding: {', '.join(absent)}"
            )
        self._all_made = True

    def require_loaded(self) -> None:
        """Raise PlanError or Refused unless all that the plan names was placed, and its weights are final."""
        if not self._constructed:
            raise Refused(NOTHING_PLACED)
        self.require_made()
        if unfinished := [name for name, layer in self.layers.items() if not layer.loaded]:
            raise Refused(f"vLLM never finished the weights of {', '.join(unfinished[:3])} ({len(unfinished)} layers)")

    def prove(self, proof: RankProof) -> None:
        """Write the proof, and stage from now on as it says."""
        self.proof, self.switch_over = proof, proof.switch_over
        proof.save(self.proof_folder)

    def before_step(self, rows: int) -> None:
        """Called by vLLM's worker before each step of `rows` rows where residency follows traffic."""
        if self.following is None or not self.ready:
            return
        if self.follower is None:
            from spillway.placement.residency import make_follower

            self.follower = make_follower(self)
        self.follower.before_step(rows)

    @property
    def ready(self) -> bool:
        """Whether the switch-over is decided and the proof complete."""
        return self.proof is not None and self.proof.state == "ready"

    def stages(self, rows: int) -> bool:
        """Whether a step of this many rows reads staged copies."""
        start = None if self.switch_over is None else self.switch_over.rows
        return start is not None and rows >= start


def embedding_is_shared(model_config: Any) -> bool:
    """Whether the output layer reads the embedding's weights, by vLLM's ModelConfig.

    vLLM 0.32 unties the two while it loads where the checkpoint holds both, and ties them again where they prove equal.
    """
    untied = getattr(model_config, "word_embeddings_untied_by_checkpoint", False)
    return bool(model_config.hf_text_config.tie_word_embeddings or untied)


def stage_rows(text: str | None) -> int | str | None:
    """What SPILLWAY_STAGE_ROWS asks for: a number of rows, "off", or None for the measured switch-over."""
    if text is None or text == "off":
        return text
    if not text.isdigit() or int(text) < 1:
        raise Refused(f"{STAGE_ROWS_VARIABLE}={text!r}: expected a number of rows from 1 on, or off")
    return int(text)
