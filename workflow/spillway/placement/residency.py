"""What one rank's follower is made of: its placement, its proof and its counts."""

import functools

from spillway.placement.boundary import of_all_ranks
from spillway.placement.checksum import checksum
from spillway.placement.follow import SwapCost
from spillway.placement.journal import Journal
from spillway.placement.layout import Memory
from spillway.placement.placement import PlacedLayer, Placement
from spillway.placement.routed_experts import counter
from spillway.placement.swap import ExchangeLayer, Follower


def make_follower(placement: Placement) -> Follower:
    """The follower of a rank whose placement is proved."""
    following, proof = placement.following, placement.proof
    assert following is not None and proof is not None
    counts = counter()
    rows = {name: row for row, name in enumerate(counts.names)}
    on_host = counts.reads() < 0
    for name, layer in placement.layers.items():
        on_host[rows[name], list(layer.host)] = True
    layers = [
        ExchangeLayer(
            name=name,
            row=rows[name],
            index=layer.index,
            tensors=layer.tensors,
            checksums=layer.checksums,
            read_back=functools.partial(_read_back, placement, layer),
        )
        for name, layer in placement.layers.items()
        if layer.follows
    ]
    cost = SwapCost(
        expert_bytes=sum(tensor.layout.expert_bytes for tensor in layers[0].tensors.values()),
        host_read_bytes_per_s=proof.kernel_read_bytes_per_s or proof.host_read_bytes_per_s,
        copy_bytes_per_s=proof.host_copy_bytes_per_s or proof.host_read_bytes_per_s,
        copies=1 if following.host_copy else 2,
        pause_s=0.0,
    )

    # Each rank measured its own switch-over; what defers swaps must be one for all.
    found = of_all_ranks(None if placement.staging is None or proof.switch_over is None else proof.switch_over.rows)
    staged_from = min((rows for rows in found if rows is not None), default=None)

    def stages(rows: int) -> bool:
        # Smaller steps replay a graph, which reads in place. (Under FULL_DECODE_ONLY those with prefill do not: beside one of
        # them that is staged experts may move, and share the link with it.)
        return staged_from is not None and rows >= staged_from and rows > proof.largest_graph_rows

    return Follower(
        following=following,
        layers=layers,
        spares=placement.spares,
        pages=placement.pages,
        staging=placement.staging,
        on_host=on_host,
        reads=counts.reads,
        cost=cost,
        journal=Journal(placement.proof_folder, placement.rank),
        rank=placement.rank,
        agree=of_all_ranks,
        stages=stages,
    )


def _read_back(placement: Placement, layer: PlacedLayer, key: str, expert: int) -> tuple[Memory, str]:
    found = layer.module.get_parameter(key)[expert]
    return placement.pages.memory_at(found.data_ptr()), checksum(found)
