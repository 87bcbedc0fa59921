"""e8_quality with a fake server: tables of every kind, and a run whose server died asks only what has no reply yet."""

import json
from pathlib import Path

import pytest
import yaml

from spillway.record import manifest, parquet
from tests.conftest import Project

pytestmark = pytest.mark.workflow

FAST = ("--tokens-per-second", "2000", "--prefill-tokens-per-second", "1000000")
MEASURE = ("python", "-m", "spillway.measure", "e8_quality", "--host", "cpu")
MEASURE_THERE = (*MEASURE[:-1], "made-up")
QUESTIONS = 24


@pytest.fixture
def quality(project: Project) -> Project:
    """A copy that serves the tiny model, which needs no set-up; the fake server answers in its place."""
    project.edit("experiments/e8_quality.yaml", "model: smollm2-135m", "model: tiny-qwen3-moe")
    return project


def replies(project: Project) -> list[dict]:
    [path] = (project.root / "runs/cpu/e8_quality").glob("*/replies.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_whose_server_died_goes_on_without_asking_an_answered_question_again(quality: Project) -> None:
    quality.fake_engine(*FAST, "--die-after-requests", "20")  # after those that prove it ready
    died = quality.run(*MEASURE)
    assert died.returncode != 0 and "was ended by SIGKILL" in died.stderr, died.stderr
    before = [reply for reply in replies(quality) if reply["response"] is not None]
    assert 0 < len(before) < QUESTIONS

    quality.fake_engine(*FAST)
    done = quality.run(*MEASURE)
    assert done.returncode == 0, done.stderr
    assert "goes on with run" in done.stderr
    after = [reply for reply in replies(quality) if reply["response"] is not None]
    assert after[: len(before)] == before
    ids = [(reply["system"], reply["task"], reply["item"]) for reply in after]
    assert len(ids) == len(set(ids)) == 3 * QUESTIONS

    data = quality.root / "data"
    listed = manifest.read_manifest(data)
    tables = {
        file.split(".")[-2]: parquet.read(manifest.verify(data, file, listed)) for file in listed if file.startswith("cpu/e8_")
    }
    assert set(tables) == {
        "boots", "quality_systems", "quality_answers", "quality_tasks", "quality_paired", "quality_agreement", "quality_texts",
        "quality_tokens", "quality_published",
    }  # fmt: skip
    assert len(tables["quality_answers"]) == 3 * QUESTIONS
    assert tables["quality_agreement"].identical.all(), "the fake server's numbers depend on the text alone"
    assert set(tables["quality_systems"].server) == {"launched"}
    provenance = parquet.provenance(Path(data / "cpu/e8_quality.quality_paired.parquet"))
    assert provenance["resumed"], "the interruption stands in the provenance"


@pytest.fixture
def placed(project: Project) -> Project:
    """A copy with a GPU host that is made up, on which e8 compares placed with unplaced and asks no task."""
    project.fake_engine(*FAST, program="placed_engine.py")
    project.fake_gpu("NVIDIA H200")
    host = yaml.safe_load((project.root / "experiments/hosts/h200.yaml").read_text())
    engine = {
        "environment": "engine-cpu",
        "module": "vllm.entrypoints.made_up",
        "ready_timeout_s": 60.0,
        "arguments": {"max-num-seqs": 2},
    }
    plan = {"choose": "random", "host_share": 0.25, "seed": 3}
    on = {
        "model": "tiny-qwen3-moe",
        "seed": 8,
        "systems": {"all in VRAM": {}, "placed": {"plan": plan, "variables": {"SPILLWAY_TEST_PROOF": "sound"}}},
        "comparisons": {"placed against unplaced": {"a": "placed", "b": "all in VRAM"}},
        "agreement": {"top": 4, "greedy_tokens": 4},
    }
    path = project.root / "experiments/e8_quality.yaml"
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | {"hosts": content["hosts"] | {"made-up": on}}, sort_keys=False))
    (project.root / "experiments/hosts/made-up.yaml").write_text(yaml.safe_dump(host | {"engine": engine}))
    return project


def test_without_tasks_the_texts_alone_are_read_by_systems_that_proved_their_placement(placed: Project) -> None:
    done = placed.run(*MEASURE_THERE)
    assert done.returncode == 0, done.stderr
    files = (placed.root / "data/made-up").glob("e8_quality.*.parquet")
    tables = {file.name.split(".")[1]: parquet.read(file) for file in files}
    assert set(tables) == {"boots", "arms", "quality_agreement", "quality_texts", "quality_tokens", "quality_published"}
    [row] = tables["quality_agreement"].to_dict("records")
    assert (row["a"], row["b"], row["texts"], row["identical"]) == ("placed", "all in VRAM", 6, True)
    assert list(tables["quality_texts"].written_tokens) == [4] * 6
    arms = tables["arms"].set_index("arm")
    assert list(arms.index) == ["all in VRAM", "placed"] and set(arms.outcome) == {"served"}
    # A quarter of 16 experts in each of 4 layers, by the proof, rounded up to pages.
    assert arms.loc["placed", "host_experts"] == 16 and arms.loc["placed", "backend"] == "TRITON"
    assert arms.loc["placed", "host_bytes"] >= 16 * 2 * 3 * 128 * 256
    assert arms.loc["all in VRAM", ["host_experts", "host_bytes", "gpu_bytes"]].isna().all()
    [run] = (placed.root / "runs/made-up/e8_quality").iterdir()
    assert not (run / "replies.jsonl").read_text(), "nothing is asked"


@pytest.mark.parametrize(("proof", "said"), [("absent", "no proof of placement"), ("bent", "proves plan 000000000000")])
def test_texts_are_not_read_by_a_system_that_does_not_prove_its_placement(placed: Project, proof: str, said: str) -> None:
    placed.edit("experiments/e8_quality.yaml", "SPILLWAY_TEST_PROOF: sound", f"SPILLWAY_TEST_PROOF: {proof}")
    done = placed.run(*MEASURE_THERE)
    assert done.returncode != 0 and said in done.stderr, done.stderr
    [run] = (placed.root / "runs/made-up/e8_quality").iterdir()
    assert [path.stem for path in (run / "readings").iterdir()] == ["all in VRAM"]
    assert not list((placed.root / "data/made-up").iterdir())
