"""Run one cell: one workload against one server, with everything that decides whether its numbers count."""

import asyncio
import concurrent.futures
import contextlib
import datetime
import multiprocessing
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpcore

from spillway.load import delay, latency, scrape, verdict
from spillway.load.client import ERROR_CLASSES, Client, Endpoint
from spillway.load.drive import Exchange, Tally, drive, no_collection, prime
from spillway.load.progress import Progress
from spillway.load.prompts import Alphabet
from spillway.load.telemetry import SAMPLE_S, ClientSampler, GpuSampler
from spillway.load.turns import plan
from spillway.spec.workload import AgentTurns, Arrivals, CachedPrefix, Contexts, Trace, Workload

__all__ = ["CellResult", "Endpoint", "run_cell"]

ALIVE_EVERY_S = 0.25
DEATH_NOTICE_S = 2.0  # after a broken connection, within which `alive` must know whether the server has ended
METRICS_TIMEOUT_S = 5.0
CLIENT_DELAY_BOUND_S = 0.010

Row = dict[str, Any]
Engines = dict[str, dict[str, float]]


@dataclass
class CellResult:
    """Rows of the load tables (record/tables.py) without the columns `run` and `boot`, which the caller knows."""

    cells: list[Row]
    requests: list[Row]
    chunks: list[Row]
    server_metrics: list[Row]
    client_metrics: list[Row]
    gpu_metrics: list[Row]

    def tables(self) -> dict[str, list[Row]]:
        return dict(vars(self))


@dataclass(frozen=True)
class _Asked:
    """What every process of a cell needs to make the same plan."""

    endpoint: Endpoint
    workload: Workload
    cell: str
    seed: int
    nonce: str

    def alphabet(self) -> Alphabet:
        if self.endpoint.api == "chat":
            return Alphabet.words()
        assert self.endpoint.vocabulary is not None  # checked by Endpoint
        return Alphabet.token_ids(self.endpoint.vocabulary)


@dataclass
class _Share:
    """What one process of a cell did, and how busy it was."""

    exchanges: list[Exchange]
    client_metrics: list[Row]
    loop_delays_s: list[float]


@dataclass
class _Watched:
    """What was seen beside the requests."""

    death: str | None = None
    server_metrics: list[Row] = field(default_factory=list)


