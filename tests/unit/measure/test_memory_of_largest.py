"""The rows of e1_memory for the 671B shape, predicted and measured: on four GPUs with its plan, on eight without."""

import csv
import json
from types import SimpleNamespace

import pytest

from spillway.engine.dummymodel import write_shape
from spillway.fit.budget import GIB
from spillway.fit.predicted import FILE
from spillway.measure import memory as measured
from spillway.measure.arms import Way, ways
from spillway.measure.run import Run
from spillway.spec.experiment import OnHost, Resolved, resolve
from tests.conftest import ROOT
from tests.placed_engine import sound_proof

CACHE_TOKENS = 300_000
TOKEN_BYTES = 61 * (512 + 64) * 2  # the latent and the rotary part of 61 layers in bfloat16, whole on each GPU


def asked_on(host: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Way]:
    """A run of e1_memory and the one way in which it serves there, its plan built as a run builds it."""
    asked = resolve(ROOT, "e1_memory", host)
    assert isinstance(asked, Resolved) and isinstance(asked.on, OnHost)
    monkeypatch.setattr("spillway.measure.arms.model_folder", lambda name, model, root: tmp_path / "model")
    write_shape(tmp_path / "model", asked.served_model.source.model_dump()["config"])
    run = SimpleNamespace(id="r", asked=asked, root=ROOT)
    (way,) = ways(run, asked.on)
    return run, way


def rows(run, way, proofs, gpus: int, weights_bytes: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, tuple]]:
    monkeypatch.setattr(measured, "process_memory", lambda pid: SimpleNamespace(pss_bytes=5))
    monkeypatch.setattr(measured, "gpu_memory_bytes", lambda: [(90 + gpu) * GIB for gpu in range(gpus)])
    server = SimpleNamespace(pid=1, weights_bytes=weights_bytes, kv_cache_tokens=CACHE_TOKENS)
    found: dict[str, dict[str, tuple]] = {}
    for row in measured.memory(run, way, 0, server, proofs):
        found.setdefault(row["place"], {})[row["component"]] = (row["predicted_bytes"], row["measured_bytes"])
    return found


def test_four_gpus_with_the_plan(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, way = asked_on("h200x4", tmp_path, monkeypatch)
    proofs = [sound_proof(way.plan, rank, 4) for rank in range(4)]
    found = rows(run, way, proofs, 4, 30 * GIB, monkeypatch)
    assert list(found) == ["gpu 0", "gpu 1", "gpu 2", "gpu 3", "host"]
    with (ROOT / "data" / FILE).open(newline="") as file:  # the same plan, in the arm of e9_all_in_vram
        (expected,) = (int(row["weights_bytes"]) for row in csv.DictReader(file) if row["placement"] == "arm placed, 5 % cold")
    for gpu in range(4):
        predicted, seen = found[f"gpu {gpu}"]["all weights"]
        assert predicted == expected
        assert seen == 30 * GIB + proofs[gpu].gpu_bytes
        assert found[f"gpu {gpu}"]["KV cache"] == (CACHE_TOKENS * TOKEN_BYTES, None)
        assert found[f"gpu {gpu}"]["whole GPU"] == (None, (90 + gpu) * GIB)
    predicted, proved = found["host"]["placed experts"]
    assert predicted == proved  # pages and all: 58 layers of 100 experts in four parts of 10.5 MiB
    assert proved >= 58 * 100 * 42 * (1 << 20)


def test_eight_gpus_hold_it_whole(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, way = asked_on("h200x8", tmp_path, monkeypatch)
    assert way.plan is None
    found = rows(run, way, [], 8, 79 * GIB, monkeypatch)
    assert [*found] == [*(f"gpu {gpu}" for gpu in range(8)), "host"]
    predicted, seen = found["gpu 7"]["all weights"]
    assert 79 < predicted / GIB < 80 and seen == 79 * GIB
    assert found["host"] == {"whole process": (None, 5)}


def test_without_a_plan_four_gpus_are_predicted_to_lack_room_for_the_weights(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, way = asked_on("h200x4", tmp_path, monkeypatch)
    ((_, arguments),) = run.asked.on.attempts.items()
    assert json.loads((way.model_folder / "config.json").read_text())["n_routed_experts"] == 256
    assert measured.predicted_stage(run.asked.host, arguments, way.model, way.model_folder) == "weights"
