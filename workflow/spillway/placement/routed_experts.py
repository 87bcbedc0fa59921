"""vLLM's layer of routed experts, with its weights placed by a plan and its picks counted where asked.

The layer's own kernels run on the placed tensors; nothing in how they compute is replaced, so the outputs are theirs.
"""

import os
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from spillway.placement.counter import ExpertCounter
from spillway.placement.counts import COUNTS_VARIABLE
from spillway.placement.placement import NOTHING_PLACED, PLAN_VARIABLE, Placement
from spillway.placement.refusals import Refused, expert_backend, refuse_method

_placement: Placement | None = None
_counter: ExpertCounter | None = None


def placement() -> Placement:
    """This process's placement, made when the first thing to place is."""
    global _placement
    if _placement is None:
        _placement = Placement(get_current_vllm_config())
    return _placement


def model_is_loaded() -> None:
    """Prove this process's placement, once its model is loaded.

    Raises Refused or PlanError where anything that the plan names was not placed, as when the model's layers of experts are of
    a class of its own, which vLLM does not let a plugin replace.
    """
    if _placement is None:
        raise Refused(NOTHING_PLACED)
    from spillway.placement.evidence import find_evidence

    _placement.require_loaded()
    _placement.prove(find_evidence(_placement))


def before_step(rows: int) -> None:
    """Let experts of this process's placement, if it has one, change places before a step of `rows` rows."""
    if _placement is not None:
        _placement.before_step(rows)


def counter() -> ExpertCounter:
    """This process's counter of picks, made when its first layer is."""
    global _counter
    if _counter is None:
        _counter = ExpertCounter(get_current_vllm_config())
    return _counter


class PlacedRoutedExperts(RoutedExperts):  # type: ignore[misc]
    """Routed experts in the memories that the plan names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._placement = placement() if PLAN_VARIABLE in os.environ else None
        self._placed = None
        if self._placement is not None:
            reason = refuse_method(self.quant_method)
            if reason is not None:
                raise Refused(f"{self.layer_name}: {reason}")
            self._placed = self._placement.place(self.layer_name, self, self.top_k, expert_backend(self.quant_method))
        if self._placed is not None:
            self._check_around_loading()
        self._count = None
        if COUNTS_VARIABLE in os.environ or (self._placement is not None and self._placement.following is not None):
            self._count = counter().add(self.layer_name, self.global_num_experts, self.top_k)

    def weight_loader(self, *args: Any, **kwargs: Any) -> bool | None:
        if self._placement is not None:
            self._placement.require_made()
        return super().weight_loader(*args, **kwargs)  # type: ignore[no-any-return]

    # vLLM's loader asks this of the function itself.
    weight_loader.supports_moe_loading = True  # type: ignore[attr-defined]

    def _check_around_loading(self) -> None:
        """Compare the weights before and after what the quantisation method does to loaded weights."""
        finish_loading = self.quant_method.process_weights_after_loading

        def checked(layer: torch.nn.Module) -> None:
            owner, placed = self._placement, self._placed
            assert owner is not None and placed is not None
            with owner.timed("after_loading"):
                placed.note_loaded()
                finish_loading(layer)
                placed.restore()

        self.quant_method.process_weights_after_loading = checked

    def forward_modular(
        self,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> Any:
        """The parent's forward on `[rows, hidden]`; large steps read staged copies of the host experts."""
        if self._count is not None:
            self._count(topk_ids)
        arguments = (x, topk_weights, topk_ids, shared_experts, shared_experts_input)
        owner, placed = self._placement, self._placed
        # A captured graph must not depend on copies that some steps make and others do not.
        if owner is None or placed is None or torch.cuda.is_current_stream_capturing():
            return super().forward_modular(*arguments)
        if not owner.ready:
            from spillway.placement.evidence import find_switch_over

            owner.prove(find_switch_over(owner, placed, x, topk_weights, topk_ids))
        if owner.staging is None or not owner.stages(x.shape[0]):
            return super().forward_modular(*arguments)
        owner.staging.begin(placed.index)
        try:
            with placed.reading_staged():
                return super().forward_modular(*arguments)
        finally:
            owner.staging.end(placed.index)

    def forward_monolithic(self, *args: Any, **kwargs: Any) -> Any:
        """The parent's forward, whose kernel routes by itself; raises Refused where picks were to be counted."""
        if self._count is not None:
            raise Refused(f"{self.layer_name}: this backend routes inside its kernel, so its picks cannot be counted")
        return super().forward_monolithic(*args, **kwargs)