async def run_cell(
    endpoint: Endpoint,
    workload: Workload,
    *,
    cell: str,
    seed: int,
    nonce: str,
    alive: Callable[[], str | None],
    processes: int = 1,
    client_delay_bound_s: float = CLIENT_DELAY_BOUND_S,
    gpus: bool = True,
    progress: Progress | None = None,
) -> CellResult:
    """Send a workload and return the rows of its cell.

    `seed` decides lengths, pauses and arrivals; `nonce` (the run id) decides the prompts' tokens, so that no other run has
    sent them. `alive` is asked a few times a second and returns None, or why the server has ended, which ends the cell
    within seconds. `processes` share the streams out; raise it if the cell is marked client_delay. Requests that fail are
    rows, not exceptions; raises FileNotFoundError or ValueError if the workload names a file that is absent or wrong, and
    ValueError if the endpoint takes fewer requests at once than there are processes.
    """
    if endpoint.max_concurrent is not None and endpoint.max_concurrent < processes:
        raise ValueError(f"processes: found {processes}; expected at most the {endpoint.max_concurrent} of max_concurrent")
    asked = _Asked(endpoint, workload, cell, seed, nonce)
    work = plan(workload, asked.alphabet(), seed=seed, nonce=nonce, cell=cell)
    tally = Tally(warming=len(work.streams) if work.warmup else 0, measured=work.measured_in_all)
    watched = _Watched()
    async with Client(endpoint) as client, _workers(processes, tally) as pool:
        await client.warm()
        before = await _metrics(client, endpoint) if alive() is None else {}
        start_s = time.monotonic()
        started_at = datetime.datetime.now(datetime.UTC)
        gpu_sampler = GpuSampler(start_s)
        beside = [
            _watch(alive, tally, watched, work.measured_in_all, progress),
            _sample_metrics(client, endpoint, start_s, watched.server_metrics),
            *([gpu_sampler.run()] if gpus else []),
        ]
        async with _running(beside):
            exchanges: list[Exchange] = []
            await _until_stopped(prime(client, work, exchanges), tally)
            shares = await _all_shares(asked, tally, processes, pool)
            for share in shares:
                exchanges += share.exchanges
            if any(exchange.reply.error in ("connect", "transport") for exchange in exchanges):
                await _until_stopped(asyncio.sleep(DEATH_NOTICE_S), tally)
        if progress is not None:
            progress.update(work.measured_in_all - max(0, tally.left), work.measured_in_all)
        after = await _metrics(client, endpoint) if alive() is None else {}
        watched.server_metrics += scrape.rows(time.monotonic() - start_s, after)
        for exchange in exchanges:
            if watched.death is not None and exchange.cancelled and exchange.phase != "cooldown":
                exchange.reply.fail("transport", watched.death)
        delays_s = await _own_delay(exchanges, processes, pool) if watched.death is None else []
    exchanges.sort(key=lambda exchange: exchange.reply.sent_s or float("inf"))
    loop_delays_s = [late_s for share in shares for late_s in share.loop_delays_s]
    requests = [_request_row(asked, number, exchange, start_s) for number, exchange in enumerate(exchanges)]
    rise = {name: scrape.rise(before, after, name) for name in ("prefix_hit_tokens", "prefix_query_tokens", "preemptions")}
    row = _cell_row(asked, exchanges, start_s) | rise
    client_delays = _p50_p99("client_delay", delays_s) | _p50_p99("loop_delay", loop_delays_s)
    client_delays["loop_delay_max_s"] = max(loop_delays_s, default=None)
    pages = [*scrape.rows(0.0, before), *watched.server_metrics]
    marks = _marks(asked, exchanges, rise, pages, watched.death, client_delays, client_delay_bound_s)
    ok = row["requests_ok"]
    row |= client_delays | {
        "started_at": started_at.isoformat(timespec="milliseconds"),
        "client_processes": processes,
        "client_delay_bound_s": client_delay_bound_s,
        "outcome": "failed" if watched.death is not None or not ok else "marked" if marks else "measured",
        "marks": "; ".join(mark.replace(";", ",") for mark in marks) or "none",
    }
    of_cell = {"cell": cell}
    return CellResult(
        cells=[row],
        requests=requests,
        chunks=[chunk for number, exchange in enumerate(exchanges) for chunk in _chunk_rows(cell, number, exchange, start_s)],
        server_metrics=[of_cell | metrics for metrics in watched.server_metrics],
        client_metrics=[of_cell | metrics for share in shares for metrics in share.client_metrics],
        gpu_metrics=[of_cell | metrics for metrics in gpu_sampler.rows],
    )


# One process's share, in this process or in one of its own.


async def _share(asked: _Asked, tally: Tally, index: int, processes: int) -> _Share:
    work = plan(asked.workload, asked.alphabet(), seed=asked.seed, nonce=asked.nonce, cell=asked.cell)
    endpoint, slots = asked.endpoint, asked.endpoint.max_concurrent
    if slots is not None:  # of all processes together
        endpoint = replace(endpoint, max_concurrent=len(range(index, slots, processes)))
    async with Client(endpoint) as client:
        await client.warm()
        with no_collection():
            tally.one_is_ready()
            sampler = ClientSampler(index, await tally.started())
            async with _running([sampler.run()]):
                exchanges = await drive(client, work, tally, share=(index, processes), limit_s=asked.workload.limit_s)
    return _Share(exchanges, sampler.rows, sampler.delays_s)


_tally: Tally | None = None  # of this worker process


