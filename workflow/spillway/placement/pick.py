# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The synthetic router's kernel: top-k picks of which a chosen share falls on unpopular experts.

For each of a row's `top_k` picks a hash of the row's logits decides whether it is unpopular; the pick is then the
highest logit left on that side. So the picks depend on the text alone, are the same for every placement, and need no
random state inside CUDA graphs. One launch per layer, like the top-k kernel that it stands in for.
"""

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]


@triton.jit
def _pick(
    logits, unpopular, share, weights, ids,
    experts: tl.constexpr, top_k: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    valid = expert < experts
    logit = tl.load(logits + row * experts + expert, mask=valid, other=0.0).to(tl.float32)
    rare = tl.load(unpopular + expert, mask=valid, other=0) != 0
    # A 32-bit hash of all logits of the row (multiply, add, finish with Murmur3's mixer).
    word = logit.to(tl.uint32, bitcast=True) * ((2 * expert).to(tl.uint32) + 0x9E3779B1)
    seed = tl.sum(tl.where(valid, word ^ (word >> 15), 0).to(tl.uint32), axis=0)
    rare_chance = tl.load(share)
    slot = tl.arange(0, SLOTS)
    picked_logit = tl.full((SLOTS,), float("-inf"), tl.float32)
    picked_id = tl.zeros((SLOTS,), tl.int32)
    left = valid
    for k in tl.static_range(top_k):
        mixed = seed + ((k * 0x85EBCA6B) & 0xFFFFFFFF)
        mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B
        mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35
        mixed = mixed ^ (mixed >> 16)
        # The low bits suffice; a signed conversion keeps the value between 0 and 1.
        chance = (mixed & 0xFFFFFF).to(tl.int32).to(tl.float32) / 16777216.0
        side = left & (rare == (chance < rare_chance))
        # Where a side is used up, the other one serves.
        side = tl.where(tl.sum(side.to(tl.int32), axis=0) > 0, side, left)
        best = tl.argmax(tl.where(side, logit, float("-inf")), axis=0)
        value = tl.max(tl.where(expert == best, logit, float("-inf")), axis=0)
        left = left & (expert != best)
        picked_id = tl.where(slot == k, best, picked_id)
        picked_logit = tl.where(slot == k, value, picked_logit)
    weight = tl.exp(picked_logit - tl.max(picked_logit, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    tl.store(weights + row * top_k + slot, weight, mask=slot < top_k)
    tl.store(ids + row * top_k + slot, picked_id.to(ids.dtype.element_ty), mask=slot < top_k)


def pick_experts(
    router_logits: torch.Tensor,
    unpopular: torch.Tensor,
    share: torch.Tensor,
    top_k: int,
    indices_type: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (float32, each row sums to 1) and ids, both `[rows, top_k]`, for logits `[rows, experts]`.

    `unpopular [experts]` is 1 for unpopular experts; each pick is one of them with probability `share [1]` (float32),
    which lies on the GPU so that it can change under a captured graph.
    """
    rows, experts = router_logits.shape
    router_logits = router_logits.contiguous()
    weights = torch.empty((rows, top_k), dtype=torch.float32, device=router_logits.device)
    ids = torch.empty((rows, top_k), dtype=indices_type or torch.int32, device=router_logits.device)
    _pick[(rows,)](
        router_logits, unpopular, share, weights, ids,
        experts=experts, top_k=top_k, BLOCK=triton.next_power_of_2(experts), SLOTS=triton.next_power_of_2(top_k),
        num_warps=1,
    )  # fmt: skip
    return weights, ids
