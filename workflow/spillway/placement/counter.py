"""Counting picks in a running server: on the GPU, inside CUDA graphs, for plans to be chosen from and to be followed.

The picks of a step's layers are kept until its last layer, which counts them all: half a dozen small kernels and one copy
per step, however many layers there are. Three counts: picks of small steps (decode), picks of larger ones (prefill), and
reads, the small steps that read an expert at all, however many rows picked it.

The engine's own warm-up is counted: read the file once when the server is ready, and take `ExpertCounts.since` that.
Rows that only pad a captured graph are counted where they have experts, since these are read. vLLM 0.32 gives them -1 instead
(VLLM_MOE_SKIP_PADDING, on by default there and off in 0.25.1); its kernels read nothing for them, and they are not counted.
"""

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.distributed import get_tensor_model_parallel_rank

from spillway.placement.counts import COUNTS_VARIABLE, ExpertCounts, LayerCounts, keep_current
from spillway.placement.plan import PlanError
from spillway.placement.routing import routing_in_force
from spillway.placement.served import identify_served

DECODE_ROWS = 64
_SAVE_EVERY_S = 5.0
_DECODE, _PREFILL, _READS = range(3)


class ExpertCounter:
    """Counts by layer and expert; written to the file that SPILLWAY_COUNTS names, if it does, every few seconds."""

    def __init__(self, config: Any) -> None:
        """`config` is vLLM's VllmConfig; raises PlanError where picks cannot be counted or would be nobody's."""
        if getattr(config, "speculative_config", None) is not None:
            raise PlanError("picks are not counted with --speculative-config: its drafter's layers run in steps of their own")
        self._identity = identify_served(config.model_config)
        self.names: list[str] = []
        """Layers by row of the counts: in the order in which they were made and in which they run."""
        self._picks: list[torch.Tensor] = []
        self._totals: torch.Tensor | None = None
        # `[decode, prefill or reads, layers, experts + 1]`: the last column takes the ids -1.
        # The host reads this copy and so never waits for the GPU, nor calls CUDA while a graph is being captured.
        self._seen: torch.Tensor | None = None
        if COUNTS_VARIABLE in os.environ and get_tensor_model_parallel_rank() == 0:
            path = Path(os.environ[COUNTS_VARIABLE])
            threading.Thread(target=keep_current, args=(path, self._save_for_ever), name="expert counts", daemon=True).start()

    def add(self, name: str, experts: int, top_k: int) -> Callable[[torch.Tensor], None]:
        """Register a layer; returns what to call with its picks `[rows, top_k]`."""
        if (experts, top_k) != (self._identity.experts, self._identity.top_k):
            raise PlanError(f"{name}: {experts} experts and top-{top_k}, config.json says otherwise")
        row = len(self.names)
        self.names.append(name)

        def count(picks: torch.Tensor) -> None:
            if row == 0:
                self._picks.clear()
            if len(self._picks) != row:
                raise RuntimeError(f"{name}: layers run in another order than they were made in; their picks cannot be counted")
            # Some backends ask for unsigned ids, which few of torch's kernels know.
            self._picks.append(picks.view(torch.int32) if picks.dtype == torch.uint32 else picks)
            if len(self._picks) == len(self.names):
                self._add_step()

        return count

    def reads(self) -> NDArray[np.int64]:
        """Small steps that read each expert, `[layers, experts]`, as of a step that has ended; 0 before the first one."""
        if self._seen is None:
            return np.zeros((len(self.names), self._identity.experts), dtype=np.int64)
        found: NDArray[np.int64] = self._seen[_READS, :, :-1].numpy()
        return found

    def steps(self) -> int:
        """Small steps so far, as of a step that has ended."""
        return 0 if self._seen is None else int(self._seen_all[-1])

    def _add_step(self) -> None:
        # Kept until now, so that inside a graph no later layer's tensors took their place.
        ids = torch.cat([picks.reshape(1, -1) for picks in self._picks]).to(torch.int64)
        ids.remainder_(self._identity.experts + 1)
        rows = self._picks[0].shape[0]
        self._picks.clear()
        if self._totals is None or self._seen is None:
            shape = (3, len(self.names), self._identity.experts + 1)
            # All counts lie in one piece of memory, the number of small steps at its end, so that one copy takes them.
            self._all = torch.zeros(math.prod(shape) + 1, dtype=torch.int64, device=ids.device)
            self._seen_all = torch.zeros(self._all.shape, dtype=torch.int64, device="cpu", pin_memory=ids.is_cuda)
            self._totals, self._steps = self._all[:-1].view(shape), self._all[-1:]
            self._seen = self._seen_all[:-1].view(shape)
            self._ones = torch.ones((1, 1), dtype=torch.int64, device=ids.device)
            self._read = torch.zeros(shape[1:], dtype=torch.int64, device=ids.device)
        decode = rows <= DECODE_ROWS
        self._totals[_DECODE if decode else _PREFILL].scatter_add_(1, ids, self._ones.expand_as(ids))
        if decode:
            self._read.zero_().scatter_(1, ids, 1)
            self._totals[_READS].add_(self._read)
            self._steps.add_(1)
        self._seen_all.copy_(self._all, non_blocking=True)

    def _save_for_ever(self, path: Path) -> None:
        pause = threading.Event()
        saved: list[list[list[int]]] = []
        while True:
            pause.wait(_SAVE_EVERY_S)
            names, seen = list(self.names), self._seen
            # A server that has not run a step yet has counted nothing, which is worth knowing, too.
            now = [[[0] * self._identity.experts for _ in names]] * 2 if seen is None else seen[: _PREFILL + 1, :, :-1].tolist()
            if not names or now == saved:
                continue
            counts = ExpertCounts(
                model=self._identity,
                origin=routing_in_force() or "routing of the served model",
                decode_rows=DECODE_ROWS,
                layers={
                    name: LayerCounts(decode=tuple(decode), prefill=tuple(prefill))
                    for name, decode, prefill in zip(names, *now, strict=True)
                },
            )
            partial = path.with_suffix(f".{os.getpid()}.partial")
            counts.save(partial)
            partial.replace(path)
            saved = now
