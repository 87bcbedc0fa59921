"""One request to an OpenAI-compatible server: send it, stamp what comes back, and say how it ended."""

import asyncio
import contextlib
import json
import math
import time
import urllib.parse
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Literal, NamedTuple

import httpcore
import httpx

from spillway.load.sse import Event, SseParser
from spillway.load.transport import StampedTransport
from spillway.spec.secret import HIDDEN, check_address, secret_of, without_secrets

ErrorClass = Literal[
    "connect",  # no connection
    "timeout",  # no output for longer than the endpoint allows
    "transport",  # the connection broke, or the server broke HTTP
    "truncated",  # the stream ended in good order, but without finish_reason or [DONE]
    "in_band_error",  # an error object inside the stream, or a finish_reason that says that the server gave up
    "empty",  # the stream ended well and carried no output
    "not_sse",  # status 200 and something that is not a stream of JSON events
    "http_status",  # a status other than 200
    "not_sent",  # planned, but the server died or the time was up
]
ERROR_CLASSES: tuple[ErrorClass, ...] = ErrorClass.__args__  # type: ignore[attr-defined]

ChunkKind = Literal["content", "reasoning", "tool_call", "none"]

MESSAGE_CHARS = 500  # kept of an error's message
AFTER_DONE_S = 1.0  # how long the end of the body is awaited after [DONE], for the connection's sake
RETRY_WITHIN_S = 1.0  # of sending: a kept connection that breaks later broke under the request, which is a failure
GAVE_UP = ("abort", "error")  # finish_reasons of answers that the server did not finish: vLLM sends "abort", then [DONE]


@dataclass(frozen=True)
class Endpoint:
    """A server and how to speak to it.

    `api` is "completions" (prompts are token ids out of `vocabulary`) or "chat" (prompts are words). `options` go into
    every request's body, over what is there; None leaves a field out. The key is read from the environment variable named
    `api_key_variable`. Time-outs bound silence, never the whole request: `first_output_timeout_s` must exceed the longest
    prefill with its queue.
    """

    base_url: str
    model: str
    api: Literal["completions", "chat"] = "completions"
    vocabulary: range | None = None
    api_key_variable: str | None = None
    max_concurrent: int | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.0, "ignore_eos": True})
    seeded: bool = False  # give each request a seed of its own, taken from its prompt: equal prompts are sampled alike
    continuous_usage: bool = True  # ask for token counts on every chunk, which vLLM and its descendants offer
    connect_timeout_s: float = 10.0
    first_output_timeout_s: float = 900.0
    progress_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_address(self.base_url)
        try:
            httpx.URL(self.url)
            _ = urllib.parse.urlsplit(self.base_url).port  # the resolver would take 65616 for 80
        except (httpx.InvalidURL, ValueError):
            raise ValueError("url: found a host or port that cannot be; expected http://HOST:PORT, ports to 65535") from None
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise ValueError(f"max_concurrent: found {self.max_concurrent}; expected at least 1 request in flight")
        if self.api == "completions" and not self.vocabulary:
            raise ValueError(
                "vocabulary: found none; api 'completions' draws prompts from a range of token ids, "
                "for example range(1000, 30000), or use api 'chat'"
            )

    @property
    def root(self) -> str:
        """The server's address without /v1, where /health and /metrics are."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    @property
    def url(self) -> str:
        return f"{self.root}/v1/{'completions' if self.api == 'completions' else 'chat/completions'}"

    def headers(self) -> dict[str, str]:
        """Raises ValueError naming the variable if the key's variable is not set, or holds what no header can carry."""
        if self.api_key_variable is None:
            return {}
        return {"authorization": f"Bearer {secret_of(self.api_key_variable)}"}

    def hidden(self, text: str) -> str:
        """What a server said, without the key, in case it repeats it; nor its start, where the text was cut inside it."""
        if self.api_key_variable is None:
            return text
        key = secret_of(self.api_key_variable)
        text = without_secrets(text, [key])
        cut = next((kept for kept in range(len(key) - 1, 3, -1) if text.endswith(key[:kept])), 0)
        return text[:-cut] + HIDDEN if cut else text

    def body(self, prompt: bytes, output_tokens: int) -> bytes:
        """The request's JSON around a prompt that is JSON already, so that long prompts are never encoded twice."""
        usage = {"include_usage": True} | ({"continuous_usage_stats": True} if self.continuous_usage else {})
        fields = {"model": self.model, "max_tokens": output_tokens, "stream": True, "stream_options": usage}
        seed = {"seed": zlib.crc32(prompt)} if self.seeded else {}
        given = {name: value for name, value in (fields | seed | dict(self.options)).items() if value is not None}
        start = json.dumps(given).encode().removesuffix(b"}")
        if self.api == "completions":
            return b'%b, "prompt": %b}' % (start, prompt)
        return b'%b, "messages": [{"role": "user", "content": %b}]}' % (start, prompt)


