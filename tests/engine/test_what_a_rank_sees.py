"""What one rank is told by vLLM's configuration and by the driver, on their stand-ins."""

import pytest

from tests.engine.programs import ROOT, run_in_engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
START = (
    f"STAND_IN = {str(ROOT / 'tests/engine/stand_in')!r}"
    + """
import sys, types
sys.path.insert(0, STAND_IN)
import install, torch
config, vllm_config = install.settings(2)
install.install(config, vllm_config)
"""
)
SHARED = (
    START
    + """
from spillway.placement.placement import embedding_is_shared

model = vllm_config.model_config
assert not embedding_is_shared(model)
model.word_embeddings_untied_by_checkpoint = False
assert not embedding_is_shared(model)
# vLLM 0.32 with a checkpoint that holds both, which it may tie again after loading.
model.word_embeddings_untied_by_checkpoint = True
assert embedding_is_shared(model)
del model.word_embeddings_untied_by_checkpoint
model.hf_text_config.tie_word_embeddings = True
assert embedding_is_shared(model)
"""
)
FOUND = (
    START
    + """
from spillway.placement.layout import plan_layout
from spillway.placement.pages import Pages, PlacedTensor

tensor = torch.zeros((8, 512, 512), dtype=torch.bfloat16)
layout = plan_layout(8, 512 * 512 * 2, (1, 2, 6))
placed = PlacedTensor(Pages(0), layout, tensor, None)
assert placed.found(placed.tensor) == (placed.bytes_found(placed.tensor), (1, 2, 6))
# A page of another memory behind one expert, which no sample of three would have shown.
offset = next(m.offset_bytes for m in layout.mappings if m.expert == 4)
memory_at, place = placed._pages.memory_at, placed.address + offset
placed._pages.memory_at = lambda address: "host" if address == place else memory_at(address)
assert placed.found(placed.tensor)[1] == (1, 2, 4, 6)
"""
)


def test_an_embedding_that_vllm_may_tie_again_is_shared() -> None:
    run_in_engine(SHARED, 100)


def test_the_driver_says_which_experts_are_on_the_host() -> None:
    run_in_engine(FOUND, 100)
