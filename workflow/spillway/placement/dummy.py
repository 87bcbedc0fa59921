"""Filling dummy weights once. vLLM before 0.32 fills a tensor as often as modules lie above it.

An expert's weights lie under seven modules of Qwen3-MoE, and what an offloader keeps in host memory vLLM fills by one core
of the CPU, at 10 ns a value: 16 GiB of experts would take ten minutes of a start, and a client that waits for the first
answer takes that for a hang. Which values are filled in, and all that happens afterwards, stays vLLM's.
"""

from typing import Any

import torch


def fill_each_tensor_once() -> None:
    """Have vLLM's loader of dummy weights fill each module's own tensors only, as vLLM 0.32 does by itself."""
    from vllm.model_executor.model_loader import dummy_loader

    if hasattr(dummy_loader, "initialize_dummy_weights"):
        dummy_loader.initialize_dummy_weights = fill_own_tensors


def fill_own_tensors(layer: torch.nn.Module, model_config: Any) -> None:
    """Fill the module's own parameters and persistent buffers with vLLM's dummy values, those in host memory on the GPU first.

    The same generator for all: what an offloader keeps on the host has the values that it would have on the GPU.
    """
    from vllm.model_executor.model_loader.reload.utils import get_layer_tensors
    from vllm.model_executor.model_loader.weight_utils import initialize_single_dummy_weight

    for name, tensor in get_layer_tensors(layer).items():
        if name in layer._non_persistent_buffers_set:
            continue
        if tensor.device.type == "cpu" and tensor.is_floating_point() and torch.cuda.is_available():
            on_gpu = torch.empty_like(tensor.data, device="cuda")
            initialize_single_dummy_weight(on_gpu)
            tensor.data.copy_(on_gpu)
        else:
            initialize_single_dummy_weight(tensor)
