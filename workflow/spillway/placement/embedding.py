"""vLLM's token embedding, held wholly on the host where the plan names it: a step reads only its own tokens' rows."""

import inspect
import os
from typing import Any

from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

from spillway.placement.placement import PLAN_VARIABLE
from spillway.placement.refusals import Refused
from spillway.placement.routed_experts import placement


class PlacedEmbedding(VocabParallelEmbedding):  # type: ignore[misc]
    """A token embedding on the host if the plan's `parameters` name it, otherwise as vLLM makes it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if PLAN_VARIABLE not in os.environ:
            return
        given = inspect.signature(VocabParallelEmbedding.__init__).bind(self, *args, **kwargs).arguments
        name = f"{given.get('prefix', '')}.weight"
        if name not in placement().plan.parameters:
            return
        if not isinstance(self.quant_method, UnquantizedEmbeddingMethod):
            raise Refused(f"{name}: a quantised embedding was never tried on the host")
        placement().place_parameter(name, self.weight)
