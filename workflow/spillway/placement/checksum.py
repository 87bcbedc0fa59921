"""Telling whether an expert's bytes are what was loaded."""

import torch


def checksum(expert: torch.Tensor) -> str:
    """A position-dependent 64-bit checksum of a contiguous expert's bytes (wrapping integer arithmetic, exact)."""
    raw = expert.contiguous().flatten().view(torch.uint8)
    words = raw[: raw.numel() // 8 * 8].view(torch.int64)
    places = torch.arange(1, 2 * words.numel(), 2, device=words.device)
    total = (words * places).sum() + raw[words.numel() * 8 :].sum()
    return f"{total.item() & 0xFFFFFFFFFFFFFFFF:016x}"
