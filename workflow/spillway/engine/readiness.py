"""Prove that a server serves: it is healthy, has answered one long prefill, and has decoded at full batch.

A server can be healthy and yet fail or hang at its first long prompt or first full batch (memory is claimed late,
kernels are compiled on first use). Those firsts belong before the measurement, not into it.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable

import httpx

HEALTH_POLL_S = 0.1
HEALTH_TIMEOUT_S = 5.0
DECODE_PROMPT_TOKENS = 32
DECODE_TOKENS = 32


class Unanswered(Exception):
    """A request of the proof failed; the message says how."""


def await_health(base_url: str, check_alive: Callable[[], None], deadline: float) -> None:
    """Ask /health until it answers 200; raises Unanswered after `deadline`, a reading of time.monotonic.

    `check_alive` is called before every try, to raise if the server has died.
    """
    found = "it was never asked"
    with httpx.Client(base_url=base_url, timeout=HEALTH_TIMEOUT_S, trust_env=False) as client:
        while time.monotonic() < deadline:
            check_alive()
            try:
                status = client.get("/health").status_code
            except httpx.ConnectError:
                found = "nothing listens"
            except httpx.TimeoutException:
                found = f"/health took the connection and did not answer within {HEALTH_TIMEOUT_S:g} s: it hangs"
            except httpx.TransportError as error:
                found = f"/health failed with {error!r}"
            else:
                if status == 200:
                    return
                found = f"/health answered {status}"
            time.sleep(HEALTH_POLL_S)
    raise Unanswered(f"when the time to get ready was over, {found}")


def engine_version(base_url: str) -> str | None:
    """What /version says, None if the server has no such page, or says something else there."""
    answer = httpx.get(f"{base_url}/version", timeout=HEALTH_TIMEOUT_S, trust_env=False)
    try:
        return str(answer.json()["version"])[:100] if answer.status_code == 200 else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def prove_prefill(base_url: str, model: str, vocabulary: range, tokens: int, salt: str, silence_s: float) -> None:
    """Have a prompt of `tokens` tokens answered with one token; raises Unanswered."""
    asyncio.run(_complete_all(base_url, model, [_prompt("prefill", 0, vocabulary, tokens)], 1, salt, silence_s))


def prove_decode(base_url: str, model: str, vocabulary: range, streams: int, salt: str, silence_s: float) -> None:
    """Have `streams` prompts answered at the same time with 32 tokens each; raises Unanswered."""
    prompts = [_prompt("decode", index, vocabulary, DECODE_PROMPT_TOKENS) for index in range(streams)]
    asyncio.run(_complete_all(base_url, model, prompts, DECODE_TOKENS, salt, silence_s))


def _prompt(stage: str, index: int, vocabulary: range, tokens: int) -> list[int]:
    return random.Random(f"readiness {stage} {index}").choices(vocabulary, k=tokens)


async def _complete_all(base_url: str, model: str, prompts: list[list[int]], tokens: int, salt: str, silence_s: float) -> None:
    timeout = httpx.Timeout(silence_s, pool=None)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=base_url, timeout=timeout, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(_complete(client, model, prompt, tokens, salt) for prompt in prompts))


async def _complete(client: httpx.AsyncClient, model: str, prompt: list[int], tokens: int, salt: str) -> None:
    request = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        # The salt is part of the prefix cache's key (vLLM), so no measured prompt can be answered from these.
        "cache_salt": salt,
    }
    try:
        async with client.stream("POST", "/v1/completions", json=request) as response:
            body = await response.aread()
    except httpx.TimeoutException as error:
        raise Unanswered(f"no byte for {client.timeout.read:g} s: it hangs") from error
    except httpx.TransportError as error:
        raise Unanswered(f"the connection broke: {error!r}") from error
    if response.status_code != 200:
        raise Unanswered(f"it answered {response.status_code}: {body[:500].decode(errors='replace')}")
    _check(body, tokens)


def _check(body: bytes, tokens: int) -> None:
    """Raise Unanswered unless the event stream is whole, free of errors and counts `tokens` tokens."""
    usage = None
    lines = [line for line in body.decode(errors="replace").split("\n") if line.startswith("data:")]
    for line in lines:
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            continue
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise Unanswered(f"it answered with something else than JSON objects in the stream: {data[:500]!r}")
        if "error" in event:
            raise Unanswered(f"it answered with an error in the stream: {data[:500]!r}")
        usage = event.get("usage") or usage
    if not lines or lines[-1].removeprefix("data:").strip() != "[DONE]":
        raise Unanswered(f"the stream ended without [DONE], after {len(lines)} events")
    if not isinstance(usage, dict) or usage.get("completion_tokens") != tokens:
        raise Unanswered(f"asked for {tokens} tokens, usage at the end of the stream says {str(usage)[:500]}")