class Chunk(NamedTuple):
    """One event with choices or a usage. `tokens` counts output up to and with it, if the event says so."""

    at_s: float
    kind: ChunkKind
    chars: int
    tokens: int | None


@dataclass(slots=True)
class Reply:
    """What one request got. Times are time.monotonic(); what did not happen, or was not said, is None.

    `sent_s` is stamped as the request's first byte goes to the socket, so that neither building the request nor other
    streams' turns on the event loop count as the server's time; without a connection, when one was asked for.
    """

    sent_s: float | None = None
    first_byte_s: float | None = None
    first_output_s: float | None = None
    first_answer_s: float | None = None
    last_output_s: float | None = None
    end_s: float | None = None
    chunks: list[Chunk] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    received_bytes: int = 0
    retried: bool = False
    error: ErrorClass | None = None
    message: str | None = None
    over: bool = False

    @property
    def ok(self) -> bool:
        """Answered whole: over, neither failed nor cancelled."""
        return self.over and self.error is None

    def fail(self, error: ErrorClass, message: str) -> None:
        """Record a failure; the first one stands."""
        if self.error is None:
            self.error, self.message = error, _storable(message)

    def output_counts(self) -> tuple[Literal["continuous_usage", "final_usage", "none"], int | None, int | None]:
        """Where the token count comes from, and the tokens up to and with the first and the last output chunk.

        With a count at the end only, the tokens of a chunk are known if there are as many output chunks as tokens (one
        fewer if the last token ended the text and so has none): one each. Counts on chunks that fall, or pass the one at
        the end, count as none.
        """
        outputs = [chunk for chunk in self.chunks if chunk.kind != "none"]
        if self.output_tokens is None or not outputs:
            return "none", None, None
        first, last = outputs[0].tokens, outputs[-1].tokens
        counts = [chunk.tokens for chunk in outputs if chunk.tokens is not None]
        believed = counts == sorted(counts) and max(counts, default=0) <= self.output_tokens
        if believed and first is not None and last is not None and (first < last or len(outputs) == 1):
            return "continuous_usage", first, last
        stop_token = 1 if self.finish_reason == "stop" else 0
        if self.output_tokens - stop_token <= len(outputs) <= self.output_tokens:
            return "final_usage", 1, len(outputs)
        return "final_usage", None, None


