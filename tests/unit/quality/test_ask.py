"""Asking: every question once, in mixed order, within limits; what fails is retried and counted; the key is written nowhere."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from golden_server import GoldenServer, Settings

from spillway.quality import ask
from spillway.quality.ask import Endpoint, Question
from spillway.quality.errors import QualityError
from spillway.quality.items import own_items, texts
from spillway.quality.replies import Journal
from spillway.quality.teacher import read_texts

KEY = 'sk-"secret"-4711'
QUESTIONS = [Question(item, 4) for item in own_items("gsm8k")[:6]]
FAST = Settings(tokens_per_second=5000)


def script(status: int, body: Any, **headers: str) -> dict[str, Any]:
    """One answer of the golden server; a body that is no text is written as JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    return {
        "status": status,
        "length": True,
        "headers": {"content-type": "application/json"} | headers,
        "steps": [{"text": text}],
    }


def asked(
    folder: Path, scripts: list[dict[str, Any]], *, questions: list[Question] = QUESTIONS, **endpoint: Any
) -> tuple[Journal, GoldenServer]:
    """All questions to one golden server."""

    async def main() -> tuple[Journal, GoldenServer]:
        async with GoldenServer(FAST, scripts) as server:
            with Journal(folder, resume=True, secrets=[KEY]) as journal:
                await ask.ask([Endpoint("a", server.url, "golden", **endpoint)], questions, journal, seed=1, backoff_s=0.001)
            return journal, server

    return asyncio.run(main())


def test_two_endpoints_get_the_same_questions_in_one_mixed_order(tmp_path: Path) -> None:
    async def main() -> list[tuple[str, int]]:
        async with GoldenServer(FAST) as one, GoldenServer(FAST) as other:
            with Journal(tmp_path) as journal:
                pair = [Endpoint("a", one.url, "golden"), Endpoint("b", other.url + "/v1/", "golden")]
                await ask.ask(pair, QUESTIONS, journal, seed=1)
            for server in (one, other):
                assert Counter(body["messages"][0]["content"] for body in server.bodies) == Counter(
                    question.item.prompt for question in QUESTIONS
                )
                assert all(body["temperature"] == 0 and body["max_tokens"] == 4 for body in server.bodies)
                assert not any("stop" in body for body in server.bodies)
            return sorted((reply.order, reply.system) for reply in journal.replies.values())

    order = asyncio.run(main())
    assert [place for place, _ in order] == list(range(12))
    systems = "".join(system for _, system in order)
    assert systems not in ("a" * 6 + "b" * 6, "b" * 6 + "a" * 6, "ab" * 6, "ba" * 6)


def test_options_are_part_of_every_request_and_of_what_is_asked_for(tmp_path: Path) -> None:
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    journal, server = asked(tmp_path, [], options=thinking)
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in server.bodies)
    assert all(reply.request | thinking == reply.request for reply in journal.replies.values())
    with pytest.raises(QualityError, match="asked for with another model"):
        asked(tmp_path, [], options={})


def test_no_more_requests_at_once_than_allowed(tmp_path: Path) -> None:
    _, server = asked(tmp_path, [], at_once=2)
    assert max(record.open_requests for record in server.records) <= 2


def test_passing_failures_are_retried_and_counted(tmp_path: Path) -> None:
    busy = [script(429, "slow down", **{"retry-after": "0"}), script(503, "loading")]
    journal, server = asked(tmp_path, [*busy, script(200, {"choices": []})], questions=QUESTIONS[:1])
    [reply] = journal.replies.values()
    assert reply.retries == 3 and reply.response is not None
    assert reply.failures[0] == "HTTP 429: slow down"
    assert reply.failures[2].startswith("a reply without choices")
    assert len(server.records) == 4


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"choices": []}, "a reply without choices"),
        ({"object": "chat.completion"}, "a reply without choices"),
        ("[1]", "a reply without choices"),
        ("<html>", "not JSON"),
    ],
)
def test_a_reply_without_an_answer_is_a_failure_in_the_end(tmp_path: Path, body: Any, said: str) -> None:
    journal, server = asked(tmp_path, [script(200, body)] * ask.ATTEMPTS, questions=QUESTIONS[:1])
    [reply] = journal.replies.values()
    assert reply.response is None
    assert [failure.split(":")[0] for failure in reply.failures] == [said] * ask.ATTEMPTS
    assert len(server.records) == ask.ATTEMPTS and reply.retries == ask.ATTEMPTS - 1


