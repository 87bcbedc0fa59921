"""Timing work on the GPU, and the picks that it is timed with."""

from collections.abc import Callable, Sequence

import torch

_REPEATS = 3


def draw_picks(
    rows: int, experts: int, top_k: int, host: Sequence[int], host_share: float, device: torch.device
) -> torch.Tensor:
    """Expert ids `[rows, top_k]`, distinct in each row, of which about `host_share` are in `host`."""
    weights = torch.full((experts,), (1 - host_share) / max(1, experts - len(host)), dtype=torch.float32, device=device)
    weights[list(host)] = host_share / len(host)
    generator = torch.Generator(device=device).manual_seed(0)
    # A pick of probability zero is still needed where one side has fewer than top_k experts.
    return torch.multinomial((weights + 1e-9).expand(rows, experts), top_k, generator=generator)


def seconds(work: Callable[[], object]) -> float:
    """Median time of the work on the current stream, after one call that compiles what must be compiled."""
    return sorted(times(work, _REPEATS))[_REPEATS // 2]


def times(work: Callable[[], object], repeats: int) -> list[float]:
    """Times of the work on the current stream in seconds, one for each repeat, after one call that is not timed."""
    work()
    found: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return found
