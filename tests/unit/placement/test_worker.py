"""What the harness may ask of a running server's workers."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from spillway.placement.refusals import refusals
from spillway.placement.routing import ROUTING_VARIABLE, STRATEGY, STRATEGY_VARIABLE, routing_in_force
from spillway.placement.worker import PlacementWorker
from tests.unit.placement.test_settings import config


@pytest.fixture
def strategies(monkeypatch):
    """vLLM's synthetic routings by name."""
    path = "vllm.model_executor.layers.fused_moe.router.routing_simulator_router"
    names = path.split(".")
    for end in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(".".join(names[:end])))
    found: dict[str, SimpleNamespace] = {}
    sys.modules[path].RoutingSimulator = SimpleNamespace(_routing_strategies=found)
    return found


def test_another_cold_share_is_in_the_label_from_then_on(strategies, monkeypatch):
    shares: list[float] = []
    strategies[STRATEGY] = SimpleNamespace(set_share=shares.append)
    monkeypatch.setenv(STRATEGY_VARIABLE, STRATEGY)
    monkeypatch.setenv(ROUTING_VARIABLE, "unpopular=38,share=0.05,seed=3")
    assert PlacementWorker().spillway_set_cold_share("0.2") == {"cold_share": 0.2}
    assert shares == [0.2] and routing_in_force() == "synthetic: 38 experts (seed 3) get 0.2 of picks"
    assert os.environ[ROUTING_VARIABLE] == "unpopular=38,share=0.2,seed=3"


def test_without_synthetic_routing_there_is_no_share_to_set(strategies):
    with pytest.raises(RuntimeError, match="no synthetic routing is in force"):
        PlacementWorker().spillway_set_cold_share("0.2")


@pytest.mark.parametrize(("value", "count"), [("1", 1), ("0", 0), ("", 0)])
def test_a_size_of_the_cache_kept_from_an_earlier_start_is_refused(monkeypatch, value, count):
    monkeypatch.setenv("VLLM_ENABLE_STARTUP_PLAN", value)
    found = refusals(config(), is_cuda=True)
    assert len(found) == count and all("VLLM_ENABLE_STARTUP_PLAN" in reason for reason in found)
