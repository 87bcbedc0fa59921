"""Real vLLM with SmolLM2-135M: answers through the chat template, texts read token by token, the same twice."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.engine.server import Launch, Server, serve
from spillway.quality import ask
from spillway.quality.agreement import Reading, comparison_row, text_row, token_rows
from spillway.quality.answers import answers
from spillway.quality.ask import Endpoint, Question
from spillway.quality.items import own_items, texts
from spillway.quality.replies import Journal
from spillway.quality.teacher import read_texts
from tests.conftest import ROOT

MODEL = ROOT / ".envs/smollm2/model"
PYTHON = ROOT / ".envs/engine-cpu/bin/python"

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not (MODEL / "model.safetensors").exists() or not PYTHON.exists():
        pytest.skip("no engine, or no model in .envs/smollm2: scripts/setup smollm2")
    command = [str(PYTHON), "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(MODEL)]
    command += ["--served-model-name", "smollm2", "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "1024"]
    command += ["--max-num-seqs", "4", "--kv-cache-memory-bytes", str(128 * 2**20)]
    launch = Launch(
        command=command,
        environment={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        model="smollm2",
        vocabulary=range(100, 10_000),
        full_batch=4,
        long_prefill_tokens=128,
    )
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPILLWAY_LOCK", str(folder / "lock"))
        with serve(launch, folder / "run", ready_timeout_s=300) as running:
            yield running


def read(server: Server, chosen: dict[str, str], at_once: int = 1) -> dict[str, Reading]:
    endpoint = Endpoint("a", server.base_url, "smollm2", at_once=at_once)
    return asyncio.run(read_texts(endpoint, chosen, top=20, greedy_tokens=8))


def test_texts_are_read_and_the_same_server_agrees_with_itself(server: Server) -> None:
    chosen = {name: texts()[name] for name in ("river", "arithmetic")}
    first, again = read(server, chosen), read(server, chosen)
    tokens, rows = [], []
    for name in chosen:
        assert len(first[name].written) == 8
        found = token_rows(name, first[name], again[name])
        tokens += found
        rows.append(text_row(name, first[name], again[name], found))
    row = comparison_row(tokens, rows)
    assert row["identical"], row
    assert 1 < row["a_nll_nats"] < 5, "a trained model finds prose far likelier than chance, which would be 10.8 nats"


def test_prose_is_likelier_than_its_words_in_another_order(server: Server) -> None:
    prose = texts()["river"]
    found = read(server, {"prose": prose, "sorted": " ".join(sorted(prose.split()))}, at_once=2)
    loss = {name: -sum(at.logprob for at in reading.positions) / len(reading.positions) for name, reading in found.items()}
    assert loss["sorted"] > loss["prose"] + 1


def test_questions_are_answered_through_the_chat_template(server: Server, tmp_path: Path) -> None:
    items = own_items("gsm8k")[:2] + own_items("humaneval")[:1]
    with Journal(tmp_path) as journal:
        endpoint = Endpoint("a", server.base_url, "smollm2", at_once=3)
        asyncio.run(ask.check(endpoint))
        asyncio.run(ask.ask([endpoint], [Question(item, 64) for item in items], journal, seed=1, alive=server.alive))
    found = answers(items, journal.replies, "a", "limits only")
    assert all(answer.text and "<|im_" not in answer.text for answer in found), "special tokens in the text: no chat template"
    assert all(answer.finish_reason in ("stop", "length") and answer.usage["completion_tokens"] <= 64 for answer in found)
    assert found[2].extracted is not None and "def double" in found[2].extracted
