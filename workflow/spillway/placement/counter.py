"""Counting picks in a running server: on the GPU, inside CUDA graphs, for plans to be chosen from.

The engine's own warm-up is counted: read the file once when the server is ready, and take `ExpertCounts.since` that.
Rows that only pad a captured graph are counted too; decode at batch sizes that are captured exactly has none. Counting
costs a few small kernels per layer, so speed is not measured while it is on.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

from spillway.placement.counts import ExpertCounts, LayerCounts
from spillway.placement.plan import PlanError, identify_model
from spillway.placement.routing import routing_in_force

COUNTS_VARIABLE = "SPILLWAY_COUNTS"
DECODE_ROWS = 64
_SAVE_EVERY_S = 5.0


class ExpertCounter:
    """Picks by layer, kind of step and expert, written to the file that SPILLWAY_COUNTS names every few seconds."""

    def __init__(self, config: Any) -> None:
        model = config.model_config
        found = get_hf_file_to_dict("config.json", model.model, model.revision)
        if found is None:
            raise PlanError(f"{model.model}: no config.json to say whose counts these are")
        self._identity = identify_model(found)
        self._path = Path(os.environ[COUNTS_VARIABLE])
        self._seen: dict[str, torch.Tensor] = {}
        if get_tensor_model_parallel_rank() == 0:
            threading.Thread(target=self._save_for_ever, name="expert counts", daemon=True).start()

    def add(self, name: str, experts: int, top_k: int) -> Callable[[torch.Tensor], None]:
        """Register a layer; returns what to call with its picks `[rows, top_k]`."""
        if (experts, top_k) != (self._identity.experts, self._identity.top_k):
            raise PlanError(f"{name}: {experts} experts and top-{top_k}, config.json says otherwise")
        totals = torch.zeros((2, experts), dtype=torch.int64)
        # The writer thread reads this copy and so never calls CUDA, which could break a graph being captured.
        seen = torch.zeros((2, experts), dtype=torch.int64, device="cpu", pin_memory=totals.is_cuda)
        self._seen[name] = seen

        def count(picks: torch.Tensor) -> None:
            kind = totals[0 if picks.shape[0] <= DECODE_ROWS else 1]
            ids = picks.flatten().to(torch.int64)
            kind.scatter_add_(0, ids, torch.ones_like(ids))
            seen.copy_(totals, non_blocking=True)

        return count

    def _save_for_ever(self) -> None:
        pause = threading.Event()
        saved: dict[str, list[list[int]]] = {}
        while True:
            pause.wait(_SAVE_EVERY_S)
            now = {name: seen.tolist() for name, seen in list(self._seen.items())}
            if now == saved:
                continue
            counts = ExpertCounts(
                model=self._identity,
                origin=routing_in_force() or "routing of the served model",
                decode_rows=DECODE_ROWS,
                layers={name: LayerCounts(decode=tuple(kinds[0]), prefill=tuple(kinds[1])) for name, kinds in now.items()},
            )
            partial = self._path.with_suffix(f".{os.getpid()}.partial")
            counts.save(partial)
            partial.replace(self._path)
            saved = now
