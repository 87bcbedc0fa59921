"""What a plan does not go together with, each with its reason."""

import os
from typing import Any

SUPPORTED_BACKEND = "TRITON"


class Refused(RuntimeError):
    """This server cannot be started with a plan."""


def refusals(config: Any, is_cuda: bool) -> list[str]:
    """Every setting of a vLLM configuration (its VllmConfig) that rules a plan out, one reason each."""
    found = []
    if not is_cuda:
        found.append("placement needs a CUDA GPU: it maps host memory into the GPU's address space")
    parallel, model, offload = config.parallel_config, config.model_config, config.offload_config
    if parallel.enable_expert_parallel:
        found.append("--enable-expert-parallel gives each rank other experts; a plan is one set for all ranks")
    if parallel.enable_eplb:
        found.append("--enable-eplb moves and copies experts while serving, which would undo the plan")
    if parallel.pipeline_parallel_size > 1:
        found.append("--pipeline-parallel-size above 1: a rank has only some of the plan's layers; not supported")
    if parallel.data_parallel_size > 1:
        found.append("--data-parallel-size above 1: experts are shared between replicas; not supported")
    if parallel.use_ubatching:
        found.append("--enable-dbo or --ubatch-size runs two steps at once through one staging buffer")
    if config.lora_config is not None:
        found.append("--enable-lora wraps the experts and reads their weights by other names")
    if getattr(config, "weight_transfer_config", None) is not None:
        found.append("weight transfer replaces the experts' tensors while serving, which would undo the plan")
    if model.enable_sleep_mode:
        found.append("--enable-sleep-mode frees and restores GPU memory that it does not know is a plan's")
    if offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0:
        found.append("--cpu-offload-gb and --offload-* move weights too; the bytes on the host would be nobody's")
    if os.environ.get("VLLM_ENABLE_STARTUP_PLAN", "0") not in ("", "0"):
        found.append("VLLM_ENABLE_STARTUP_PLAN sizes the KV cache as an earlier start did, which may have had another plan")
    return found


def expert_backend(method: Any) -> str:
    """Name of the kernel backend of a quantisation method that `refuse_method` lets pass."""
    backend = method.unquantized_backend if hasattr(method, "unquantized_backend") else method.fp8_backend
    return str(backend.value)


def refuse_method(method: Any) -> str | None:
    """Why the experts' quantisation method or kernel backend cannot be placed, or None if it can."""
    kind = type(method).__name__
    if kind not in ("UnquantizedFusedMoEMethod", "Fp8MoEMethod"):
        return f"experts of {kind} were never tried with a plan; placement knows bf16 and block fp8"
    if kind == "Fp8MoEMethod" and not method.block_quant:
        return "fp8 experts without block scales are requantised after loading; placement knows block fp8"
    if expert_backend(method) != SUPPORTED_BACKEND:
        return f"expert backend {expert_backend(method)} was never tried with a plan; use --moe-backend triton"
    return None
