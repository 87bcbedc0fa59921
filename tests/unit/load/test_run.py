"""Cells against the golden server: rows, phases, counts and marks with known truth."""

import asyncio
import errno
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from golden_server import GoldenServer, Settings
from servers import SWEEP, cell_at, golden_process, run

from spillway.load import delay
from spillway.load.client import Client, Endpoint
from spillway.load.run import CellResult, _metrics
from spillway.record import parquet, tables

ROOT = Path(__file__).resolve().parents[3]


def only_cell(result: CellResult) -> dict[str, Any]:
    [cell] = result.cells
    return cell


def measured(result: CellResult) -> list[dict[str, Any]]:
    return [row for row in result.requests if row["phase"] == "measured"]


def marks(result: CellResult) -> list[str]:
    return [mark.split(":")[0] for mark in only_cell(result)["marks"].split("; ") if mark != "none"]


def test_a_cell_agrees_with_the_server_request_by_request(tmp_path: Path) -> None:
    result, server = run(SWEEP)
    cell = only_cell(result)
    assert (cell["outcome"], cell["marks"]) == ("measured", "none")
    assert (cell["requests_planned"], cell["requests_ok"]) == (6, 6)
    assert (cell["prefix_hit_tokens"], cell["cached_prompt_tokens"], cell["shared_prompt_tokens"]) == (0, 0, 0)
    assert cell["prefix_query_tokens"] == cell["sent_prompt_tokens"] == 100 * len(server.records)
    by_head = {tuple(record.prompt_head): record for record in server.records}
    bodies = {tuple(body["prompt"][:4]): body for body in server.bodies}
    assert len(by_head) == len(server.records) == len(result.requests)  # every prompt new from its first tokens
    rows = sorted(measured(result), key=lambda row: row["sent_s"])
    for row, record in zip(result.requests, sorted(server.records, key=lambda r: r.arrival_s), strict=True):
        if row["outcome"] != "ok":
            continue
        assert (row["prompt_tokens"], row["output_tokens"], row["output_tokens_source"]) == (100, 10, "continuous_usage")
        assert (row["first_chunk_tokens"], row["last_chunk_tokens"], row["output_chunks"]) == (1, 10, 10)
        assert row["ttft_s"] == pytest.approx(record.ttft_s(), abs=0.05) and row["ttft_s"] >= record.ttft_s()
        assert row["tpot_s"] == pytest.approx(record.tpot_s(), abs=0.005)
        assert row["rate_tok_per_s"] == pytest.approx(1 / row["tpot_s"])
        assert row["e2e_s"] == pytest.approx(row["ttft_s"] + 9 * row["tpot_s"])
    assert all(body["max_tokens"] == 10 and body["ignore_eos"] for body in bodies.values())
    assert rows[0]["sent_s"] == cell["window_start_s"]
    # The rows fit the column dictionary: nothing unknown, nothing missing, every type right.
    for table, found in result.tables().items():
        parquet.write(tmp_path / f"{table}.parquet", table, [{"run": "r", "boot": 0} | row for row in found], {})
        assert {"run", "boot", *found[0]} == set(tables.schema(table).names) if found else table == "gpu_metrics"


