"""Every scenario against the real client over real sockets: no class wrong, no token lost, no chunk counted twice."""

import asyncio
import time

import pytest
from golden_server import GoldenServer, Record
from scenarios import SCENARIOS, Scenario

from spillway.load.client import Client, Endpoint, Reply

RECEIVED_WITHIN_S = 0.15


async def ask(scenario: Scenario) -> tuple[Reply, Record, float]:
    async with GoldenServer(scripts=[scenario.script]) as server:
        endpoint = Endpoint(server.url, "golden", api="chat", **scenario.endpoint)
        async with Client(endpoint) as client:
            await client.warm()
            reply, begin_s = Reply(), time.monotonic()
            await client.send(b'"Hi"', 5, reply)
            return reply, server.records[0], time.monotonic() - begin_s


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario) -> None:
    reply, record, took_s = asyncio.run(ask(scenario))
    assert (reply.error, scenario.message in (reply.message or "")) == (scenario.error, True), reply.message
    assert reply.ok == (scenario.error is None)
    assert "".join(reply.content) == scenario.content
    assert "".join(reply.reasoning) == scenario.reasoning
    assert "".join(reply.tool_calls) == scenario.tool_calls
    assert reply.output_tokens == scenario.tokens
    counts = (scenario.source, scenario.first_chunk_tokens, scenario.last_chunk_tokens)
    assert reply.output_counts() == counts
    assert all(text is None or text.encode() for text in (reply.message, reply.finish_reason))  # a table can hold them
    if scenario.seconds is not None:
        assert took_s < scenario.seconds
    outputs = [at_s for at_s, tokens in record.writes if tokens is not None]
    if outputs and scenario.error is None:
        # Each stamp belongs to the very write that carried the output: never earlier, and later only by the way there.
        assert reply.first_output_s is not None and reply.last_output_s is not None
        if "cut" not in scenario.script:
            assert 0 <= reply.first_output_s - outputs[0] < RECEIVED_WITHIN_S
            assert 0 <= reply.last_output_s - outputs[-1] < RECEIVED_WITHIN_S


def test_reasoning_counts_as_output_but_not_as_answer() -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name.startswith("12 "))
    reply, record, _ = asyncio.run(ask(scenario))
    outputs = [at_s for at_s, tokens in record.writes if tokens is not None]
    assert reply.first_output_s is not None and reply.first_answer_s is not None
    assert 0 <= reply.first_answer_s - outputs[2] < RECEIVED_WITHIN_S
    assert reply.first_answer_s - reply.first_output_s > 0.25


def test_role_finish_and_usage_chunks_carry_no_output() -> None:
    reply, _, _ = asyncio.run(ask(SCENARIOS[0]))
    assert [chunk.kind for chunk in reply.chunks] == ["none", *["content"] * 5, "none", "none"]
    assert [chunk.tokens for chunk in reply.chunks] == [None, 1, 2, 3, 4, 5, 5, 5]
    assert (reply.prompt_tokens, reply.finish_reason, reply.http_status) == (7, "length", 200)


def test_no_server_is_a_connect_error() -> None:
    async def nobody_listens() -> Reply:
        async with GoldenServer() as server:
            url = server.url
        async with Client(Endpoint(url, "golden", api="chat")) as client:
            reply = Reply()
            await client.send(b'"Hi"', 5, reply)
            return reply

    reply = asyncio.run(nobody_listens())
    assert (reply.error, reply.ok) == ("connect", False)
    assert "ConnectError" in (reply.message or "")
