"""Ask one or several endpoints the same questions, in one shuffled order, and journal every reply.

The endpoints' questions are interleaved at random, so that neither gets the earlier hours or the busier ones. Each has its
own limits: requests at once and requests per second. What fails for a passing reason is tried again, and counted.
"""

import asyncio
import datetime
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from asyncio_throttle.throttler import Throttler

from spillway.quality.errors import QualityError
from spillway.quality.items import Item
from spillway.quality.replies import Journal, Reply
from spillway.spec.secret import check_address, secret_of, without_secrets

ATTEMPTS = 4
BACKOFF_S = 1.0
LONGEST_PAUSE_S = 60.0
PASSING_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
KEPT_HEADERS = ("date", "server", "x-request-id", "openai-version", "openai-model", "openai-processing-ms", "retry-after")
MESSAGE_CHARS = 300


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server. Its key is in an environment variable, of which only the name is ever kept."""

    system: str
    url: str
    """Empty for a server of ours that is not up: it has answered everything already, or will be launched."""
    model: str
    key_variable: str | None = None
    at_once: int = 1
    requests_per_s: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request, such as what switches a model's thinking off."""
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.url:
            return
        try:
            check_address(self.url)
        except ValueError as error:
            raise QualityError(f"{self.system}: {error}") from None

    @property
    def root(self) -> str:
        """The URL up to and with /v1."""
        url = self.url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    def key(self) -> str | None:
        """The key, read anew at each use; raises QualityError if its variable is not set."""
        if self.key_variable is None:
            return None
        try:
            return secret_of(self.key_variable)
        except ValueError as error:
            raise QualityError(f"{self.system}: {error}") from None