def _install(tally: Tally) -> None:
    global _tally
    _tally = tally
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker holds both ends of the pool's queue, so nothing else tells it that its parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _share_in_worker(asked: _Asked, index: int, processes: int) -> _Share:
    assert _tally is not None
    return asyncio.run(_share(asked, _tally, index, processes))


def _delays_in_worker(port: int, streams: int, events: int, gap_s: float) -> list[float]:
    return asyncio.run(delay.receive_delays_s(port, streams, events, gap_s))


@contextlib.asynccontextmanager
async def _workers(processes: int, tally: Tally) -> AsyncIterator[concurrent.futures.Executor | None]:
    """A pool whose processes know the tally; none if this process does the work itself."""
    if processes == 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context, _install, (tally,)) as pool:
        try:
            yield pool
        finally:
            tally.stop()  # leaving waits for the workers, which would otherwise send to the end after a failure here


async def _all_shares(asked: _Asked, tally: Tally, processes: int, pool: concurrent.futures.Executor | None) -> list[_Share]:
    """Start every share at the same moment and wait for all."""
    loop = asyncio.get_running_loop()
    shares: list[asyncio.Future[_Share]] = (
        [asyncio.ensure_future(_share(asked, tally, 0, 1))]
        if pool is None
        else [loop.run_in_executor(pool, _share_in_worker, asked, index, processes) for index in range(processes)]
    )
    work = asyncio.gather(*shares)
    while tally.ready < processes and not work.done():
        await asyncio.sleep(0.001)
    tally.start()
    return await work


# What runs beside the requests.


@contextlib.asynccontextmanager
async def _running(coroutines: Sequence[Any]) -> AsyncIterator[None]:
    """Run coroutines in the background; they are cancelled at the end, and an error of theirs is raised then."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _watch(
    alive: Callable[[], str | None], tally: Tally, watched: _Watched, total: int, progress: Progress | None
) -> None:
    while watched.death is None:
        watched.death = alive()
        if progress is not None:
            progress.update(total - max(0, tally.left), total)
        if watched.death is None:
            await asyncio.sleep(ALIVE_EVERY_S)
    tally.stop()


async def _until_stopped(work: Coroutine[Any, Any, None], tally: Tally) -> None:
    """Wait for a coroutine; cancel it if the server dies before."""
    task = asyncio.create_task(work)
    while not task.done() and not tally.stopped:
        await asyncio.wait([task], timeout=ALIVE_EVERY_S)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _metrics(client: Client, endpoint: Endpoint) -> Engines:
    """The server's metrics by engine; nothing if it has no such page or does not answer."""
    try:
        async with asyncio.timeout(METRICS_TIMEOUT_S):
            response = await client.get(endpoint.root + "/metrics")
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, TimeoutError):
        return {}
    return scrape.parse_metrics(response.content.decode("utf-8", "replace")) if response.status_code == 200 else {}


async def _sample_metrics(client: Client, endpoint: Endpoint, start_s: float, rows: list[Row]) -> None:
    while True:
        engines = await _metrics(client, endpoint)
        rows += scrape.rows(time.monotonic() - start_s, engines)
        await asyncio.sleep(SAMPLE_S)


async def _own_delay(exchanges: Sequence[Exchange], processes: int, pool: concurrent.futures.Executor | None) -> list[float]:
    """The client's receive delays at the concurrency and rate of these requests.

    None if nothing was streamed or the self-check failed: the cell is then marked, and keeps its rows.
    """
    outputs = [[chunk.at_s for chunk in e.reply.chunks if chunk.kind != "none"] for e in exchanges if e.reply.ok]
    rates = [(len(times) - 1) / (times[-1] - times[0]) for times in outputs if len(times) > 1 and times[-1] > times[0]]
    if not rates:
        return []
    streams = max(most_at_once(exchanges), processes)
    events, gap_s = delay.schedule(streams, statistics.median(rates))
    try:
        with delay.delay_server() as port:
            if pool is None:
                with no_collection():
                    return await delay.receive_delays_s(port, streams, events, gap_s)
            loop = asyncio.get_running_loop()
            parts = [len(range(index, streams, processes)) for index in range(processes)]
            work = [loop.run_in_executor(pool, _delays_in_worker, port, part, events, gap_s) for part in parts]
            return [late_s for part in await asyncio.gather(*work) for late_s in part]
    except OSError:  # no connection, or no process for the server
        return []


