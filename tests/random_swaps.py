"""Swaps drawn at random, in place of the planner's, for tests of what carries them out."""

import random
from typing import Any


def draw_swaps(follower: Any, generator: random.Random, count: int) -> list[Any]:
    """Up to `count` swaps that are possible now and touch nothing that moves, no expert twice."""
    from spillway.placement.follow import Swap

    busy = {(move.swap.layer, expert) for move in follower.moving for expert in (move.swap.promote, move.swap.demote)}
    layers, experts = follower.on_host.shape
    swaps: list[Any] = []
    for _ in range(1000):
        if len(swaps) == count:
            break
        row, (up, down) = generator.randrange(layers), generator.sample(range(experts), 2)
        possible = follower.on_host[row, up] and not follower.on_host[row, down] and (up - down) % follower.classes == 0
        if possible and not {(row, up), (row, down)} & busy:
            swaps.append(Swap(row, up, down))
            busy |= {(row, up), (row, down)}
    return swaps


def feed(follower: Any, generator: random.Random, count: int) -> None:
    """Have the follower start `count` random swaps at each decision."""
    from spillway.placement.swap import Proposal

    def agree(proposal: Any) -> list[Any]:
        failed = proposal.failure is not None
        return [Proposal(proposal.failure, () if failed else tuple(draw_swaps(follower, generator, count)))]

    follower.agree = agree


def rest(follower: Any) -> None:
    """Have the follower start nothing more."""
    from spillway.placement.swap import Proposal

    follower.agree = lambda proposal: [Proposal(proposal.failure, ())]
