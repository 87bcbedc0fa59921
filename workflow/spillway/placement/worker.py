"""What the harness may ask of a running server's workers, through vLLM's `/collective_rpc` (development mode, loopback).

Named in `--worker-extension-cls`; vLLM calls the methods in every rank's worker process, between two steps.
"""

import dataclasses
import os


class PlacementWorker:
    """Methods that vLLM adds to its own worker class. Arguments arrive as text."""

    def spillway_set_cold_share(self, share: str) -> dict[str, float]:
        """Give the synthetic routing's unpopular experts another share of the picks; graphs already captured follow."""
        from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator

        from spillway.placement.routing import ROUTING_VARIABLE, STRATEGY, SyntheticRouting

        strategy = RoutingSimulator._routing_strategies.get(STRATEGY)
        if strategy is None:
            raise RuntimeError("no synthetic routing is in force in this server, so there is no cold share to set")
        strategy.set_share(float(share))
        # From now on this process's routing is labelled with that share.
        routing = SyntheticRouting.parse(os.environ[ROUTING_VARIABLE])
        os.environ[ROUTING_VARIABLE] = dataclasses.replace(routing, share=float(share)).setting
        return {"cold_share": float(share)}

    def spillway_host_reads(self) -> dict[str, int]:
        """Decode steps since the engine's start, and how many of the plan's host experts they read, each once a step.

        Bytes are this rank's. Where experts move, the plan's are not those on the host: the journal says which are.
        """
        from spillway.placement import routed_experts

        counts, placement = routed_experts.counter(), routed_experts.placement()
        reads = counts.reads()
        rows = {name: row for row, name in enumerate(counts.names)}
        host_reads = sum(int(reads[rows[name], list(ids)].sum()) for name, ids in placement.plan.layers.items())
        return {
            "decode_steps": counts.steps(),
            "host_reads": host_reads,
            "host_read_bytes": host_reads * placement.plan.model.expert_bytes // placement.ranks,
        }