def most_at_once(exchanges: Sequence[Exchange]) -> int:
    """Most requests that were open at the same time."""
    changes = []
    for exchange in exchanges:
        sent_s, end_s = exchange.reply.sent_s, exchange.reply.end_s
        if sent_s is not None and end_s is not None:
            changes += [(sent_s, 1), (end_s, -1)]
    open_now = most = 0
    for _, change in sorted(changes):
        open_now += change
        most = max(most, open_now)
    return most


# Rows.


def _cell_row(asked: _Asked, exchanges: Sequence[Exchange], start_s: float) -> Row:
    workload = asked.workload
    measured = [exchange for exchange in exchanges if exchange.phase == "measured"]
    sent = [exchange for exchange in exchanges if exchange.reply.sent_s is not None]
    sent_s = [e.reply.sent_s - start_s for e in measured if e.reply.sent_s is not None]
    end_s = [e.reply.end_s - start_s for e in measured if e.reply.end_s is not None]
    cached = [exchange.reply.cached_tokens for exchange in sent if exchange.reply.ok]
    errors = Counter(exchange.reply.error for exchange in measured)
    return {
        "cell": asked.cell,
        "kind": workload.kind,
        "streams": None if isinstance(workload, Arrivals) else workload.most_streams,
        **_asked_lengths(workload),
        "rate_per_s": workload.rate_per_s if isinstance(workload, Arrivals) else None,
        "seed": asked.seed,
        "workload": workload.model_dump_json(),
        "api": asked.endpoint.api,
        "duration_s": max((e.reply.end_s for e in sent if e.reply.end_s is not None), default=start_s) - start_s,
        "window_start_s": min(sent_s, default=None),
        "window_end_s": max(end_s, default=None),
        "requests_planned": len(measured),
        "requests_ok": sum(exchange.reply.ok for exchange in measured),
        **{f"requests_{error}": errors[error] for error in ERROR_CLASSES},
        "unmeasured_failed": sum(e.phase != "measured" and e.reply.error is not None for e in exchanges),
        "shared_prompt_tokens": sum(exchange.shared_tokens for exchange in sent),
        "sent_prompt_tokens": sum(exchange.prompt_tokens for exchange in sent),
        "cached_prompt_tokens": None if not cached or None in cached else sum(tokens or 0 for tokens in cached),
    }


def _asked_lengths(workload: Workload) -> Row:
    match workload:
        case AgentTurns() | Trace():  # lengths vary up to their limits
            prompt, longest, output = None, workload.context_limit_tokens, workload.output_limit_tokens
        case _:
            longest = workload.longest_sequence_tokens - workload.output_tokens
            prompt, output = longest, workload.output_tokens
    return {"prompt_tokens": prompt, "context_tokens": longest, "output_tokens": output}


def _marks(
    asked: _Asked,
    exchanges: Sequence[Exchange],
    rise: dict[str, int | None],
    pages: Sequence[Row],
    death: str | None,
    delays: Row,
    bound_s: float,
) -> list[str]:
    measured = [exchange for exchange in exchanges if exchange.phase == "measured"]
    others = [exchange for exchange in exchanges if exchange.phase != "measured"]
    sent = [exchange for exchange in exchanges if exchange.reply.sent_s is not None]
    marks = [] if death is None else [f"server_died: {death.splitlines()[0]}"]
    marks += verdict.failures(measured, others)
    marks += verdict.counters(pages)
    must_hit = isinstance(asked.workload, CachedPrefix | Contexts)
    exact = asked.endpoint.api == "completions"
    queries = rise["prefix_query_tokens"] if exact else None  # how many tokens the words are, only their answers tell
    marks += verdict.cache(sent, rise["prefix_hit_tokens"], queries, must_hit=must_hit)
    if exact:
        marks += verdict.prompt_lengths(sent)
    return marks + verdict.client(delays, bound_s)


