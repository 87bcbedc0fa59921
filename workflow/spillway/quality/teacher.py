"""Put fixed texts before a vLLM server and read the log-probability of every token, then let it write on.

vLLM's completions give `prompt_logprobs`; a server that does not cannot be read this way, and the answer says so.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from spillway.quality.agreement import Position, Reading
from spillway.quality.ask import Endpoint, client_of
from spillway.quality.errors import QualityError


async def read_texts(endpoint: Endpoint, texts: Mapping[str, str], *, top: int, greedy_tokens: int) -> dict[str, Reading]:
    """Name -> reading of each text, `endpoint.at_once` texts at a time; raises QualityError if a server gives none."""
    slots = asyncio.Semaphore(endpoint.at_once)
    async with client_of(endpoint) as client:

        async def one(text: str) -> Reading:
            async with slots:
                return await _read(client, endpoint, text, top, greedy_tokens)

        readings = await asyncio.gather(*(one(text) for text in texts.values()))
    return dict(zip(texts, readings, strict=True))


async def _read(client: httpx.AsyncClient, endpoint: Endpoint, text: str, top: int, greedy_tokens: int) -> Reading:
    request = {
        "model": endpoint.model,
        "prompt": text,
        "max_tokens": greedy_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "prompt_logprobs": top,
        "return_token_ids": True,
    }
    try:
        answer = await client.post(f"{endpoint.root}/completions", json=request)
        answer.raise_for_status()
        choice = answer.json()["choices"][0]
        return Reading(positions(choice["prompt_token_ids"], choice["prompt_logprobs"]), choice["token_ids"])
    except httpx.HTTPStatusError as error:
        raise QualityError(
            f"{endpoint.system}: HTTP {error.response.status_code} to a request for prompt_logprobs: "
            f"{error.response.text[:300]}"
        ) from None
    except httpx.HTTPError as error:
        raise QualityError(f"{endpoint.system}: {endpoint.url} does not answer: {type(error).__name__}: {error}") from None
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError) as error:
        said = f"{type(error).__name__}: {str(error)[:200]}"
        raise QualityError(
            f"{endpoint.system}: found no prompt_logprobs and token ids in the answer ({said}); "
            "expected a vLLM server, whose completions have them"
        ) from None


def positions(tokens: list[int], logprobs: list[dict[str, dict[str, Any]] | None]) -> list[Position]:
    """The positions of a text from vLLM's `prompt_logprobs`: one object for each token but the first, by token id.

    Each names the `top` most likely tokens and the one that stands there, with rank 1 for the most likely. Raises KeyError
    if the token itself is not among them, ValueError if there are more or fewer positions than tokens.
    """
    found = []
    for token, at in list(zip(tokens, logprobs, strict=True))[1:]:
        if not isinstance(at, dict):
            raise ValueError("no log-probabilities behind the first token")
        top = {int(name): float(entry["logprob"]) for name, entry in at.items()}
        [first, *_] = [int(name) for name, entry in at.items() if entry["rank"] == 1]
        found.append(Position(token, top[token], top, first))
    return found