def test_warm_up_and_cool_down_keep_the_batch_full() -> None:
    # Streams of very different pace: agents pause, so some are through long before the others.
    workload = {
        "kind": "agent_turns", "streams": 3, "requests": 12, "context_limit_tokens": 2000, "output_limit_tokens": 30,
        "token_scale": 0.01, "output_scale": 0.1, "think_scale": 0.002, "think_limit_s": 0.2, "warmup": 2,
        "distributions": ROOT / "data" / "workloads" / "agent_turns.csv",
    }  # fmt: skip
    result, _ = run(workload)
    rows = result.requests
    per_stream = {stream: [row for row in rows if row["stream"] == stream] for stream in range(3)}
    first_measured_s = min(row["sent_s"] for row in measured(result))
    last_measured_s = max(row["end_s"] for row in measured(result))
    for stream in per_stream.values():
        phases = [row["phase"] for row in stream]
        assert phases == sorted(phases, key=["warmup", "measured", "cooldown"].index)
        assert phases.count("measured") == 4 and phases.count("warmup") >= 2
        assert stream[1]["end_s"] <= first_measured_s  # every stream was warm before any was measured
        assert stream[-1]["end_s"] >= last_measured_s or phases[-1] == "measured" or stream[-1]["outcome"] == "ok"
        for before, row in itertools.pairwise(stream):
            assert row["scheduled_s"] >= before["end_s"] - 1e-6  # closed loop
    assert all(row["outcome"] == "ok" for row in measured(result))
    assert {row["phase"] for row in rows if row["outcome"] == "cancelled"} <= {"cooldown"}
    # What was reused is what the client says it had sent, to the block.
    for row in measured(result):
        assert row["cached_tokens"] == row["shared_tokens"] // 16 * 16
    assert only_cell(result)["marks"] == "none"


def test_cached_prefix_is_cached_and_contexts_are_held() -> None:
    result, _ = run(
        {"kind": "cached_prefix", "prefix_tokens": 1000, "suffix_tokens": 40, "streams": 3, "output_tokens": 5, "requests": 6}
    )
    assert only_cell(result)["marks"] == "none"
    assert result.requests[0]["stream"] is None and result.requests[0]["cached_tokens"] == 0
    assert all(row["cached_tokens"] == 992 for row in result.requests[1:] if row["outcome"] == "ok")
    held = {"kind": "contexts", "streams": 2, "context_tokens": 1000, "suffix_tokens": 40, "output_tokens": 5, "requests": 6}
    result, _ = run(held)
    assert only_cell(result)["marks"] == "none"
    assert all(row["cached_tokens"] == 960 // 16 * 16 for row in measured(result))
    # A cache too small for even one of them: the contexts were not held, and the cell says so. One that holds the longer part
    # of the two would do by chance, when one stream is through before the other begins.
    result, _ = run(held, Settings(kv_cache_tokens=800, prompt_tokens_details=True))
    assert "not_cached" in marks(result)


@pytest.mark.parametrize("details", [True, False], ids=["by usage", "by counter"])
def test_prompts_seen_before_contaminate_a_cell(details: bool) -> None:  # S15
    async def cells(*nonces: str) -> list[CellResult]:
        settings = Settings(tokens_per_second=500, prompt_tokens_details=details, old_metric_names=True)
        async with GoldenServer(settings) as server:
            return [await cell_at(server.url, SWEEP, nonce=nonce) for nonce in nonces]

    _, other, again = asyncio.run(cells("run 1", "run 2", "run 1"))
    assert marks(other) == []
    assert marks(again) == ["contaminated"]
    assert only_cell(again)["outcome"] == "marked"
    assert only_cell(again)["prefix_hit_tokens"] >= 6 * 96  # 6 whole blocks of 16 of each prompt of 100


def test_a_server_that_tells_nothing_is_unknown_not_clean() -> None:
    plain = [
        {"data": {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}, "tokens": 1},
        {"data": {"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]}, "tokens": 2, "wait_s": 0.01},
    ]

    async def main() -> CellResult:
        async with GoldenServer(scripts=[{"steps": plain}] * 10) as server:
            server.metrics = lambda: ""  # type: ignore[method-assign]
            return await cell_at(server.url, SWEEP | {"streams": 1, "warmup": 0})

    result = asyncio.run(main())
    cell = only_cell(result)
    assert marks(result) == ["cache_unknown"]
    assert (cell["cached_prompt_tokens"], cell["prefix_hit_tokens"], cell["preemptions"]) == (None, None, None)
    assert result.server_metrics == []
    assert {(row["output_tokens_source"], row["tpot_s"]) for row in result.requests} == {("none", None)}


def test_a_server_that_restarts_between_two_requests_marks_the_cell() -> None:
    async def main() -> CellResult:
        async with GoldenServer(Settings(tokens_per_second=500, prompt_tokens_details=True)) as server:
            right, server.queries = server.metrics, 100_000

            def metrics() -> str:
                page, server.queries = right(), 0  # it restarts as soon as the cell has asked
                return page

            server.metrics = metrics  # type: ignore[method-assign]
            return await cell_at(server.url, SWEEP)

    result = asyncio.run(main())
    assert only_cell(result)["requests_ok"] == 6
    assert (only_cell(result)["outcome"], marks(result)) == ("marked", ["counters_fell"])


@pytest.mark.parametrize(
    ("head", "running"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=hex", 3.0),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip", None),
        (b"HTTP/1.1 302 Found\r\nlocation: //\x7f/", None),
    ],
)
def test_a_metrics_page_that_cannot_be_read_ends_no_cell(head: bytes, running: float | None) -> None:
    page = b"vllm:num_requests_running 3.0\n"

    async def main() -> dict[str, dict[str, float]]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head + b"\r\ncontent-length: %d\r\n\r\n" % len(page) + page)

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "golden", api="chat")
            async with Client(endpoint) as client:
                return await _metrics(client, endpoint)

    assert asyncio.run(main()) == ({} if running is None else {"0": {"running": running}})


