"""Telling whether an expert's bytes are what was loaded."""

import torch

_PRODUCT_BYTES = 256 << 20
"""Memory that the products of one kernel may take."""


def checksum(expert: torch.Tensor) -> str:
    """A position-dependent 64-bit checksum of a contiguous expert's bytes (wrapping integer arithmetic, exact)."""
    raw = expert.contiguous().flatten().view(torch.uint8)
    words = raw[: raw.numel() // 8 * 8].view(torch.int64)
    places = torch.arange(1, 2 * words.numel(), 2, device=words.device)
    total = (words * places).sum() + raw[words.numel() * 8 :].sum()
    return f"{total.item() & 0xFFFFFFFFFFFFFFFF:016x}"


def checksums(experts: torch.Tensor) -> list[str]:
    """The checksum of each of several experts, `[experts, ...]` and contiguous: in few kernels, and one copy to the host."""
    raw = experts.flatten(1).view(torch.uint8)
    size = raw.shape[1]
    if size % 8:
        return [checksum(expert.clone()) for expert in experts]
    words = raw.view(torch.int64)
    places = torch.arange(1, size // 4, 2, device=words.device)
    at_once = max(1, _PRODUCT_BYTES // size)
    totals = torch.cat([(part * places).sum(1) for part in words.split(at_once)])
    return [f"{total & 0xFFFFFFFFFFFFFFFF:016x}" for total in totals.tolist()]
