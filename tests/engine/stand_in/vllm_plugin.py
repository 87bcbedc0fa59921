"""A plugin of vLLM's: Spillway's own, after the stand-ins are in place in this process."""

import os


def register():
    """As vLLM calls it in every process of the engine."""
    import in_vllm

    in_vllm.compute_plainly()
    if "SPILLWAY_PLAN" in os.environ:
        in_vllm.place_on_the_cpu()
    from spillway.placement import plugin

    plugin.register()