def test_another_clients_traffic_contaminates_a_cell() -> None:
    async def main() -> CellResult:
        async with GoldenServer(Settings(prompt_tokens_details=True)) as server:
            own, _ = await asyncio.gather(
                cell_at(server.url, SWEEP), cell_at(server.url, SWEEP, nonce="somebody else", cell="theirs")
            )
            return own

    assert "contaminated" in marks(asyncio.run(main()))


def test_latency_from_the_schedule_beside_latency_from_send() -> None:  # S14
    workload = {
        "kind": "arrivals", "rate_per_s": 20.0, "burstiness": None, "prompt_tokens": 20, "output_tokens": 10, "requests": 8,
    }  # fmt: skip
    # 0.025 s of prefill and 9 gaps of 0.025 s: one slot serves four requests a second, and twenty are due.
    settings = Settings(tokens_per_second=40, prefill_tokens_per_second=800, prompt_tokens_details=True)
    result, server = run(workload, settings, endpoint={"max_concurrent": 1})
    rows, records = measured(result), server.records[:8]
    assert [row["scheduled_s"] - rows[0]["scheduled_s"] for row in rows] == pytest.approx([0.05 * i for i in range(8)])
    for number, (row, record) in enumerate(zip(rows, records, strict=True)):
        assert row["e2e_s"] == pytest.approx(record.last_output_s() - record.arrival_s, abs=0.1)
        waited_s = record.last_output_s() - records[0].last_output_s() - 0.05 * number
        assert row["response_s"] - rows[0]["response_s"] == pytest.approx(waited_s, abs=0.1)
    # On a machine of its own 0.25 s from send and 0.25 + 0.2 i from the schedule: 0.95 s on average.
    assert 0.245 < statistics.mean(row["e2e_s"] for row in rows) < 0.5
    assert statistics.mean(row["response_s"] for row in rows) > 0.925


def test_150_streams_at_once() -> None:  # S16
    with golden_process("--tokens-per-second", "5", "--prefill-tokens-per-second", "1e6") as server:
        workload = SWEEP | {"prompt_tokens": 20, "output_tokens": 8, "requests": 150, "streams": 150, "warmup": 0}
        result = asyncio.run(cell_at(server.url, workload, alive=server.alive))
        log = server.log()
    assert only_cell(result)["requests_ok"] == 150
    arrivals = sorted(record["arrival_s"] for record in log[:150])
    assert arrivals[-1] - arrivals[0] < 1.0
    assert max(record["open_requests"] for record in log) == 150


