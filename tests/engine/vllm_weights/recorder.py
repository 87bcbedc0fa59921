"""Runs inside vLLM's worker: writes the bytes of every parameter after loading, before kernels repack the weights.

vLLM imports it as its worker extension, and the import is what installs it. The CPU worker prints no weight bytes and
replaces parameters by packed copies, so they are counted at the last moment at which all are there.
"""

import json
import os
from typing import Any

from vllm.model_executor.model_loader import base_loader

_process_weights = base_loader.process_weights_after_loading


def _record_then_process(model: Any, *arguments: Any, **options: Any) -> Any:
    found = {name: value.numel() * value.element_size() for name, value in model.named_parameters()}
    with open(os.environ["SPILLWAY_WEIGHTS_RECORD"], "w", encoding="utf-8") as file:
        json.dump(found, file)
    return _process_weights(model, *arguments, **options)


base_loader.process_weights_after_loading = _record_then_process


class Recorder:
    """Adds nothing to the worker."""
