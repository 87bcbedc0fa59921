"""Dummy weights are filled once, with the values that vLLM gives them; what differs on a GPU is for tests/gpu."""

import pytest

from tests.engine.programs import run_in_engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
PROGRAM = """
import sys, types
import torch
from vllm.model_executor.model_loader import dummy_loader
from vllm.model_executor.model_loader import weight_utils
from spillway.placement.dummy import fill_each_tensor_once, fill_own_tensors

inner = torch.nn.Linear(64, 32)
inner.register_buffer("kept", torch.zeros(8))
inner.register_buffer("derived", torch.zeros(8), persistent=False)
inner.register_buffer("ids", torch.arange(8))
model = torch.nn.Sequential(torch.nn.Sequential(inner, torch.nn.LayerNorm(32)))
filled, fill = [], weight_utils.initialize_single_dummy_weight
def counting(tensor, *rest):
    filled.append(tensor.data_ptr())
    fill(tensor, *rest)
weight_utils.initialize_single_dummy_weight = counting
for module in model.modules():
    fill_own_tensors(module, None)
due = torch.empty(32, 64)
fill(due)
assert torch.equal(inner.weight, due) and inner.kept.abs().max() > 0, "not vLLM's values"
assert not inner.derived.any() and torch.equal(inner.ids, torch.arange(8)), "filled what vLLM leaves alone"
assert len(filled) == len(set(filled)) == 6, filled

# As in vLLM before 0.32, whose loader names the function; later ones have none, and need none.
dummy_loader.initialize_dummy_weights = None
fill_each_tensor_once()
assert dummy_loader.initialize_dummy_weights is fill_own_tensors
del dummy_loader.initialize_dummy_weights
fill_each_tensor_once()
assert not hasattr(dummy_loader, "initialize_dummy_weights")
"""


def test_each_tensor_is_filled_once_with_the_values_of_vllm() -> None:
    run_in_engine(PROGRAM, 280)
