"""The load client beside `vllm bench serve`, on the same golden server, in one run.

    .envs/harness/bin/python benchmarks/load_client.py --engine .envs/engine-cpu/bin/python

Prints four tables (Markdown): error of TTFT and TPOT against what the server wrote and when; processor time per event;
receive delay against load; and the scenarios that each client reads wrongly. Takes about ten minutes. Nothing here is a
test: times depend on the machine, so run it on a quiet one.

Both clients run as processes of their own, one after the other, against a fresh server process each time. Truth comes from
the server's log: CLOCK_MONOTONIC when a request had arrived and at every write. An event's delay is the client's time for
it less the server's; vllm bench stores its start times on the same clock, so its events can be placed too.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "unit" / "load")]

STREAMS = 8
TOKENS = 100
RATE_TOK_PER_S = 50
REPEATS = 3
BOUND_S = 0.010  # of receive delay, 99th percentile: what a cell of Spillway is held to
LOADS = (8, 32, 64, 128, 192, 256, 384)
HANGS = ("11e", "23 ", "23b")  # scenarios in which a client without progress time-out waits for ever

MAKE_TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = ["<unk>", *(f"w{number}" for number in range(500))]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(sys.argv[1])
"""
# The package on the CPU is not named vllm, so its console script does not start; this is what the script would call, with
# the processor time of the benchmark proper, without imports.
VLLM_BENCH = """
import argparse, time
from vllm.benchmarks import serve
benchmark = serve.benchmark
async def timed(*arguments, **options):
    before_s = time.process_time()
    result = await benchmark(*arguments, **options)
    print(f"processor: {time.process_time() - before_s}", flush=True)
    return result
serve.benchmark = timed
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""


@dataclass
class Answer:
    """What a client says of one request; times are absolute, CLOCK_MONOTONIC."""

    text: str
    error: str
    tokens: int | None
    ttft_s: float | None
    tpot_s: float | None
    events_s: list[float]  # when it saw each event that it counts as output


@dataclass
class Run:
    answers: list[Answer]
    records: list[dict[str, Any]]  # the server's log
    cpu_s: float

    def pairs(self) -> Iterator[tuple[Answer, dict[str, Any]]]:
        """Each answer with its record: the first token of the golden server names the request."""
        for answer in self.answers:
            yield answer, self.records[int(answer.text.split()[0][1:])]

    def events(self) -> int:
        return sum(len(record["writes"]) for record in self.records)

    def delays_s(self) -> list[float]:
        late = []
        for answer, record in self.pairs():
            writes = [at_s for at_s, tokens in record["writes"] if tokens is not None]
            if len(answer.events_s) == len(writes) + 1:  # the role chunk counts as output there
                answer.events_s.pop(0)
            late += [seen - wrote for seen, wrote in zip(answer.events_s, writes, strict=True)]
        return late


@contextlib.contextmanager
def golden(*flags: str) -> Iterator[str]:
    command = [sys.executable, str(ROOT / "tests" / "golden_server.py"), "--port", "0", "--max-model-len", "1000000", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(line.split()[-1] for line in process.stdout if "startup complete" in line)
        finally:
            process.terminate()


def log_of(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(url + "/golden/log", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["requests"]
    return found


class Vllm:
    """`vllm bench serve` as a subprocess."""

    name = "vllm bench serve"

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.tokenizer = folder / "tokenizer"
        subprocess.run([python, "-c", MAKE_TOKENIZER, str(self.tokenizer)], check=True, capture_output=True)

    def version(self) -> str:
        asked = "import importlib.metadata as m; print(m.version(m.packages_distributions()['vllm'][0]))"
        return subprocess.run([self.python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()

    def run(self, url: str, chat: bool, streams: int, requests: int, tokens: int) -> Run:
        kind, path = ("openai-chat", "/v1/chat/completions") if chat else ("openai", "/v1/completions")
        options = {
            "backend": kind, "endpoint": path, "base-url": url, "model": "golden", "tokenizer": str(self.tokenizer),
            "dataset-name": "random", "random-input-len": "100", "random-output-len": str(tokens), "temperature": "0",
            "num-prompts": str(requests), "max-concurrency": str(streams), "ready-check-timeout-sec": "0",
            "result-dir": str(self.folder), "result-filename": "result.json",
        }  # fmt: skip
        command = [self.python, "-c", VLLM_BENCH, *(part for name, value in options.items() for part in (f"--{name}", value))]
        command += ["--save-result", "--save-detailed", "--disable-tqdm", "--ignore-eos"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        cpu_s = next(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("processor:"))
        result = json.loads((self.folder / "result.json").read_text())
        columns = ("generated_texts", "errors", "output_lens", "ttfts", "itls", "start_times")
        answers = []
        for text, error, count, ttft_s, gaps_s, start_s in zip(*(result[name] for name in columns), strict=True):
            first_s = start_s + ttft_s
            events_s = [first_s]
            for gap_s in gaps_s:
                events_s.append(events_s[-1] + gap_s)
            # Its own definition: (latency - ttft) / (N - 1), latency ending at its last event.
            tpot_s = (events_s[-1] - first_s) / (count - 1) if count and count > 1 else None
            answers.append(Answer(text, error, count, ttft_s, tpot_s, events_s))
        return Run(answers, log_of(url), cpu_s)


class Spillway:
    """The load client as a subprocess: the streams of a cell, driven as a cell drives them."""

    name = "spillway"

    def run(self, url: str, chat: bool, streams: int, requests: int, tokens: int) -> Run:
        asked = [url, str(int(chat)), str(streams), str(requests), str(tokens)]
        done = json.loads(subprocess.run([sys.executable, __file__, "--drive", *asked], check=True, capture_output=True).stdout)
        return Run([Answer(**answer) for answer in done["answers"]], log_of(url), done["cpu_s"])


async def drive_here(url: str, chat: bool, streams: int, requests: int, tokens: int) -> dict[str, Any]:
    """In the subprocess: the measured requests of one prompt sweep."""
    from spillway.load.client import Client, Endpoint
    from spillway.load.drive import Tally, drive, no_collection
    from spillway.load.latency import tpot_s, ttft_s
    from spillway.load.prompts import Alphabet
    from spillway.load.turns import plan
    from spillway.spec.workload import PromptSweep

    endpoint = Endpoint(url, "golden", api="chat" if chat else "completions", vocabulary=range(10, 500))
    sweep = PromptSweep(
        kind="prompt_sweep", prompt_tokens=100, output_tokens=tokens, requests=requests, streams=streams, warmup=0
    )
    alphabet = Alphabet.words() if chat else Alphabet.token_ids(range(10, 500))
    work = plan(sweep, alphabet, seed=0, nonce=str(time.time()), cell="benchmark")
    tally = Tally(warming=0, measured=requests)
    async with Client(endpoint) as client:
        await client.warm()
        with no_collection():
            tally.start()
            before_s = time.process_time()
            exchanges = await drive(client, work, tally)
            cpu_s = time.process_time() - before_s
    answers = []
    for exchange in exchanges:
        reply = exchange.reply
        if exchange.phase != "measured" or reply.sent_s is None:
            continue
        first_s, last_s, (_, first, last) = reply.first_output_s, reply.last_output_s, reply.output_counts()
        whole = reply.ok and first_s is not None and last_s is not None
        answers.append(
            vars(
                Answer(
                    "".join(reply.content),
                    reply.error or "",
                    reply.output_tokens,
                    ttft_s(reply.sent_s, first_s) if whole and first_s is not None else None,
                    tpot_s(first_s, last_s, first, last) if first_s is not None and last_s is not None else None,
                    [chunk.at_s for chunk in reply.chunks if chunk.kind != "none"],
                )
            )
        )
    return {"answers": answers, "cpu_s": cpu_s}


def truth(record: dict[str, Any]) -> tuple[float, float]:
    """TTFT and TPOT as the server wrote them: from arrival to the first output; over the tokens after the first chunk."""
    outputs = [(at_s, tokens) for at_s, tokens in record["writes"] if tokens is not None]
    (first_s, first), (last_s, last) = outputs[0], outputs[-1]
    return first_s - record["arrival_s"], (last_s - first_s) / (last - first)


def percentile(values: list[float], fraction: float) -> float:
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


def print_table(title: str, head: list[str], rows: list[list[str]]) -> None:
    print(f"\n### {title}\n")
    for row in [head, ["---"] * len(head), *rows]:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def accuracy(clients: list[Any]) -> None:
    cases = {
        "completions, one token per chunk": (False, []),
        "completions, four tokens per chunk": (False, ["--tokens-per-chunk", "4"]),
        "chat, one token per chunk": (True, []),
        "chat, role chunk 0.1 s before the first token": (True, ["--role-delay-s", "0.1"]),
    }
    rows = []
    for case, (chat, flags) in cases.items():
        for client in clients:
            ttft, tpot = [], []
            for _ in range(REPEATS):
                with golden("--tokens-per-second", str(RATE_TOK_PER_S), *flags) as url:
                    run = client.run(url, chat, STREAMS, 4 * STREAMS, TOKENS)
                for answer, record in run.pairs():
                    true_ttft_s, true_tpot_s = truth(record)
                    ttft.append(abs(answer.ttft_s - true_ttft_s))
                    tpot.append(abs(answer.tpot_s - true_tpot_s))
            cells = [statistics.median(ttft) * 1e3, percentile(ttft, 0.95) * 1e3]
            cells += [statistics.median(tpot) * 1e6, percentile(tpot, 0.95) * 1e6]
            rows.append([case, client.name, *(f"{cell:.3f}" if cell < 10 else f"{cell:.0f}" for cell in cells)])
    head = ["stream", "client", "TTFT error p50 (ms)", "p95 (ms)", "TPOT error p50 (us)", "p95 (us)"]
    print_table(
        f"Error against truth, {STREAMS} streams at {RATE_TOK_PER_S} tok/s, {REPEATS} runs of {4 * STREAMS}", head, rows
    )


def processor(clients: list[Any]) -> None:
    """Slope over two run lengths of the processor time spent while requests are out, so that what happens once cancels."""
    rows = []
    for client in clients:
        slopes = []
        for _ in range(REPEATS):
            used = []
            for rounds in (2, 12):
                with golden("--tokens-per-second", str(RATE_TOK_PER_S)) as url:
                    run = client.run(url, False, STREAMS, rounds * STREAMS, TOKENS)
                    used.append((run.cpu_s, run.events()))
            (short_s, few), (long_s, many) = used
            slopes.append((long_s - short_s) / (many - few) * 1e6)
        rows.append([client.name, f"{statistics.median(slopes):.0f}", f"{min(slopes):.0f} to {max(slopes):.0f}"])
    print_table(
        f"Processor time per event, {STREAMS} streams at {RATE_TOK_PER_S} tok/s", ["client", "us, median", "range"], rows
    )


def load(clients: list[Any]) -> None:
    rows = []
    for streams in LOADS:
        for client in clients:
            with golden("--tokens-per-second", str(RATE_TOK_PER_S)) as url:
                run = client.run(url, False, streams, 2 * streams, TOKENS)
            late = run.delays_s()
            p50_s, p99_s = statistics.median(late), percentile(late, 0.99)
            verdict = "within" if p99_s <= BOUND_S else "beyond"
            writes = [at_s for record in run.records for at_s, tokens in record["writes"] if tokens is not None]
            served = len(writes) / (max(writes) - min(writes))
            row = [str(streams), str(streams * RATE_TOK_PER_S), f"{served:.0f}", client.name]
            rows.append([*row, f"{p50_s * 1e3:.3f}", f"{p99_s * 1e3:.3f}", verdict])
    head = ["streams", "events/s asked", "served", "client", "delay p50 (ms)", "p99 (ms)", f"bound {BOUND_S * 1e3:g} ms"]
    print_table("Receive delay against load (client and server share this machine)", head, rows)


def scenarios(vllm: Vllm) -> None:
    from scenarios import SCENARIOS
    from test_scenarios import ask

    rows = []
    wrong = {"spillway": 0, "vllm": 0}
    asked = [scenario for scenario in SCENARIOS if not scenario.name.startswith(HANGS)]
    with golden() as url:
        scripts = json.dumps([scenario.script for scenario in asked]).encode()
        urllib.request.urlopen(urllib.request.Request(url + "/golden/scripts", scripts), timeout=30).close()
        theirs = vllm.run(url, True, 1, len(asked), 5)
    answers = dict(zip((scenario.name for scenario in asked), zip(theirs.answers, theirs.records, strict=True), strict=True))
    for scenario in SCENARIOS:
        reply, record, _ = asyncio.run(ask(scenario))
        ours = Answer("".join(reply.content), reply.error or "", reply.output_tokens, None, None, [])
        if reply.sent_s is not None and reply.first_output_s is not None:
            ours.ttft_s = reply.first_output_s - reply.sent_s
        outputs = [at_s for at_s, tokens in record.writes if tokens is not None]
        verdict = fault(scenario, ours, outputs[0] - record.arrival_s if outputs else None)
        if not verdict and reply.error != scenario.error:
            verdict = f"class {reply.error}"
        wrong["spillway"] += bool(verdict)
        if scenario.name in answers:
            answer, their_record = answers[scenario.name]
            their_outputs = [at_s for at_s, tokens in their_record["writes"] if tokens is not None]
            their_verdict = fault(scenario, answer, their_outputs[0] - their_record["arrival_s"] if their_outputs else None)
            wrong["vllm"] += bool(their_verdict)
        else:
            their_verdict = "not asked: it has no progress time-out"
        rows.append([scenario.name, verdict or "right", their_verdict or "right"])
    rows.append(["wrong", str(wrong["spillway"]), f"{wrong['vllm']} of {len(asked)}"])
    print_table("Scenarios", ["scenario", "spillway", "vllm bench serve"], rows)


def fault(scenario: Any, answer: Answer, true_ttft_s: float | None) -> str:
    """What is wrong with a client's reading of a scenario; empty if nothing. Only what both clients report is judged."""
    if bool(answer.error) != (scenario.error is not None):
        return f"failed: {answer.error.strip().splitlines()[-1][:60]}" if answer.error else "success, silently"
    if answer.error:
        return ""
    if answer.text != scenario.content:
        return "text lost"
    if scenario.tokens is not None and answer.tokens != scenario.tokens:
        return f"{answer.tokens} tokens of {scenario.tokens}"
    cut = "cut" in scenario.script  # an event in pieces has no one time at which it was written
    if not cut and answer.ttft_s is not None and true_ttft_s is not None and abs(answer.ttft_s - true_ttft_s) > 0.1:
        return f"TTFT {answer.ttft_s * 1e3:.0f} ms, true {true_ttft_s * 1e3:.0f} ms"
    return ""


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        url, *numbers = sys.argv[2:]
        chat, streams, requests, tokens = map(int, numbers)
        json.dump(asyncio.run(drive_here(url, bool(chat), streams, requests, tokens)), sys.stdout)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default=str(ROOT / ".envs" / "engine-cpu" / "bin" / "python"), help="python with vLLM")
    parts = {"accuracy": accuracy, "processor": processor, "load": load}
    parser.add_argument("--only", choices=[*parts, "scenarios"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        vllm = Vllm(options.engine, Path(folder))
        print(f"spillway beside vllm bench serve of vLLM {vllm.version()}, Python {sys.version.split()[0]}")
        for name, part in parts.items():
            if options.only in (None, name):
                part([Spillway(), vllm])
        if options.only in (None, "scenarios"):
            scenarios(vllm)


if __name__ == "__main__":
    main()
