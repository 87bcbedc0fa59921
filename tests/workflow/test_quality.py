"""e8_quality with a fake server: tables of every kind, and a run whose server died asks only what has no reply yet."""

import json
from pathlib import Path

import pytest

from spillway.record import manifest, parquet
from tests.conftest import Project

pytestmark = pytest.mark.workflow

FAST = ("--tokens-per-second", "2000", "--prefill-tokens-per-second", "1000000")
MEASURE = ("python", "-m", "spillway.measure", "e8_quality", "--host", "cpu")
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
    tables = {file.split(".")[-2]: parquet.read(manifest.verify(data, file, listed)) for file in listed if "/e8_" in file}
    assert set(tables) == {
        "boots", "quality_systems", "quality_answers", "quality_tasks", "quality_paired", "quality_agreement", "quality_texts",
        "quality_tokens", "quality_published",
    }  # fmt: skip
    assert len(tables["quality_answers"]) == 3 * QUESTIONS
    assert tables["quality_agreement"].identical.all(), "the fake server's numbers depend on the text alone"
    assert set(tables["quality_systems"].server) == {"launched"}
    provenance = parquet.provenance(Path(data / "cpu/e8_quality.quality_paired.parquet"))
    assert provenance["resumed"], "the interruption stands in the provenance"