@dataclass(frozen=True)
class Question:
    """An item with the budget of its answer."""

    item: Item
    max_tokens: int

    def request(self, endpoint: Endpoint, seed: int) -> dict[str, Any]:
        """The body of the request: temperature 0, no stop strings, one answer."""
        return {
            **endpoint.options,
            "model": endpoint.model,
            "messages": [{"role": "user", "content": self.item.prompt}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "seed": seed,
        }


class _Refused(Exception):
    """An attempt failed; `passing`: another one may succeed, after `pause_s` if the server said so."""

    def __init__(self, message: str, passing: bool, pause_s: float | None = None) -> None:
        super().__init__(message)
        self.passing = passing
        self.pause_s = pause_s


def client_of(endpoint: Endpoint) -> httpx.AsyncClient:
    """A client that sends the endpoint's key and nothing of this machine's network settings; no redirect gets the key."""
    key = endpoint.key()
    return httpx.AsyncClient(
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(endpoint.timeout_s, connect=20.0),
        limits=httpx.Limits(max_connections=endpoint.at_once),
        trust_env=False,
    )


async def check(endpoint: Endpoint) -> None:
    """Raise QualityError if the endpoint is down, does not take the key, or does not know the model."""
    async with client_of(endpoint) as client:
        try:
            answer = await client.get(f"{endpoint.root}/models")
        except httpx.HTTPError as error:
            raise QualityError(f"{endpoint.system}: {endpoint.url} does not answer: {_describe(error)}") from None
    if answer.status_code in (401, 403):
        found = f"the key in {endpoint.key_variable}" if endpoint.key_variable else "a request without a key"
        raise QualityError(f"{endpoint.system}: {endpoint.url} refuses {found} (HTTP {answer.status_code})")
    try:
        known = [card["id"] for card in answer.raise_for_status().json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, RecursionError):
        return  # a server without a list of models; an unknown model then shows at the first question
    if endpoint.model not in known:
        raise QualityError(
            f"{endpoint.system}: found the model {endpoint.model!r}; expected one that {endpoint.url} has: "
            f"{', '.join(known[:20])}"
        )


async def ask(
    endpoints: Sequence[Endpoint],
    questions: Sequence[Question],
    journal: Journal,
    *,
    seed: int,
    alive: Callable[[], str | None] = lambda: None,
    progress: Callable[[int, int], None] = lambda done, planned: None,
    backoff_s: float = BACKOFF_S,
) -> None:
    """Ask every endpoint every question that the journal has no reply to.

    `alive` says why there is no use in going on, if so. Raises QualityError for a wrong key or model, when the journal's
    replies are to other requests, and when `alive` says why.
    """
    order = [(endpoint, question) for endpoint in endpoints for question in questions]
    random.Random(seed).shuffle(order)
    open_ = [
        (place, endpoint, question)
        for place, (endpoint, question) in enumerate(order)
        if not journal.answered(endpoint.system, question.item.task, question.item.name, question.request(endpoint, seed))
    ]
    lanes = {endpoint.system: _Lane(endpoint, backoff_s) for endpoint in endpoints}
    done = len(order) - len(open_)
    progress(done, len(order))

    async def one(place: int, endpoint: Endpoint, question: Question) -> None:
        nonlocal done
        reply = await lanes[endpoint.system].reply(place, question, seed, alive)
        journal.add(reply)
        done += 1
        progress(done, len(order))

    try:
        async with asyncio.TaskGroup() as group:
            for place, endpoint, question in open_:
                group.create_task(one(place, endpoint, question))
    except* QualityError as errors:
        raise errors.exceptions[0] from None
    finally:
        for lane in lanes.values():
            await lane.client.aclose()


class _Lane:
    """One endpoint's client and limits."""

    def __init__(self, endpoint: Endpoint, backoff_s: float) -> None:
        self.endpoint = endpoint
        self.client = client_of(endpoint)
        self.backoff_s = backoff_s
        self.slots = asyncio.Semaphore(endpoint.at_once)  # first come, first served: the shuffled order holds
        rate = endpoint.requests_per_s
        self.throttle = Throttler(rate_limit=1, period=1 / rate) if rate else None  # one at a time: no bursts

    async def reply(self, place: int, question: Question, seed: int, alive: Callable[[], str | None]) -> Reply:
        request = question.request(self.endpoint, seed)
        failures: list[str] = []
        async with self.slots:
            while True:
                if reason := alive():
                    raise QualityError(f"{self.endpoint.system}: {reason}")
                sent_at, begun = datetime.datetime.now(datetime.UTC), time.monotonic()
                response: dict[str, Any] | None = None
                headers: dict[str, str] = {}
                try:
                    response, headers = await self._attempt(request)
                except _Refused as refusal:
                    failures.append(str(refusal))
                    if refusal.passing and len(failures) < ATTEMPTS:
                        pause_s = refusal.pause_s if refusal.pause_s is not None else self.backoff_s * 2 ** (len(failures) - 1)
                        await asyncio.sleep(min(pause_s, LONGEST_PAUSE_S))
                        continue
                return Reply(
                    system=self.endpoint.system,
                    task=question.item.task,
                    item=question.item.name,
                    order=place,
                    request=request,
                    response=response,
                    headers=headers,
                    failures=failures,
                    sent_at=sent_at.isoformat(timespec="milliseconds"),
                    wall_s=time.monotonic() - begun,
                )

    async def _attempt(self, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        try:
            if self.throttle is None:
                answer = await self.client.post(f"{self.endpoint.root}/chat/completions", json=request)
            else:
                async with self.throttle:
                    answer = await self.client.post(f"{self.endpoint.root}/chat/completions", json=request)
        except httpx.HTTPError as error:
            raise _Refused(_describe(error), passing=True) from None
        if answer.status_code != 200:
            self._judge_status(answer)
        try:
            body = answer.json()
        except (ValueError, RecursionError):
            raise _Refused(f"not JSON: {answer.text[:MESSAGE_CHARS]}", passing=True) from None
        if not isinstance(body, dict) or not isinstance(body.get("choices"), list) or not body["choices"]:
            raise _Refused(f"a reply without choices: {answer.text[:MESSAGE_CHARS]}", passing=True)
        return body, {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}

    def _judge_status(self, answer: httpx.Response) -> None:
        """Raise what a status other than 200 means."""
        endpoint, status, said = self.endpoint, answer.status_code, answer.text[:MESSAGE_CHARS]
        if key := endpoint.key():
            said = without_secrets(said, [key])
        if status in (401, 403):
            found = f"the key in {endpoint.key_variable}" if endpoint.key_variable else "a request without a key"
            raise QualityError(f"{endpoint.system}: {endpoint.url} refuses {found} (HTTP {status}): {said}")
        if status == 404:
            raise QualityError(
                f"{endpoint.system}: {endpoint.url} does not know the model {endpoint.model!r} or the path: {said}"
            )
        pause = answer.headers.get("retry-after", "")
        raise _Refused(f"HTTP {status}: {said}", status in PASSING_STATUS, float(pause) if pause.isdigit() else None)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
