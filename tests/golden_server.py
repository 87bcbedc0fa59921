"""A server with known truth: speaks vLLM's HTTP interface, writes what it is told to, and notes when it wrote it.

Without a script it behaves as a small vLLM: prefill and decode at the speeds given on the command line, a block-wise
prefix cache, /health, /v1/models, /metrics, and vLLM's log lines. `python tests/golden_server.py --port N` accepts
vLLM's other arguments and ignores them, so that a test can start it in vLLM's place.

With a script (POST /golden/scripts, one per request, first come first served) it writes exactly those bytes. A script
is a JSON object:

    status, headers   of the answer (default 200, text/event-stream)
    length            true: Content-Length instead of chunked encoding; a number: this one, right or wrong
    silent            true: close the connection without an answer
    cut               [offset, ...] or "bytes": where the body is cut into separate packets
    steps             a list of objects, done in order; each may have
        wait_s        sleep first
        text | data   write this text, or `data: <JSON>` and an empty line
        tokens        cumulative output tokens once this is written, if it carries output: the truth
        end           "complete" (the default at the end), "close" (no end of the chunked body), "reset", "hang"

GET /golden/log gives one record per request: arrival and every write, as seconds of CLOCK_MONOTONIC, which the client's
time.monotonic() and time.perf_counter() share on one machine.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import socket
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

CUT_PAUSE_S = 0.001  # between the pieces of a cut body, so that each arrives as a packet of its own


@dataclass(frozen=True)
class Settings:
    """How the default behaviour answers; speeds are per stream, and waits have no jitter."""

    model: str = "golden"
    tokens_per_second: float = 200.0
    prefill_tokens_per_second: float = 20_000.0
    max_model_len: int = 4096
    kv_cache_tokens: int = 65_536
    block_size: int = 16
    slots: int = 256  # requests decoded at once; the others wait
    tokens_per_chunk: int = 1
    role_delay_s: float = 0.0  # chat only: the role chunk precedes the first output by this
    usage_delay_s: float = 0.0  # the usage chunk follows the last output by this
    keep_alive_s: float = 5.0  # an idle connection is closed after this, as vLLM does
    prompt_tokens_details: bool = False
    send_time: bool = False  # write golden_send_s into every event
    old_metric_names: bool = False  # counters without _total
    die_after_requests: int | None = None
    hang_after_requests: int | None = None
    never_healthy: bool = False


@dataclass
class Record:
    """What happened to one completion request."""

    index: int
    path: str
    connection: int
    arrival_s: float
    prompt_tokens: int = 0
    prompt_head: list[int] | str = field(default_factory=list)
    cached_tokens: int | None = None
    output_tokens: int = 0
    writes: list[tuple[float, int | None]] = field(default_factory=list)  # (time, cumulative tokens if output)
    open_requests: int = 0  # with this one, when it arrived
    end: str = "open"
    end_s: float | None = None

    def first_output_s(self) -> float:
        return next(at for at, tokens in self.writes if tokens is not None)

    def last_output_s(self) -> float:
        return next(at for at, tokens in reversed(self.writes) if tokens is not None)

    def ttft_s(self) -> float:
        """From arrival of the whole request to the write of the first output."""
        return self.first_output_s() - self.arrival_s

    def tpot_s(self) -> float:
        counts = [tokens for _, tokens in self.writes if tokens is not None]
        return (self.last_output_s() - self.first_output_s()) / (counts[-1] - counts[0])


class PrefixCache:
    """Which leading blocks of a prompt are cached: a block counts only behind its own prefix; the oldest leave."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks, self.block_size = blocks, block_size
        self.cached: OrderedDict[int, None] = OrderedDict()

    def _chain(self, tokens: Sequence[Any]) -> Iterator[int]:
        parent = 0
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            parent = hash((parent, tuple(tokens[start : start + self.block_size])))
            yield parent

    def hits(self, tokens: Sequence[Any]) -> int:
        """Leading tokens found; at least one token is always computed, as in vLLM."""
        found = sum(1 for _ in itertools.takewhile(self.cached.__contains__, self._chain(tokens[:-1])))
        return found * self.block_size

    def add(self, tokens: Sequence[Any]) -> None:
        for block in self._chain(tokens):
            self.cached[block] = None
            self.cached.move_to_end(block)
        while len(self.cached) > self.blocks:
            self.cached.popitem(last=False)