class Client:
    """Sends requests to one endpoint over one pool of connections; use as an async context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        # No proxy, no redirect, no .netrc: nothing may stand between the client and the server unseen. No cookie, by which a
        # balancer would send all streams to the server that answered first.
        self._http = httpx.AsyncClient(
            transport=StampedTransport(),
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            headers={"content-type": "application/json", "accept-encoding": "identity", **endpoint.headers()},
            timeout=httpx.Timeout(None, connect=endpoint.connect_timeout_s),
        )
        self._slots: contextlib.AbstractAsyncContextManager[Any] = (
            contextlib.nullcontext() if endpoint.max_concurrent is None else asyncio.Semaphore(endpoint.max_concurrent)
        )

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def warm(self) -> None:
        """A throw-away request: the first of a process pays for lazy imports, and must be nobody's measurement."""
        with contextlib.suppress(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, TimeoutError):
            async with asyncio.timeout(self.endpoint.connect_timeout_s):
                await self.get(self.endpoint.root + "/health")

    async def get(self, url: str) -> httpx.Response:
        """For /metrics and the like; raises httpcore's errors."""
        try:
            return await self._http.get(url)
        except httpx.HTTPError as error:  # an encoding or a Location that cannot be read
            raise httpcore.RemoteProtocolError(_describe(error)) from error

    async def send(self, prompt: bytes, output_tokens: int, reply: Reply, until_s: float = math.inf) -> None:
        """Send one prompt and fill `reply` as the answer comes; failures are recorded in it, not raised.

        If the caller cancels, the partial reply stays as it is. Nothing is sent if all `max_concurrent` requests are taken
        until after `until_s` on time.monotonic(); `reply.sent_s` is None then.
        """
        body = self.endpoint.body(prompt, output_tokens)
        async with self._slots:
            if time.monotonic() > until_s:
                return
            reply.sent_s = time.monotonic()
            try:
                if await self._attempt(body, reply):
                    # A kept connection that the server closed while this request was on its way: nothing was answered,
                    # so nothing can be counted twice.
                    reply.retried = True
                    await self._attempt(body, reply)
                reply.over = True
            finally:
                reply.end_s = time.monotonic()
                if reply.message is not None:
                    reply.message = self.endpoint.hidden(reply.message)

    async def _attempt(self, body: bytes, reply: Reply) -> bool:
        """One exchange; true if it should be made again."""
        endpoint = self.endpoint
        fresh_connection = False

        async def trace(name: str, info: Mapping[str, Any]) -> None:
            nonlocal fresh_connection
            fresh_connection |= name.startswith("connection.connect")
            if name == "http11.send_request_headers.started":
                reply.sent_s = time.monotonic()

        reader = _StreamReader(reply)
        try:
            async with asyncio.timeout(endpoint.first_output_timeout_s) as limit:
                async with self._http.stream("POST", endpoint.url, content=body, extensions={"trace": trace}) as response:
                    connection = response.extensions["network_stream"]
                    reply.first_byte_s = connection.get_extra_info("read_s")
                    reply.http_status = response.status_code
                    if response.status_code != 200:
                        text = (await response.aread()).decode("utf-8", "replace")
                        reply.fail("http_status", f"{response.status_code}: {text}")
                        return False
                    # Only output is progress, keep-alive comments are none. A timer costs as much as reading an event, so it
                    # is renewed now and then, with as much more time. After [DONE] nothing is.
                    outputs, renewed_s, slack_s = 0, 0.0, 0.05 * endpoint.progress_timeout_s
                    done = False
                    async for read in response.aiter_raw():
                        reader.read(read, connection.get_extra_info("read_s"))
                        if reader.done:
                            if not done:
                                done = True
                                limit.reschedule(time.monotonic() + AFTER_DONE_S)
                        elif reader.outputs != outputs and time.monotonic() > renewed_s + slack_s:
                            outputs, renewed_s = reader.outputs, time.monotonic()
                            limit.reschedule(renewed_s + endpoint.progress_timeout_s + slack_s)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            reply.fail("connect", _describe(error))
        except TimeoutError:
            if not reader.done:
                waited = endpoint.progress_timeout_s if reader.outputs else endpoint.first_output_timeout_s
                reply.fail("timeout", f"no output for {waited:g} s after {reader.outputs} output chunks")
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            unanswered = not fresh_connection and not reply.retried and reply.first_byte_s is None
            if unanswered and reply.sent_s is not None and time.monotonic() < reply.sent_s + RETRY_WITHIN_S:
                return True
            if not reader.done:
                reply.fail("transport", _describe(error))
        except httpx.HTTPError as error:  # an encoding or a Location that cannot be read
            reply.fail("transport", _describe(error))
        if reply.error is None:
            reader.close()
        return False


