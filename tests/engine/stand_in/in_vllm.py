"""Real vLLM on the CPU, with placement on the stand-in driver, in each process that imports this and calls its functions.

The kernel of vLLM's CPU experts repacks weights, so a plain one stands in for it, with a plan and without.
"""

import sys
import types

import install
import torch


def compute_plainly():
    """Let vLLM's CPU experts compute on their weights as loaded."""
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    for experts in (cpu_moe.CPUUnquantizedExperts, cpu_moe.X86CPUUnquantizedExperts):
        experts.process_weights_after_loading = lambda self, layer: None
        experts.apply = _apply


def _apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, *arguments, **options):
    out = torch.zeros_like(hidden_states, dtype=torch.float32)
    for e in topk_ids.unique().tolist():
        rows, picks = (topk_ids == e).nonzero(as_tuple=True)
        gate, up = (hidden_states[rows].float() @ w1[e].float().T).chunk(2, dim=1)
        expert = (torch.nn.functional.silu(gate) * up) @ w2[e].float().T
        out.index_add_(0, rows, topk_weights[rows, picks, None] * expert)
    output.copy_(out)


class Torch:
    """Torch with a CUDA of our own, since vLLM puts its own stand-ins for streams and events into torch.cuda."""

    cuda = types.SimpleNamespace(
        Event=install.Event,
        Stream=install.Stream,
        current_stream=install.Stream,
        is_current_stream_capturing=lambda: False,
        current_device=lambda: 0,
        empty_cache=lambda: None,
        synchronize=lambda: None,
        get_device_name=lambda _: "stand-in",
    )

    def __getattr__(self, name):
        return getattr(torch, name)


def place_on_the_cpu():
    """Give placement the stand-in driver, and let it take vLLM's CPU for a GPU that it knows."""
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = install.driver
    sys.modules |= {"cuda": types.ModuleType("cuda"), "cuda.bindings": bindings, "cuda.bindings.driver": install.driver}
    from spillway.placement import boundary, evidence, exchange, placement, routed_experts, staging, swap

    for module in (boundary, evidence, exchange, placement, routed_experts, staging, swap):
        module.torch = Torch()
    install.see_memory()
    placement.current_platform = types.SimpleNamespace(is_cuda=lambda: True)
    placement.Placement._check = lambda self, name, weights, top_k: None
    routed_experts.refuse_method = lambda method: None
