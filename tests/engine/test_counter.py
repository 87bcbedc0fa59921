"""Picks as vLLM's router gives them: rows that only pad a graph have experts in 0.25.1 and -1 in 0.32. No stale file stays."""

import pytest

from tests.engine.programs import ROOT, run_in_engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
START = (
    f"STAND_IN = {str(ROOT / 'tests/engine/stand_in')!r}"
    + """
import sys, tempfile
sys.path.insert(0, STAND_IN)
import install, torch
config, vllm_config = install.settings(2)
install.install(config, vllm_config)
from spillway.placement.counter import ExpertCounter
"""
)
PROGRAM = (
    START
    + """
counter = ExpertCounter(vllm_config)
layers = [counter.add(name, install.EXPERTS, install.TOP_K) for name in ("a", "b")]
assert counter.reads().tolist() == [[0] * 8] * 2
def step(rows, dtype=torch.int32):
    for count in layers:
        picks = torch.tensor(rows, dtype=torch.int32)
        count(picks.view(torch.uint32) if dtype == torch.uint32 else picks.to(dtype))
step([[0, 7], [2, 7]])
step([[0, 1], [-1, -1]])
step([[-1, -1], [-1, -1]])
step([[0, 1], [-1, -1]], torch.uint32)
step([[3, 4]] * 100 + [[-1, -1]] * 28, torch.int64)
assert counter.reads().tolist() == [[3, 2, 1, 0, 0, 0, 0, 1]] * 2, counter.reads()
assert counter.steps() == 4
decode, prefill, _ = counter._seen[:, :, :-1].tolist()
assert decode == [[3, 2, 1, 0, 0, 0, 0, 2]] * 2 and prefill == [[0, 0, 0, 100, 100, 0, 0, 0]] * 2
"""
)
STALE = (
    START
    + """
import os, time
from pathlib import Path
path = Path(tempfile.mkdtemp()) / "counts.json"
path.write_text("of the server before")
os.environ["SPILLWAY_COUNTS"] = str(path)
counter = ExpertCounter(vllm_config)
end = time.monotonic() + 5
while path.exists() and time.monotonic() < end:
    time.sleep(0.01)
assert not path.exists()
"""
)


def test_counts_of_an_earlier_server_do_not_stay() -> None:
    run_in_engine(STALE, 100)


def test_rows_without_experts_are_not_counted() -> None:
    run_in_engine(PROGRAM, 100)
