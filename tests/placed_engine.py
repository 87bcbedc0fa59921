"""In place of a vLLM with the placement plugin: the golden server, after writing the proof that its plan asks for.

SPILLWAY_TEST_PROOF says what becomes of the proof: `sound` (the default), `absent`, or `bent` (bytes that the plan does not
put there). The proof is made up from the plan alone: it shows what the harness does with proofs, never that one is true.
"""

import asyncio
import os
import sys
from pathlib import Path

from spillway.placement.layout import plan_layout
from spillway.placement.plan import Plan, load_plan
from spillway.placement.proof import ExpertSample, LayerProof, RankProof, SwitchOver, TensorProof
from spillway.placement.routing import routing_in_force

GATE_AND_UP, DOWN = 2 / 3, 1 / 3


def layer_proof(plan: Plan, ids: tuple[int, ...], ranks: int) -> LayerProof:
    """What one rank would find in a layer with these experts on the host."""
    experts = plan.model.experts
    sampled = [(ids[0], "host"), *[(expert, "gpu") for expert in range(experts) if expert not in ids][:1]]
    tensors, samples = {}, []
    for key, part in (("w13_weight", GATE_AND_UP), ("w2_weight", DOWN)):
        size = round(plan.model.expert_bytes / ranks * part)
        layout = plan_layout(experts, size, ids)
        tensors[key] = TensorProof(experts=experts, expert_bytes=size, host_bytes=layout.host_bytes, gpu_bytes=layout.gpu_bytes)
        for expert, memory in sampled:
            sums = {"loaded": "aa", "in_place": "aa", "staged": "aa"}
            samples.append(ExpertSample(expert=expert, tensor=key, memory=memory, **sums))
    return LayerProof(host_experts=ids, backend="TRITON", tensors=tensors, samples=tuple(samples))


def sound_proof(plan: Plan, rank: int = 0, ranks: int = 1) -> RankProof:
    """A proof of one rank that the checker accepts."""
    return RankProof(
        state="ready",
        rank=rank,
        ranks=ranks,
        plan_sha256=plan.sha256,
        engine="0.0.0+golden",
        device="a GPU that is made up",
        numa_node=0,
        layers={name: layer_proof(plan, ids, ranks) for name, ids in plan.layers.items() if ids},
        host_read_bytes_per_s=50e9,
        gpu_read_bytes_per_s=4e12,
        host_copy_bytes_per_s=55e9,
        staging_bytes=1 << 20,
        switch_over=SwitchOver(
            rows=64, rows_timed=(64,), in_place_s=(2.0,), staged_s=(1.0,), copy_s=1.0, host_share=0.3, measured=True
        ),
        largest_graph_rows=32,
    )


def main() -> None:
    import golden_server  # lies beside this file, and only its program finds it there

    wanted = os.environ.get("SPILLWAY_TEST_PROOF", "sound")
    if "SPILLWAY_PLAN" in os.environ and wanted != "absent":
        proof = sound_proof(load_plan(Path(os.environ["SPILLWAY_PLAN"]))).model_copy(update={"routing": routing_in_force()})
        if wanted == "bent":
            proof = proof.model_copy(update={"plan_sha256": "0" * 64})
        folder = Path(os.environ["SPILLWAY_PROOF_DIR"])
        folder.mkdir(parents=True)
        proof.save(folder)
    asyncio.run(golden_server.serve(golden_server.parse_arguments(sys.argv[1:])))


if __name__ == "__main__":
    main()
