"""Runs under the engine's Python: has vLLM construct a model's parameters without memory behind them, and writes bytes.

    construct.py FOLDER...        each holds config.json and gets record.json

For models whose kernels this CPU lacks (block FP8 wants AMX, DeepSeek-V4.1 a CUDA device): the choice of a kernel and
the CUDA streams are stood in for; what parameters there are, and their shapes and types, is vLLM's own code.
"""

import json
import os
import sys
import tempfile
from unittest import mock

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization import fp8
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.utils.torch_utils import set_default_torch_dtype

HOPPER = DeviceCapability(9, 0)


def construct(folder: str) -> dict[str, int]:
    """Parameter -> bytes of the model in `folder`."""
    config = EngineArgs(
        model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, max_num_seqs=1
    ).create_engine_config()
    with (
        mock.patch.object(fp8, "init_fp8_linear_kernel", mock.MagicMock()),
        mock.patch.object(torch.cuda, "Stream", mock.MagicMock()),
        mock.patch.object(torch.cuda, "Event", mock.MagicMock()),
        mock.patch.object(type(current_platform), "get_device_capability", classmethod(lambda *_, **__: HOPPER)),
        tempfile.TemporaryDirectory() as rendezvous,
        set_current_vllm_config(config),
    ):
        init_distributed_environment(1, 0, f"file://{rendezvous}/store", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
            model = initialize_model(config)
        return {name: value.numel() * value.element_size() for name, value in model.named_parameters()}


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        found = construct(folder)
        with open(f"{folder}/record.json", "w", encoding="utf-8") as file:
            json.dump(found, file)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads would otherwise wait for other ranks
