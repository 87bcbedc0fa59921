"""The entry point that vLLM calls in every process of an engine (group `vllm.general_plugins`).

vLLM only logs a plugin that cannot be imported and goes on without it, but lets the errors of its function through. So
this module imports nothing that can fail; what can, fails inside `register` and stops the engine.
"""

import os


def register() -> None:
    """Replace vLLM's routed experts and embedding where the environment asks for a plan or for counts; may be called again.

    With a plan, have each worker prove it once the model is loaded. Where residency is to follow traffic, also stand between
    the worker's steps. Where synthetic routing is asked for, with or without a plan, register it. With any of these, dummy
    weights are filled once.
    """
    from spillway.placement.follow import RESIDENCY_VARIABLE, parse_residency
    from spillway.placement.routing import register_strategy

    register_strategy()
    if {"SPILLWAY_PLAN", "SPILLWAY_COUNTS", "SPILLWAY_ROUTING"} & os.environ.keys():
        from spillway.placement.dummy import fill_each_tensor_once

        fill_each_tensor_once()
    following = parse_residency(os.environ.get(RESIDENCY_VARIABLE), "SPILLWAY_PLAN" in os.environ)
    if "SPILLWAY_PLAN" not in os.environ and "SPILLWAY_COUNTS" not in os.environ:
        return
    from vllm.logger import init_logger
    from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot

    from spillway.placement.embedding import PlacedEmbedding
    from spillway.placement.routed_experts import PlacedRoutedExperts

    if "SPILLWAY_PLAN" in os.environ:
        from spillway.placement.boundary import after_loading
        from spillway.placement.routed_experts import model_is_loaded

        after_loading(model_is_loaded)
    if following is not None:
        from spillway.placement.boundary import before_each_step
        from spillway.placement.routed_experts import before_step

        before_each_step("residency", before_step)
    for name, layer in (("RoutedExperts", PlacedRoutedExperts), ("VocabParallelEmbedding", PlacedEmbedding)):
        found = op_registry_oot.get(name)
        if found is None:
            PluggableLayer.register_oot(name=name)(layer)
            # A name below vllm's own, so that vLLM's logging settings apply.
            init_logger("vllm.spillway").info("%s replaced by %s in process %d", name, layer.__name__, os.getpid())
        elif found is not layer:
            raise RuntimeError(
                f"another plugin ({found.__module__}.{found.__name__}) already replaces vLLM's {name}; "
                "name the plugins to load in VLLM_PLUGINS"
            )