def test_several_processes_share_the_streams_out() -> None:
    with golden_process("--tokens-per-second", "50") as server:
        result = asyncio.run(cell_at(server.url, SWEEP | {"streams": 3}, alive=server.alive, processes=2))
    cell = only_cell(result)
    assert (cell["requests_ok"], cell["client_processes"], cell["marks"]) == (6, 2, "none")
    assert {row["stream"] for row in measured(result)} == {0, 1, 2}
    assert {row["process"] for row in result.client_metrics} <= {0, 1}
    assert cell["client_delay_p99_s"] is not None


def test_several_processes_share_the_slots_out() -> None:
    with golden_process("--tokens-per-second", "50") as server:
        options = {"alive": server.alive, "processes": 2}
        asyncio.run(cell_at(server.url, SWEEP | {"streams": 6}, endpoint={"max_concurrent": 3}, **options))
        assert max(record["open_requests"] for record in server.log()) == 3
        with pytest.raises(ValueError, match="processes: found 2; expected at most the 1 of max_concurrent"):
            asyncio.run(cell_at(server.url, SWEEP, endpoint={"max_concurrent": 1}, **options))


def test_kill_9_with_streams_open_ends_the_cell_in_seconds() -> None:  # S12
    with golden_process("--die-after-requests", "12", "--tokens-per-second", "20") as server:
        begin_s = time.monotonic()
        workload = SWEEP | {"output_tokens": 20, "requests": 80, "streams": 8, "warmup": 0}
        result = asyncio.run(cell_at(server.url, workload, alive=server.alive))
        took_s = time.monotonic() - begin_s
        assert server.process.wait() == -9
    cell = only_cell(result)
    # 8 whole answers took 1 s; the 13th request kills the server with 8 open.
    assert took_s < 6
    assert cell["outcome"] == "failed" and "server_died" in marks(result)
    assert (cell["requests_planned"], cell["requests_ok"]) == (80, 8)
    assert cell["requests_transport"] + cell["requests_connect"] + cell["requests_not_sent"] == 72
    assert cell["requests_transport"] >= 8 and cell["requests_not_sent"] >= 50
    unsent = [row for row in result.requests if row["error"] == "not_sent"]
    assert all(row["sent_s"] is None and row["ttft_s"] is None for row in unsent)
    failed = [row for row in result.requests if row["error"] == "transport"]
    assert all(row["ttft_s"] is None and row["message"] for row in failed)  # partial timings stay out of the latencies
    assert sum(row["first_output_s"] is not None for row in failed) >= 5  # and are kept
    turns = sorted((row["stream"], row["turn"]) for row in measured(result))
    assert turns == [(stream, turn) for stream in range(8) for turn in range(10)]  # each planned request has one row


def test_a_server_that_dies_while_the_prefix_is_read() -> None:
    with golden_process("--die-after-requests", "0", "--prefill-tokens-per-second", "5000") as server:
        workload = {
            "kind": "cached_prefix",
            "prefix_tokens": 900,
            "suffix_tokens": 9,
            "streams": 2,
            "output_tokens": 5,
            "requests": 6,
        }
        result = asyncio.run(cell_at(server.url, workload, alive=server.alive))
    cell = only_cell(result)
    assert (cell["outcome"], cell["requests_ok"]) == ("failed", 0)
    assert cell["requests_not_sent"] + cell["requests_connect"] == 6


def test_a_server_that_hangs() -> None:
    with golden_process("--hang-after-requests", "4", "--tokens-per-second", "500") as server:
        workload = SWEEP | {"streams": 1, "requests": 6, "warmup": 0}
        endpoint = {"first_output_timeout_s": 0.3}
        result = asyncio.run(cell_at(server.url, workload, alive=server.alive, endpoint=endpoint))
    cell = only_cell(result)
    assert (cell["requests_ok"], cell["requests_timeout"]) == (4, 2)
    assert marks(result) == ["failed_requests", "too_few_samples"]