class _StreamReader:
    """Reads the body of one answer: SSE events into chunks, texts and counts."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._parser = SseParser()
        self._events = 0
        self._head = b""  # of the body, for the message if it is no stream
        self.outputs = 0
        self.done = False

    def read(self, read: bytes, at_s: float) -> None:
        self._reply.received_bytes += len(read)
        if not self._events and len(self._head) < MESSAGE_CHARS:
            self._head += read[:MESSAGE_CHARS]
        for event in self._parser.feed(read):
            self._events += 1
            if not self.done:
                self._event(event, at_s)

    def close(self) -> None:
        """The body has ended in good order: tell a whole answer from one that merely shows no error."""
        reply = self._reply
        if not self._events and self._head.strip():
            reply.fail("not_sse", f"no event in: {self._head.decode('utf-8', 'replace')}")
        elif reply.received_bytes and not self.done and reply.finish_reason is None:
            reply.fail("truncated", f"ended without finish_reason or [DONE] after {self.outputs} output chunks")
        elif not self.outputs:
            counted = "none" if reply.output_tokens is None else reply.output_tokens
            reply.fail("empty", f"{self._events} events without output; output tokens by its usage: {counted}")

    def _event(self, event: Event, at_s: float) -> None:
        reply = self._reply
        if event.data == b"[DONE]":
            self.done = True
            return
        try:
            message = json.loads(str(event.data, "utf-8"))  # given bytes, json would first guess their encoding
        except (ValueError, RecursionError) as error:  # of JSON or of UTF-8
            reply.fail("not_sse", f"event is not JSON ({error}): {event.data[:200].decode('utf-8', 'replace')}")
            return
        if not isinstance(message, dict):
            reply.fail("not_sse", f"event is not a JSON object: {event.data[:200].decode('utf-8', 'replace')}")
            return
        problem = message.get("error")
        if problem is not None or event.type == "error":
            reply.fail("in_band_error", json.dumps(message if problem is None else problem, ensure_ascii=False))
            return
        try:
            tokens = self._usage(message.get("usage"))
            kind, chars = self._choices(message.get("choices") or (), at_s)
        except (AttributeError, KeyError, TypeError) as error:  # a list where an object belongs, and the like
            reply.fail("not_sse", f"event of unknown shape ({error}): {event.data[:200].decode('utf-8', 'replace')}")
            return
        if kind != "none":
            self.outputs += 1
            reply.last_output_s = at_s
            if reply.first_output_s is None:
                reply.first_output_s = at_s
        reply.chunks.append(Chunk(at_s, kind, chars, tokens))

    def _choices(self, choices: Sequence[Mapping[str, Any]], at_s: float) -> tuple[ChunkKind, int]:
        """Take the texts of one event; returns the kind of the first and the characters of all."""
        reply = self._reply
        kind: ChunkKind = "none"
        chars = 0
        for choice in choices:
            if choice.get("finish_reason"):  # "" stands for null with some servers
                reply.finish_reason = _storable(str(choice["finish_reason"]))
                if reply.finish_reason in GAVE_UP:
                    reply.fail("in_band_error", f"finish_reason: {reply.finish_reason}")
            for this_kind, texts, text in _texts(choice, reply):
                if not isinstance(text, str):
                    raise TypeError("a text that is none")
                texts.append(text)
                chars += len(text)
                kind = this_kind if kind == "none" else kind
                if this_kind != "reasoning" and reply.first_answer_s is None:
                    reply.first_answer_s = at_s
        return kind, chars

    def _usage(self, usage: Any) -> int | None:
        """Take the counts of one event; returns its output tokens, None where it does not say."""
        if not usage:
            return None
        reply = self._reply
        tokens = _count(usage.get("completion_tokens"))
        if tokens is not None:
            reply.output_tokens = tokens
        if (prompt := _count(usage.get("prompt_tokens"))) is not None:
            reply.prompt_tokens = prompt
        cached = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
        if cached is not None:
            reply.cached_tokens = cached
        return tokens


def _count(value: Any) -> int | None:
    """A count of tokens as it stands in a usage; raises TypeError for anything else than a whole number or nothing."""
    if value is not None and (type(value) is not int or not 0 <= value < 2**53):
        raise TypeError("a count that is no whole number")
    return value


def _texts(choice: Mapping[str, Any], reply: Reply) -> list[tuple[ChunkKind, list[str], str]]:
    """The non-empty texts of one choice, each with its kind and where it is collected."""
    text = choice.get("text")
    if text:
        return [("content", reply.content, text)]
    delta = choice.get("delta")
    if not delta:
        return []
    found: list[tuple[ChunkKind, list[str], str]] = []
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if reasoning:
        found.append(("reasoning", reply.reasoning, reasoning))
    content = delta.get("content") or delta.get("refusal")
    if content:
        found.append(("content", reply.content, content))
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        text = (function.get("name") or "") + (function.get("arguments") or "")
        if text:
            found.append(("tool_call", reply.tool_calls, text))
    return found


def _storable(text: str) -> str:
    """The start of a server's text; half a surrogate pair, which JSON lets through and no file can hold, is written out."""
    return text[:MESSAGE_CHARS].encode("utf-8", "backslashreplace").decode()


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