def test_a_question_that_the_server_refuses_is_not_repeated(tmp_path: Path) -> None:
    journal, server = asked(tmp_path, [script(400, "too long")], questions=QUESTIONS[:1])
    [reply] = journal.replies.values()
    assert reply.failures == ["HTTP 400: too long"] and len(server.records) == 1


def test_every_attempt_waits_for_the_rate_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, float]] = []
    passed: list[int] = []

    class Throttler:
        def __init__(self, **limits: float) -> None:
            made.append(limits)

        async def __aenter__(self) -> None:
            passed.append(1)

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(ask, "Throttler", Throttler)
    _, server = asked(tmp_path, [script(503, "busy")], requests_per_s=20, at_once=6)
    assert made == [{"rate_limit": 1, "period": 0.05}], "one at a time: no bursts"
    assert len(passed) == len(server.records) == len(QUESTIONS) + 1


def test_the_key_is_sent_and_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_TEST_KEY", KEY)
    echo = {"choices": [{"message": {"content": f"You said {KEY}"}}]}
    scripts = [script(500, f"bad key {KEY}"), script(200, echo, **{"x-request-id": KEY})]
    journal, _ = asked(tmp_path, scripts, questions=QUESTIONS[:1], key_variable="SPILLWAY_TEST_KEY")
    [reply] = journal.replies.values()
    assert reply.response == {"choices": [{"message": {"content": "You said [key]"}}]}
    for path in tmp_path.rglob("*"):
        written = path.read_text()
        assert "4711" not in written, path
        assert "[key]" in written


def test_a_key_that_is_not_set_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPILLWAY_TEST_KEY", raising=False)
    endpoint = Endpoint("a", "http://127.0.0.1:1", "m", key_variable="SPILLWAY_TEST_KEY")
    with pytest.raises(QualityError, match="a: environment variable SPILLWAY_TEST_KEY is not set"):
        asyncio.run(ask.check(endpoint))


def test_a_wrong_key_ends_the_run_and_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_TEST_KEY", KEY)
    with pytest.raises(QualityError, match=r"refuses the key in SPILLWAY_TEST_KEY \(HTTP 401\)") as raised:
        asked(tmp_path, [script(401, f"no such key: {KEY}")] * 20, key_variable="SPILLWAY_TEST_KEY")
    assert "4711" not in str(raised.value)


def test_an_endpoint_that_is_down_is_named() -> None:
    with pytest.raises(QualityError, match=r"b: http://127\.0\.0\.1:9 does not answer: ConnectError"):
        asyncio.run(ask.check(Endpoint("b", "http://127.0.0.1:9", "m")))


def test_an_unknown_model_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    async def main(model: str) -> None:
        async with GoldenServer(FAST) as server:
            endpoint = Endpoint("a", server.url, model)
            with pytest.raises(QualityError, match=r"found the model 'other'; expected one that .* has: golden"):
                await ask.check(endpoint)
            with Journal(tmp_path) as journal, pytest.raises(QualityError, match="does not know the model 'other'"):
                await ask.ask([endpoint], QUESTIONS, journal, seed=1)

    asyncio.run(main("other"))


def test_a_server_that_died_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        with Journal(tmp_path) as journal, pytest.raises(QualityError, match="a: the server exited with status 3"):
            await ask.ask(
                [Endpoint("a", "http://127.0.0.1:9", "m")],
                QUESTIONS,
                journal,
                seed=1,
                alive=lambda: "the server exited with status 3",
            )

    asyncio.run(main())


def test_texts_are_read_token_by_token() -> None:
    async def main() -> None:
        async with GoldenServer(FAST) as server:
            endpoint = Endpoint("a", server.url, "golden", at_once=3)
            found = await read_texts(endpoint, texts(), top=3, greedy_tokens=5)
        assert list(found) == list(texts())
        for name, reading in found.items():
            assert len(reading.positions) == len(texts()[name].split()) - 1
            assert list(reading.written) == [0, 1, 2, 3, 4]
            assert all(at.first == at.token and len(at.top) == 3 for at in reading.positions)

    asyncio.run(main())


def test_a_server_without_prompt_logprobs_is_told_from_vllm() -> None:
    async def main() -> None:
        async with GoldenServer(FAST, [script(200, {"choices": [{"text": "x"}]})]) as server:
            await read_texts(Endpoint("a", server.url, "golden"), {"one": "Some text."}, top=3, greedy_tokens=5)

    with pytest.raises(QualityError, match="a: found no prompt_logprobs"):
        asyncio.run(main())