def test_the_limit_ends_a_cell_and_says_what_was_not_sent() -> None:
    result, _ = run(SWEEP | {"requests": 60, "limit_s": 0.5, "output_tokens": 40})
    cell = only_cell(result)
    assert cell["requests_ok"] + cell["requests_not_sent"] == 60
    # Two streams whose answers take 40 tokens / 500 token/s = 80 ms send at most 7 each in 0.5 s, one of them warm-up.
    assert 2 <= cell["requests_ok"] <= 2 * 6
    sent_s = [row["sent_s"] for row in result.requests if row["sent_s"] is not None]
    assert max(sent_s) - min(sent_s) < 0.6  # the limit counts from the streams' start, not from the cell's
    assert cell["outcome"] == "marked" and "failed_requests" in marks(result)
    arrivals = {"kind": "arrivals", "rate_per_s": 20.0, "prompt_tokens": 9, "output_tokens": 3, "requests": 60, "limit_s": 0.5}
    cell = only_cell(run(arrivals)[0])
    assert cell["requests_ok"] + cell["requests_not_sent"] == 60 and 3 <= cell["requests_ok"] < 20


def test_what_waits_for_a_slot_is_not_sent_after_the_limit() -> None:
    workload = {
        "kind": "arrivals", "rate_per_s": 50.0, "burstiness": None, "prompt_tokens": 20, "output_tokens": 10, "requests": 40,
        "limit_s": 0.5,
    }  # fmt: skip
    # An answer takes 0.25 s and there is one slot: 25 requests are due within the limit, and most wait for it.
    result, server = run(workload, Settings(tokens_per_second=40), endpoint={"max_concurrent": 1})
    sent_s = [row["sent_s"] for row in result.requests if row["sent_s"] is not None]
    assert 1 <= len(sent_s) == len(server.records) and max(sent_s) - min(sent_s) < 0.6
    cell = only_cell(result)
    assert cell["requests_ok"] + cell["requests_not_sent"] == cell["requests_planned"] == 40
    assert cell["unmeasured_failed"] == 0


def test_what_is_cut_off_when_the_cell_ends_did_not_fail() -> None:
    workload = {
        "kind": "arrivals", "rate_per_s": 20.0, "burstiness": None, "prompt_tokens": 5, "output_tokens": 20, "requests": 6,
        "warmup": 4, "limit_s": 0.1,
    }  # fmt: skip
    result, _ = run(workload, Settings(tokens_per_second=5))  # no warm-up request is answered when the limit is over
    warmup = [(row["outcome"], row["message"]) for row in result.requests if row["phase"] == "warmup"]
    assert warmup and set(warmup) == {("cancelled", None)}
    assert only_cell(result)["unmeasured_failed"] == 0


def test_a_self_check_that_cannot_start_leaves_the_cell_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(delay.subprocess, "Popen", no_process)
    result, _ = run(SWEEP)
    assert only_cell(result)["requests_ok"] == 6 and only_cell(result)["marks"] == "client_delay: not measured"


def test_a_server_that_refuses_is_not_flooded() -> None:
    result, server = run(SWEEP | {"prompt_tokens": 5000})  # beyond its max_model_len
    cell = only_cell(result)
    assert (cell["outcome"], cell["requests_http_status"]) == ("failed", 6)
    assert len(server.records) < 30
    assert "maximum context length is 4096" in result.requests[0]["message"]


def test_a_client_beyond_its_bound_marks_the_cell() -> None:  # S17
    result, _ = run(SWEEP, client_delay_bound_s=1e-6)
    cell = only_cell(result)
    assert cell["outcome"] == "marked" and marks(result)[0] == "client_delay"
    assert 0 < cell["client_delay_p50_s"] <= cell["client_delay_p99_s"] < 30
    assert cell["client_delay_bound_s"] == 1e-6


def test_chat_prompts_are_words_and_counted_by_the_server() -> None:
    result, server = run(SWEEP, endpoint={"api": "chat", "vocabulary": None, "options": {}})
    assert only_cell(result)["marks"] == "none"
    assert {row["prompt_tokens"] for row in result.requests if row["outcome"] == "ok"} == {100}
    assert len(server.bodies[0]["messages"][0]["content"].split()) == 100
    assert "ignore_eos" not in server.bodies[0]
