"""Predicted beside measured bytes of a placed model on a GPU host, from a log, a proof and a driver that are made up."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from spillway.engine.dummymodel import write_shape
from spillway.measure import memory as measured
from spillway.measure.arms import Way
from spillway.placement import choose
from spillway.placement.plan import identify_model, moe_layers
from spillway.spec.arm import Arm
from spillway.spec.host import Host, Model
from spillway.spec.read import read
from tests.placed_engine import sound_proof

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20


@pytest.fixture
def way(tmp_path: Path) -> Way:
    """Qwen3-30B-A3B's shape with 38 of 128 experts of each layer on the host."""
    model = read(Model, ROOT / "experiments/models/qwen3-30b-a3b.yaml")
    config = model.source.model_dump()["config"]
    write_shape(tmp_path / "model", config)
    identity, layers = identify_model(config), moe_layers(config)
    plan = choose.given(identity, {name: list(range(38)) for name in layers})
    return Way("placed", Arm(), "qwen3-30b-a3b", model, tmp_path / "model", plan)


def rows(way: Way, proofs: list, weights_bytes: int, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], tuple]:
    monkeypatch.setattr(measured, "process_memory", lambda pid: SimpleNamespace(pss_bytes=5))
    monkeypatch.setattr(measured, "gpu_memory_bytes", lambda: [7 * MIB])
    run = SimpleNamespace(id="r", asked=SimpleNamespace(host=read(Host, ROOT / "experiments/hosts/h200.yaml")))
    server = SimpleNamespace(pid=1, weights_bytes=weights_bytes, kv_cache_tokens=1000)
    found = measured.memory(run, way, 0, server, proofs)
    return {(row["place"], row["component"]): (row["predicted_bytes"], row["measured_bytes"]) for row in found}


def test_what_the_plan_moves_leaves_the_gpu_and_arrives_on_the_host(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    assert way.plan is not None
    proof = sound_proof(way.plan)
    whole = rows(dataclasses.replace(way, plan=None), [], 57 << 30, monkeypatch)
    placed = rows(way, [proof], 1000, monkeypatch)
    all_weights, _ = whole["gpu 0", "all weights"]
    on_host, proved_on_host = placed["host", "placed experts"]
    # 48 layers x 38 experts x 9 MiB; down is 3 MiB an expert, so half a page may be lost in each layer.
    assert proved_on_host == on_host and 0 <= on_host - 48 * 38 * 9 * MIB <= 48 * 2 * MIB
    left, found = placed["gpu 0", "all weights"]
    assert left == pytest.approx(all_weights - 48 * 38 * 9 * MIB, abs=48 * 4 * MIB)
    assert found == 1000 + proof.gpu_bytes  # the engine's log does not see the plan's pages
    assert whole["gpu 0", "all weights"][1] == 57 << 30
    assert ("host", "placed experts") not in whole
    assert placed["gpu 0", "whole GPU"] == (None, 7 * MIB)
    assert placed["gpu 0", "KV cache"] == (1000 * 48 * 2 * 4 * 128 * 2, None)