class GoldenServer:
    """The server; `async with GoldenServer(...) as server` serves on a free loopback port at `server.url`."""

    def __init__(self, settings: Settings | None = None, scripts: Sequence[dict[str, Any]] = ()) -> None:
        self.settings = settings or Settings()
        self.scripts = list(scripts)
        self.records: list[Record] = []
        self.bodies: list[dict[str, Any]] = []  # of completion requests, in the order of `records`
        self.cache = PrefixCache(self.settings.kv_cache_tokens // self.settings.block_size, self.settings.block_size)
        self.running = self.waiting = self.open_requests = self.kv_tokens = self.calls = 0
        self.prompt_tokens = self.output_tokens = self.queries = self.hits = self.finished = 0
        self.connections = itertools.count()
        self.slots = asyncio.Semaphore(self.settings.slots)
        self.port = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connection, host, port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> "GoldenServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # One connection: requests in turn until the client or the idle limit ends it.

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = next(self.connections)
        try:
            while True:
                async with asyncio.timeout(self.settings.keep_alive_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
                headers = dict(line.split(": ", 1) for line in head.decode("latin-1").lower().split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._route(connection, time.monotonic(), method, path.split("?")[0], body, writer)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # the client left, was idle too long, or the server stops
        finally:
            with contextlib.suppress(RuntimeError):  # the loop may be closing
                writer.close()

    async def _route(
        self, connection: int, arrival_s: float, method: str, path: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        match method, path:
            case "GET", "/health" | "/ping":
                await _answer(writer, 503 if self.settings.never_healthy else 200, b"")
            case "GET", "/version":
                await _answer_json(writer, 200, {"version": "0.0.0+golden"})
            case "GET", "/v1/models":
                card = {"id": self.settings.model, "object": "model", "created": 0, "owned_by": "golden"}
                card["max_model_len"] = self.settings.max_model_len
                await _answer_json(writer, 200, {"object": "list", "data": [card]})
            case "GET", "/metrics":
                await _answer(writer, 200, self.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
            case "POST", "/reset_prefix_cache":
                self.cache.cached.clear()
                await _answer(writer, 200, b"")
            case "POST", "/collective_rpc":  # as one worker that does what it is asked
                call = json.loads(body)
                self.calls += 1
                reads = {"decode_steps": 10 * self.calls, "host_reads": 70 * self.calls, "host_read_bytes": 7000 * self.calls}
                asked = {"cold_share": float(call["args"][0])} if call["args"] else reads
                await _answer_json(writer, 200, {"results": [asked]})
            case "POST", "/golden/scripts":
                self.scripts.extend(json.loads(body))
                await _answer(writer, 200, b"")
            case "GET", "/golden/log":
                await _answer_json(writer, 200, {"requests": [asdict(record) for record in self.records]})
            case "POST", "/v1/completions" | "/v1/chat/completions":
                await self._completion(connection, arrival_s, path, json.loads(body), writer)
            case _:
                await _answer_json(writer, 404, {"error": {"message": f"no {method} {path}", "code": 404}})

    async def _completion(
        self, connection: int, arrival_s: float, path: str, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        prompt = _prompt_tokens(body)
        head = prompt[:4] if body.get("messages") is None else str(body["messages"][-1]["content"])[:40]
        record = Record(len(self.records), path, connection, arrival_s, len(prompt), head)
        self.records.append(record)
        self.bodies.append(body)
        self.open_requests += 1
        record.open_requests = self.open_requests
        try:
            if self.scripts:
                await self._scripted(record, self.scripts.pop(0), writer)
            else:
                await self._default(record, prompt, body, writer)
        except (ConnectionError, asyncio.CancelledError):
            record.end = "client left"
            raise
        finally:
            record.end_s = time.monotonic()
            self.open_requests -= 1

    # Scripted answers.

    async def _scripted(self, record: Record, script: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        steps = script["steps"]
        headers = {"content-type": "text/event-stream; charset=utf-8"} | script.get("headers", {})
        total = sum(len(_step_bytes(step)) for step in steps)
        whole = script.get("length", False)
        length = total if whole is True else whole
        headers |= {"content-length": str(length)} if whole else {"transfer-encoding": "chunked"}
        if script.get("silent"):
            record.end = "silent"
            raise ConnectionResetError("script: silent")
        writer.write(_head(script.get("status", 200), headers))
        cut = script.get("cut", [])
        cuts = set(range(total)) if cut == "bytes" else set(cut)
        position, end = 0, "complete"
        for step in steps:
            if "wait_s" in step:
                await asyncio.sleep(step["wait_s"])
            payload = _step_bytes(step)
            if payload:
                record.writes.append((time.monotonic(), step.get("tokens")))
                record.output_tokens = step.get("tokens") or record.output_tokens
            bounds = [0, *sorted(at - position for at in cuts if position < at < position + len(payload)), len(payload)]
            for start, stop in itertools.pairwise(bounds):
                if start:
                    await asyncio.sleep(CUT_PAUSE_S)
                if stop > start:
                    writer.write(payload[start:stop] if whole else _chunk(payload[start:stop]))
                    await writer.drain()
            position += len(payload)
            end = step.get("end", end)
        record.end = end
        if end == "complete":
            writer.write(b"" if whole else b"0\r\n\r\n")
            await writer.drain()
        elif end == "hang":
            await asyncio.Event().wait()  # until the server stops
        else:
            if end == "reset":  # linger 0: the kernel sends RST instead of FIN
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort() if end == "reset" else writer.close()
            raise ConnectionResetError(f"script: {end}")

    # The default: a small vLLM.

    async def _default(self, record: Record, prompt: Sequence[Any], body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        settings = self.settings
        chat = record.path.endswith("chat/completions")
        room = settings.max_model_len - len(prompt)
        output_tokens = body.get("max_completion_tokens") or body.get("max_tokens") or (room if chat else 16)
        if body.get("model") not in (None, settings.model):
            problem = f"The model `{body['model']}` does not exist."
            await _answer_json(writer, 404, {"error": {"message": problem, "type": "NotFoundError", "code": 404}})
            record.end = "refused"
            return
        if output_tokens > room:
            problem = (
                f"This model's maximum context length is {settings.max_model_len} tokens. However, you requested "
                f"{output_tokens} output tokens and your prompt contains {len(prompt)} tokens."
            )
            await _answer_json(writer, 400, {"error": {"message": problem, "type": "BadRequestError", "code": 400}})
            record.end = "refused"
            return
        started = sum(r.end != "refused" for r in self.records)
        if settings.hang_after_requests is not None and started > settings.hang_after_requests:
            writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
            await asyncio.Event().wait()
        dies = settings.die_after_requests is not None and started > settings.die_after_requests

        self.waiting += 1
        try:
            await self.slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        self.kv_tokens += len(prompt)
        try:
            cached = self.cache.hits(prompt)
            self.queries += len(prompt)
            self.hits += cached
            record.cached_tokens = cached
            await asyncio.sleep((len(prompt) - cached) / settings.prefill_tokens_per_second)
            self.cache.add(prompt)
            self.prompt_tokens += len(prompt)
            if body.get("stream"):
                await self._stream(record, output_tokens, body, chat, dies, writer)
            else:
                await asyncio.sleep(output_tokens / settings.tokens_per_second)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                text = "".join(_word(record.index, i) for i in range(output_tokens))
                shape = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
                choice = {"index": 0, "finish_reason": "length", **shape}
                if body.get("prompt_logprobs"):
                    choice |= _prompt_logprobs(prompt, body["prompt_logprobs"], output_tokens)
                answer = self._answer_object(record, chat, [choice]) | {"usage": self._usage(record, output_tokens, True)}
                answer["object"] = "chat.completion" if chat else "text_completion"
                await _answer_json(writer, 200, answer)
                self.output_tokens += output_tokens
            record.output_tokens = output_tokens
            record.end = "complete"
            self.finished += 1
        finally:
            self.running -= 1
            self.kv_tokens -= len(prompt)
            self.slots.release()

    async def _stream(
        self,
        record: Record,
        output_tokens: int,
        body: dict[str, Any],
        chat: bool,
        dies: bool,
        writer: asyncio.StreamWriter,
    ) -> None:
        settings = self.settings
        options = body.get("stream_options") or {}
        continuous = options.get("include_usage", False) and options.get("continuous_usage_stats", False)
        writer.write(_head(200, {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}))

        async def send(choices: list[dict[str, Any]], tokens: int | None, usage: dict[str, Any] | None) -> None:
            event = self._answer_object(record, chat, choices)
            if usage is not None:
                event["usage"] = usage
            if settings.send_time:
                event["golden_send_s"] = time.monotonic()
            payload = _chunk(_event(event))
            record.writes.append((time.monotonic(), tokens))
            writer.write(payload)
            await writer.drain()

        if chat:
            role = [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
            await send(role, None, self._usage(record, 0, False) if continuous else None)
            await asyncio.sleep(settings.role_delay_s)
        begin = time.monotonic()
        done = 0
        while done < output_tokens:
            step = min(settings.tokens_per_chunk, output_tokens - done)
            text = "".join(_word(record.index, done + i) for i in range(step))
            done += step
            self.output_tokens += step
            finish = "length" if done == output_tokens else None
            choice = {"index": 0, "finish_reason": finish, **({"delta": {"content": text}} if chat else {"text": text})}
            await send([choice], done, self._usage(record, done, False) if continuous else None)
            if dies and done >= min(3, output_tokens):
                os.kill(os.getpid(), signal.SIGKILL)
            if done < output_tokens:
                await asyncio.sleep(begin + done / settings.tokens_per_second - time.monotonic())
        if options.get("include_usage"):
            await asyncio.sleep(settings.usage_delay_s)
            await send([], None, self._usage(record, done, True))
        writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()

    def _answer_object(self, record: Record, chat: bool, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{record.index}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 0,
            "model": self.settings.model,
            "choices": choices,
        }

    def _usage(self, record: Record, output_tokens: int, last: bool) -> dict[str, Any]:
        total = record.prompt_tokens + output_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": record.prompt_tokens,
            "total_tokens": total,
            "completion_tokens": output_tokens,
        }
        if last and self.settings.prompt_tokens_details:
            usage["prompt_tokens_details"] = {"cached_tokens": record.cached_tokens}
        return usage

    def metrics(self) -> str:
        labels = f'{{engine="0",model_name="{self.settings.model}"}}'
        gauges = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": min(self.kv_tokens / self.settings.kv_cache_tokens, 1.0),
        }
        counters = {
            "prefix_cache_queries": self.queries,
            "prefix_cache_hits": self.hits,
            "num_preemptions": 0,
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.output_tokens,
        }
        suffix = "" if self.settings.old_metric_names else "_total"
        lines = []
        for name, value in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{labels} {float(value)}"]
        for name, value in counters.items():
            lines += [f"# TYPE vllm:{name}{suffix} counter", f"vllm:{name}{suffix}{labels} {float(value)}"]
        return "\n".join(lines) + "\n"


def _prompt_tokens(body: dict[str, Any]) -> list[Any]:
    """Token ids as they are; text counts one token per word."""
    if "messages" in body:
        return " ".join(str(message.get("content") or "") for message in body["messages"]).split()
    prompt = body["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    return prompt.split() if isinstance(prompt, str) else prompt


def _word(request: int, token: int) -> str:
    """The text of one output token; the first names the request, so that a client's answer finds its record."""
    return f"r{request} " if token == 0 else f"t{token} "


def _prompt_logprobs(prompt: Sequence[Any], top: int, output_tokens: int) -> dict[str, Any]:
    """vLLM's `prompt_logprobs`: each token is the likeliest, with probability 1/2, and the next ids follow by halves."""
    ids = [word if isinstance(word, int) else len(word) for word in prompt]
    ranked = [{str(at + rank): {"logprob": -math.log(2) * (rank + 1), "rank": rank + 1} for rank in range(top)} for at in ids]
    return {"prompt_token_ids": ids, "prompt_logprobs": [None, *ranked[1:]], "token_ids": list(range(output_tokens))}


def _event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def _step_bytes(step: dict[str, Any]) -> bytes:
    if "data" in step:
        return _event(step["data"])
    return str(step.get("text", "")).encode()


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} golden", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


async def _answer(writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "text/plain") -> None:
    writer.write(_head(status, {"content-type": kind, "content-length": str(len(body))}) + body)
    await writer.drain()


async def _answer_json(writer: asyncio.StreamWriter, status: int, body: Any) -> None:
    await _answer(writer, status, json.dumps(body).encode(), "application/json")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """vLLM's arguments beside our own; those that mean nothing here are accepted and dropped."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-model-len", type=int, default=Settings.max_model_len)
    parser.add_argument("--block-size", type=int, default=Settings.block_size)
    parser.add_argument("--max-num-seqs", type=int, default=Settings.slots)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--tokens-per-second", type=float, default=Settings.tokens_per_second)
    parser.add_argument("--prefill-tokens-per-second", type=float, default=Settings.prefill_tokens_per_second)
    parser.add_argument("--kv-cache-tokens", type=int, default=Settings.kv_cache_tokens)
    parser.add_argument("--tokens-per-chunk", type=int, default=Settings.tokens_per_chunk)
    parser.add_argument("--role-delay-s", type=float, default=0.0)
    parser.add_argument("--usage-delay-s", type=float, default=0.0)
    parser.add_argument("--send-time", action="store_true")
    parser.add_argument("--startup-s", type=float, default=0.0)
    parser.add_argument("--die-after-requests", type=int)
    parser.add_argument("--hang-after-requests", type=int)
    parser.add_argument("--never-healthy", action="store_true")
    return parser.parse_known_args(arguments)[0]


async def serve(arguments: argparse.Namespace) -> None:
    await asyncio.sleep(arguments.startup_s)
    settings = Settings(
        model=arguments.served_model_name or arguments.model or Settings.model,
        tokens_per_second=arguments.tokens_per_second,
        prefill_tokens_per_second=arguments.prefill_tokens_per_second,
        max_model_len=arguments.max_model_len,
        kv_cache_tokens=arguments.kv_cache_tokens,
        block_size=arguments.block_size,
        slots=arguments.max_num_seqs,
        tokens_per_chunk=arguments.tokens_per_chunk,
        role_delay_s=arguments.role_delay_s,
        usage_delay_s=arguments.usage_delay_s,
        prompt_tokens_details=arguments.enable_prompt_tokens_details,
        send_time=arguments.send_time,
        die_after_requests=arguments.die_after_requests,
        hang_after_requests=arguments.hang_after_requests,
        never_healthy=arguments.never_healthy,
    )
    server = GoldenServer(settings)
    # vLLM's own log lines, for readers of its log.
    print("INFO 01-01 00:00:00 [gpu_model_runner.py:1] Model loading took 0.02 GiB memory and 0.100000 seconds")
    concurrency = settings.kv_cache_tokens / settings.max_model_len
    print(
        f"INFO 01-01 00:00:00 [kv_cache_utils.py:1] GPU KV cache size: {settings.kv_cache_tokens:,} tokens, "
        f"Maximum concurrency for {settings.max_model_len:,} tokens per request: {concurrency:.2f}x"
    )
    await server.start(arguments.host, arguments.port)
    print(f"INFO:     Application startup complete. Serving {settings.model} at {server.url}", flush=True)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    await stop.wait()
    await server.__aexit__()


if __name__ == "__main__":
    asyncio.run(serve(parse_arguments(sys.argv[1:])))