def _p50_p99(name: str, values: Sequence[float]) -> Row:
    """Median and 99th percentile, each null if the sample cannot bound it."""
    found = {suffix: latency.percentile(values, fraction) for suffix, fraction in (("p50", 0.5), ("p99", 0.99))}
    return {f"{name}_{suffix}_s": value if isinstance(value, float) else None for suffix, value in found.items()}


def _request_row(asked: _Asked, number: int, exchange: Exchange, start_s: float) -> Row:
    reply = exchange.reply
    times = {
        name: None if (at_s := getattr(reply, name)) is None else at_s - start_s
        for name in ("sent_s", "first_byte_s", "first_output_s", "first_answer_s", "last_output_s", "end_s")
    }
    source, first_tokens, last_tokens = reply.output_counts()
    scheduled_s = None if exchange.scheduled_s is None else exchange.scheduled_s - start_s
    latencies: Row = dict.fromkeys(("ttft_s", "ttfa_s", "tpot_s", "rate_tok_per_s", "e2e_s", "response_s"))
    sent_s, first_s, last_s = times["sent_s"], times["first_output_s"], times["last_output_s"]
    if reply.ok and sent_s is not None and first_s is not None and last_s is not None:
        latencies = {
            "ttft_s": latency.ttft_s(sent_s, first_s),
            "ttfa_s": latency.ttfa_s(sent_s, times["first_answer_s"]),
            "tpot_s": (tpot_s := latency.tpot_s(first_s, last_s, first_tokens, last_tokens)),
            "rate_tok_per_s": latency.rate_tok_per_s(tpot_s),
            "e2e_s": latency.e2e_s(sent_s, last_s),
            "response_s": None if scheduled_s is None else latency.response_s(scheduled_s, last_s),
        }
    return {
        "cell": asked.cell,
        "request": number,
        "stream": exchange.stream,
        "streams": None if isinstance(asked.workload, Arrivals) else asked.workload.most_streams,
        "turn": exchange.turn,
        "phase": exchange.phase,
        "outcome": "failed" if reply.error else "cancelled" if exchange.cancelled else "ok",
        "error": reply.error,
        "message": reply.message,
        "http_status": reply.http_status,
        "retried": reply.retried,
        "scheduled_s": scheduled_s,
        **times,
        **latencies,
        "asked_prompt_tokens": exchange.prompt_tokens,
        "asked_output_tokens": exchange.output_tokens,
        "shared_tokens": exchange.shared_tokens,
        "prompt_tokens": reply.prompt_tokens,
        "cached_tokens": reply.cached_tokens,
        "output_tokens": reply.output_tokens,
        "output_tokens_source": source,
        "first_chunk_tokens": first_tokens,
        "last_chunk_tokens": last_tokens,
        "output_chunks": sum(chunk.kind != "none" for chunk in reply.chunks),
        "content_chars": sum(map(len, reply.content)),
        "reasoning_chars": sum(map(len, reply.reasoning)),
        "tool_call_chars": sum(map(len, reply.tool_calls)),
        "finish_reason": reply.finish_reason,
        "received_bytes": reply.received_bytes,
    }


def _chunk_rows(cell: str, number: int, exchange: Exchange, start_s: float) -> Iterator[Row]:
    for index, chunk in enumerate(exchange.reply.chunks):
        yield {
            "cell": cell,
            "request": number,
            "chunk": index,
            "at_s": chunk.at_s - start_s,
            "kind": chunk.kind,
            "chars": chunk.chars,
            "tokens": chunk.tokens,
        }
