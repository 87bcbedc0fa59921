"""What is fuzzed: every function of the product that reads what somebody else wrote, with samples and its own errors.

Each reader takes bytes and a folder of its own to write them into. It may return, or raise one of `errors`; facts that
anything read must fulfil are asserted here.
"""

import asyncio
import contextlib
import io
import itertools
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx
from mutations import Form

from spillway.engine import lock, readiness, topology
from spillway.engine.host import cpu_model
from spillway.engine.server import Server
from spillway.engine.tinymodel import SHAPE, Tensor, configuration, safetensors
from spillway.fit.budget import capacity_of, stage_of_log
from spillway.fit.checkpoint import INDEX, SINGLE, Folder, stored_bytes_by_component, stored_tensors
from spillway.fit.command import answer
from spillway.fit.command import parser as fit_parser
from spillway.fit.hub import HubFiles, resolve_url
from spillway.fit.published import published_model
from spillway.fit.weights import FitError
from spillway.load import scrape
from spillway.load.agents import AgentModel
from spillway.load.client import Reply, _StreamReader
from spillway.load.load_command import LoadError, read_workload
from spillway.load.sse import SseParser
from spillway.load.trace import read_sessions
from spillway.paper.typed import Allowed
from spillway.placement import journal as swaps
from spillway.placement.counts import ExpertCounts, LayerCounts, load_counts
from spillway.placement.plan import (
    Choice,
    ModelIdentity,
    Plan,
    PlanError,
    check_model,
    identify_model,
    import_bare,
    load_plan,
    moe_layers,
    read_json,
)
from spillway.placement.routing import SyntheticRouting
from spillway.quality import teacher
from spillway.quality.answers import _answer, _score
from spillway.quality.ask import Endpoint as RemoteEndpoint
from spillway.quality.errors import QualityError
from spillway.quality.items import Item, load_items
from spillway.quality.replies import Journal
from spillway.record import journal as run_events
from spillway.record import manifest, parquet
from spillway.record.parquet import RecordError
from spillway.seats.activity import activity
from spillway.seats.case import published_case
from spillway.seats.errors import SeatsError
from spillway.seats.logs import read_logs
from spillway.seats.seats_command import _parser as seats_parser
from spillway.seats.seats_command import _profile, case_of
from spillway.seats.trace import read_trace
from spillway.spec.experiment import Resolved, resolve
from spillway.spec.host import Host, Model
from spillway.spec.number import Figures, Numbers
from spillway.spec.quality import TaskName
from spillway.spec.read import SpecError, read

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Reader:
    """One reader of the product: how to call it, what it may raise, and samples that it reads."""

    name: str
    form: Form
    errors: tuple[type[Exception], ...]
    samples: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]
    odd: Callable[[], list[bytes]]
    """More to start from, which need not be readable."""


READERS: dict[str, Reader] = {}


def reader(
    form: Form, samples: Callable[[], list[bytes]], *errors: type[Exception], odd: Callable[[], list[bytes]] = list
) -> Callable[[Callable[[bytes, Path], object]], Callable[[bytes, Path], object]]:
    """Enter a function into READERS under its name."""

    def enter(function: Callable[[bytes, Path], object]) -> Callable[[bytes, Path], object]:
        READERS[function.__name__] = Reader(function.__name__, form, errors, cache(samples), function, odd)
        return function

    return enter


def files(pattern: str, most: int = 20) -> Callable[[], list[bytes]]:
    """The files of the project that match, as samples."""
    return lambda: [path.read_bytes() for path in sorted(ROOT.glob(pattern))[:most]]


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- specifications -------------------------------------------------------------------------------------------------------


@reader("yaml", files("experiments/e*.yaml"), SpecError)
def experiment_yaml(content: bytes, folder: Path) -> None:
    if not (folder / "experiments/hosts").exists():
        shutil.copytree(ROOT / "experiments", folder / "experiments")
    put(folder, "experiments/e1.yaml", content)
    asked = resolve(folder, "e1", "cpu")
    if isinstance(asked, Resolved):
        assert re.fullmatch("[0-9a-f]{64}", asked.hash)


@reader("yaml", files("experiments/hosts/*.yaml"), SpecError, FitError)
def host_yaml(content: bytes, folder: Path) -> None:
    capacity_of(read(Host, put(folder, "host.yaml", content)))


@reader("yaml", files("experiments/models/*.yaml"), SpecError)
def model_yaml(content: bytes, folder: Path) -> None:
    model = read(Model, put(folder, "model.yaml", content))
    assert range(model.first_prompt_token, model.last_prompt_token + 1)


WORKLOADS = [
    b"{kind: prompt_sweep, streams: 2, requests: 4, warmup: 1, prompt_tokens: 100, output_tokens: 10, limit_s: 5.0}",
    b"kind: arrivals\nrate_per_s: 2.5\nburstiness: 1.0\nprompt_tokens: 8\noutput_tokens: 8\nrequests: 9\n",
    b"kind: agent_turns\nstreams: 1\nrequests: 3\ncontext_limit_tokens: 900\noutput_limit_tokens: 20\nthink_limit_s: 1.5\n",
    b"{kind: trace, path: x.parquet, requests: 3, context_limit_tokens: 900, output_limit_tokens: 20}",
]


@reader("yaml", lambda: WORKLOADS, SpecError, LoadError)
def workload_yaml(content: bytes, folder: Path) -> None:
    workload = read_workload(str(put(folder, "workload.yaml", content)))
    assert workload.most_streams >= 1 and workload.longest_sequence_tokens >= 1


@reader("yaml", lambda: [b"".join(files("paper/numbers.yaml")()[0].splitlines(keepends=True)[:40])], SpecError)
def numbers_yaml(content: bytes, folder: Path) -> None:
    read(Numbers, put(folder, "numbers.yaml", content))


@reader("yaml", files("paper/figures.yaml"), SpecError)
def figures_yaml(content: bytes, folder: Path) -> None:
    read(Figures, put(folder, "figures.yaml", content))


@reader("yaml", files("paper/allowed.yaml"), SpecError)
def allowed_yaml(content: bytes, folder: Path) -> None:
    read(Allowed, put(folder, "allowed.yaml", content))


# --- plans, counts, configurations ----------------------------------------------------------------------------------------

LAYERS = ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts")
IDENTITY = ModelIdentity(config_sha256="0" * 64, experts=4, top_k=2, expert_bytes=98304)


@cache
def plans() -> list[bytes]:
    full = Plan(
        model=IDENTITY,
        choice=Choice(builder="given", parameters={"note": "by hand", "share": 0.5}, counted_picks=7, host_share=0.25),
        layers={LAYERS[0]: (0, 3), LAYERS[1]: ()},
        parameters=("model.embed_tokens.weight",),
    )
    return [full.model_dump_json().encode(), full.model_copy(update={"parameters": ()}).model_dump_json(indent=1).encode()]


@reader("json", plans, PlanError)
def plan(content: bytes, folder: Path) -> None:
    path = put(folder, "plan.json", content)
    found = load_plan(path)
    found.save(path)
    assert load_plan(path) == found and load_plan(path).sha256 == found.sha256
    assert 0 <= found.host_experts <= found.all_experts
    with contextlib.suppress(PlanError):
        check_model(found, IDENTITY, LAYERS)


@reader("json", lambda: [b'{"model.layers.0.mlp.experts": [0, 3], "layers.1.mlp.experts": [2]}'], PlanError)
def bare_plan(content: bytes, folder: Path) -> None:
    path = put(folder, "bare.json", content)
    found = import_bare(read_json(path), IDENTITY, LAYERS, str(path))
    assert found.host_experts >= 1


@cache
def picks() -> list[bytes]:
    layers = {name: LayerCounts(decode=(1, 2, 3, 4), prefill=(9, 0, 7, 7)) for name in LAYERS}
    return [ExpertCounts(model=IDENTITY, origin="run", decode_rows=8, layers=layers).model_dump_json().encode()]


@reader("json", picks, PlanError)
def counts(content: bytes, folder: Path) -> None:
    found = load_counts(put(folder, "counts.json", content))
    assert re.fullmatch("[0-9a-f]{64}", found.sha256)
    assert all(min(picks) >= 0 for picks in found.picks().values())
    found.since(found)


@reader("text", lambda: [b"unpopular=3,share=0.05", b"unpopular=38,share=0.5,seed=7"], PlanError)
def routing_setting(content: bytes, folder: Path) -> None:
    routing = SyntheticRouting.parse(content.decode("utf-8", "surrogateescape"))
    assert routing.unpopular >= 1 and 0 <= routing.share <= 1


@cache
def configs() -> list[bytes]:
    tiny = configuration(SHAPE)
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0.mlp.gate"]}
    mixtral = {
        "architectures": ["MixtralForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False,
    }  # fmt: skip
    deepseek = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
        "quantization_config": fp8, "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }  # fmt: skip
    flash = dict(published_model("deepseek-v4.1-flash").config)
    return [json.dumps(each).encode() for each in (tiny, tiny | {"quantization_config": fp8}, mixtral, deepseek, flash)]


@reader("json", configs, FitError, SpecError, PlanError)
def model_config(content: bytes, folder: Path) -> None:
    """`spillway fit FOLDER`, from config.json to the report."""
    put(folder, "model/config.json", content)
    options = ["--host", "h200", "--root", str(ROOT), "--context", "4096"]
    report = answer(fit_parser().parse_args([str(folder / "model"), *options]))
    report.text()
    json.dumps(report.json())


@reader("json", lambda: [text for text in configs() if b"Mixtral" not in text and b"V41" not in text], PlanError)
def placed_config(content: bytes, folder: Path) -> None:
    """The identity and layer names that `spillway plan` takes out of a config.json."""
    config = read_json(put(folder, "config.json", content))
    assert identify_model(config).expert_bytes >= 1
    assert moe_layers(config)


@cache
def checkpoints() -> list[bytes]:
    import numpy as np

    shapes = {
        "model.embed_tokens.weight": (4, 2),
        "model.layers.0.mlp.experts.0.up_proj.weight": (2, 2),
        "lm_head.weight": (4, 2),
    }
    tensors = [Tensor(name, "BF16", shape, partial(np.zeros, shape, np.float32)) for name, shape in shapes.items()]
    return [b"".join(safetensors(tensors)), (2).to_bytes(8, "little") + b"{}"]


@reader("bytes", checkpoints, FitError)
def safetensors_header(content: bytes, folder: Path) -> None:
    put(folder, f"single/{SINGLE}", content)
    assert all(size >= 0 for size in stored_bytes_by_component(stored_tensors(Folder(folder / "single"))).values())


@cache
def indices() -> list[bytes]:
    names = ["model.embed_tokens.weight", "model.layers.0.mlp.experts.0.up_proj.weight", "lm_head.weight"]
    return [json.dumps({"metadata": {"total_size": 40}, "weight_map": dict.fromkeys(names, "a.safetensors")}).encode()]


@reader("json", indices, FitError)
def safetensors_index(content: bytes, folder: Path) -> None:
    put(folder, "sharded/a.safetensors", checkpoints()[0])
    put(folder, f"sharded/{INDEX}", content)
    stored_tensors(Folder(folder / "sharded"))


HUB = [
    b"206\nContent-Range: bytes 0-0/4096\nContent-Type: application/json\n\nb",
    b"200\n\nall of it",
    b"404\n\n",
    b"302\nLocation: http://127.0.0.1/elsewhere\n\n",
]


@reader("text", lambda: HUB[:1], FitError, odd=lambda: HUB)
def hub_reply(content: bytes, folder: Path) -> None:
    """What a server answers to a range request: status, headers, body."""
    head, _, body = content.partition(b"\n\n")
    status, *headers = head.split(b"\n")

    def reply(_: httpx.Request) -> httpx.Response:
        pairs = [tuple(line.split(b":", 1)) for line in headers if b":" in line]
        code = int(status) if status.isdigit() and len(status) == 3 else 206
        return httpx.Response(code, headers=[(name, value.strip()) for name, value in pairs if name.strip()], content=body)

    files = object.__new__(HubFiles)  # without the TLS context of its own client, which takes longer than all else
    files.base, files._sizes = "http://127.0.0.1/model", {}
    files._client = httpx.Client(transport=httpx.MockTransport(reply), follow_redirects=True)
    with files:
        if files.exists("config.json"):
            assert files.size("config.json") >= 0
            assert len(files.read("config.json", 0, 1)) <= 1


@reader("text", lambda: [b"https://huggingface.co/ORG/NAME/tree/main", b"http://127.0.0.1:8000/a/b/"], FitError)
def model_url(content: bytes, folder: Path) -> None:
    assert resolve_url(content.decode("utf-8", "surrogateescape")).startswith("http")


# --- logs -----------------------------------------------------------------------------------------------------------------

USAGE = {"input_tokens": 4, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 1, "output_tokens": 50}
CONTENT = [{"type": "text", "text": "abc"}, {"type": "tool_use", "id": "t", "input": {"a": 1}}]
ANSWER = {"id": "m1", "role": "assistant", "model": "m", "content": CONTENT, "usage": USAGE}
REPORT = {"type": "assistant", "uuid": "u3", "message": {"id": "m2", "content": [], "usage": {"output_tokens": 3}}}
CLAUDE = [
    {"type": "user", "timestamp": "2026-03-02T10:00:00Z", "sessionId": "s", "uuid": "u1", "message": {"content": "x"}},
    {"type": "assistant", "timestamp": "2026-03-02T10:00:02.5Z", "sessionId": "s", "uuid": "u2", "requestId": "r1",
     "message": ANSWER},
    {"type": "progress", "sessionId": "s", "timestamp": "2026-03-02T10:00:03Z", "data": {"agentId": "a", "message": REPORT}},
    {"type": "summary", "summary": "x"},
]  # fmt: skip
SOURCE = {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}}
COUNTED = {
    "total_token_usage": {"input_tokens": 9, "output_tokens": 3},
    "last_token_usage": {"input_tokens": 9, "output_tokens": 3},
}
CODEX = [
    {"type": "session_meta", "timestamp": "2026-03-02T10:00:00Z", "payload": {"id": "c", "source": SOURCE}},
    {"type": "response_item", "timestamp": "2026-03-02T10:00:01Z", "payload": {"type": "message", "role": "user"}},
    {"type": "response_item", "timestamp": "2026-03-02T10:00:04Z", "payload": {"type": "function_call"}},
    {"type": "event_msg", "timestamp": "2026-03-02T10:00:05Z", "payload": {"type": "token_count", "info": COUNTED}},
]
ATTRIBUTES = [
    {"key": "event.name", "value": {"stringValue": "api_request"}},
    {"key": "duration_ms", "value": {"intValue": "1500"}},
    {"key": "session.id", "value": {"stringValue": "s"}},
    {"key": "output_tokens", "value": {"intValue": "7"}},
]
EVENT = {
    "timeUnixNano": "1772445605000000000", "body": {"stringValue": "claude_code.api_request"}, "attributes": ATTRIBUTES,
}  # fmt: skip
OTEL = [
    {"resourceLogs": [{"scopeLogs": [{"logRecords": [EVENT]}]}]},
    {"body": "claude_code.api_request", "timestamp": "2026-03-02T10:00:05Z", "duration_ms": 900, "request_id": "q",
     "output_tokens": 4, "input_tokens": 2},
]  # fmt: skip


def lines(records: list[dict[str, Any]]) -> list[bytes]:
    return [b"".join(json.dumps(record).encode() + b"\n" for record in records)]


def read_log(content: bytes, folder: Path, name: str) -> None:
    found = activity([read_logs(put(folder, name, content))], 600.0).calls
    assert (found["output_tokens"] >= 0).all() and (found["context_tokens"] >= 0).all()
    assert all(math.isfinite(value) for value in [*found["start_s"], *found["end_s"]])
    assert (found["end_s"] >= found["start_s"]).all()


@reader("jsonl", lambda: lines(CLAUDE), SeatsError)
def claude_log(content: bytes, folder: Path) -> None:
    read_log(content, folder, "log.jsonl")


@reader("jsonl", lambda: lines(CODEX), SeatsError)
def codex_log(content: bytes, folder: Path) -> None:
    read_log(content, folder, "log.jsonl")


@reader("jsonl", lambda: lines(OTEL), SeatsError)
def otel_log(content: bytes, folder: Path) -> None:
    read_log(content, folder, "log.jsonl")


CSV_LOG = [
    b"start,end,output_tokens,context_tokens,stream\n"
    b"2026-03-02T10:00:00Z,2026-03-02T10:00:04Z,12,900,a\n"
    b"1772445605,1772445609.5,7,,b\n"
]


@reader("text", lambda: CSV_LOG, SeatsError)
def csv_log(content: bytes, folder: Path) -> None:
    read_log(content, folder, "log.csv")


@reader(
    "json",
    lambda: [
        b'{"what": "spillway usage profile 1", "q": 0.07, "own_streams": [0.9], "days": [{"developer": 0, "day": "2026-03-02", '
        b'"stream_s": 900.5, "window_s": 28800}, {"developer": 0, "day": "2026-03-03", "stream_s": 4, "window_s": 28800}]}'
    ],
    SeatsError,
)
def usage_profile(content: bytes, folder: Path) -> None:
    path = put(folder, "profile.json", content)
    options = ["--streams", "4", "--developers", "100", "--server-hour", "1", "--subscription", "2"]
    case_of(seats_parser().parse_args(["--profile", str(path), *options]), None, _profile(path))


# --- tables ---------------------------------------------------------------------------------------------------------------


@cache
def traces() -> list[bytes]:
    import pandas as pd

    full = pd.DataFrame(
        {
            "session": ["a", "a", "b"], "request": [0, 1, 0], "t": [0.0, 9.5, 0.0], "api_time": [1.5, None, 2.0],
            "input_tokens": [100.0, 300.0, None], "output_tokens": [5.0, 6.0, None], "think_time": [None, 3.0, 1.0],
            "common_blocks": [0.0, 1.0, None],
        }
    )  # fmt: skip
    variants = [
        full,
        full.astype({"t": "float32"}).assign(input_tokens=[100, 2**62, 5], output_tokens=[1, 2, 3], session=[1, 1, 2]),
        full.assign(t=["0", "9", "x"]),
        full.assign(input_tokens=[math.inf, -5.0, 1e300]),
        full.assign(common_blocks=[-1.0, 2.0**62, math.nan]),
        full.assign(api_time=[[1.0], [2.0], None]),
        full.assign(session=[{"a": 1}, {"a": 2}, None]),
        full.assign(think_time=pd.to_datetime(["2026-03-02"] * 3)),
        full.assign(api_time=pd.to_timedelta([1, 2, 3], unit="s")),
        full.assign(output_tokens=pd.Categorical(["a", "b", "a"])),
        pd.concat([full, full[["t"]]], axis=1).loc[:, lambda frame: ~frame.columns.duplicated()].iloc[:0],
    ]
    found = []
    for variant in variants:
        buffer = io.BytesIO()
        variant.to_parquet(buffer)
        found.append(buffer.getvalue())
    return found


@reader("bytes", lambda: traces()[:1], SeatsError, odd=traces)
def seats_trace(content: bytes, folder: Path) -> None:
    found = read_trace(put(folder, "trace.parquet", content))
    assert (found["reused_tokens"] <= found["context_tokens"]).all()


@reader("bytes", lambda: traces()[:1], FileNotFoundError, ValueError, odd=traces)
def load_trace(content: bytes, folder: Path) -> None:
    for session in read_sessions(put(folder, "trace.parquet", content)):
        assert all(request.think_s >= 0 and request.input_tokens >= 0 for request in session)


@reader("text", files("data/workloads/agent_turns.csv"), FileNotFoundError, ValueError)
def agent_distributions(content: bytes, folder: Path) -> None:
    found = AgentModel.read(put(folder, "agent_turns.csv", content))
    import numpy as np

    assert all(math.isfinite(found.draw(name, np.random.default_rng(0))) for name in found.quantiles)


@reader("bytes", files("data/cpu/e1_memory.*.parquet"), RecordError)
def record_parquet(content: bytes, folder: Path) -> None:
    path = put(folder, "x.parquet", content)
    parquet.provenance(path)
    parquet.read(path)


@reader("bytes", files("data/cpu/e1_memory.*.parquet"), RecordError)
def publish(content: bytes, folder: Path) -> None:
    """A run folder brought from another machine."""
    data = folder / "project" / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    put(folder, "run/e1_memory.memory.parquet", content)
    before = sorted(path for path in folder.rglob("*") if folder / "project" not in path.parents)
    for path in manifest.publish(folder / "run", data):
        assert data.resolve() in path.resolve().parents
    assert manifest.read_manifest(data)
    assert sorted(path for path in folder.rglob("*") if folder / "project" not in path.parents) == before


@reader("text", files("data/MANIFEST.csv"), RecordError)
def manifest_csv(content: bytes, folder: Path) -> None:
    put(folder, "MANIFEST.csv", content)
    found = manifest.read_manifest(folder)
    assert all(None not in row and None not in row.values() for row in found.values())


@reader("text", files("data/published/figures.csv"), RecordError, SeatsError)
def published_csv(content: bytes, folder: Path) -> None:
    published_case(parquet.read(put(folder, "figures.csv", content)), None, None)


# --- what servers say -----------------------------------------------------------------------------------------------------

STREAM = (
    b': ping\n\ndata: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
    b'data: {"choices": [{"delta": {"reasoning_content": "hm"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}\n\n'
    b'data: {"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]}\n\n'
    b'event: message\r\ndata: {"choices": [{"text": "a", "finish_reason": "stop"}],\r\ndata: "usage": null}\r\n\r\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, '
    b'"prompt_tokens_details": {"cached_tokens": 2}}}\n\n'
    b"data: [DONE]\n\n"
)


@reader("text", lambda: [STREAM, b'data: {"error": {"message": "out of memory"}}\n\n'])
def event_stream(content: bytes, folder: Path) -> None:
    """The body of an answer: read whole, and cut in two places, it must give the same."""
    found = []
    size = len(content)
    for cuts in ((0, size), (0, size // 3, size // 2, size)):
        reply, parser, events = Reply(), SseParser(), []
        stream = _StreamReader(reply)
        for start, stop in itertools.pairwise(cuts):
            stream.read(content[start:stop], 1.0)
            events += parser.feed(content[start:stop])
        stream.close()
        reply.output_counts()
        json.dumps([reply.prompt_tokens, reply.cached_tokens, reply.output_tokens, reply.finish_reason, reply.message])
        for count in (reply.prompt_tokens, reply.cached_tokens, reply.output_tokens):
            assert count is None or (type(count) is int and 0 <= count < 2**63)
        assert reply.finish_reason is None or isinstance(reply.finish_reason, str)
        assert all(isinstance(text, str) for text in [*reply.content, *reply.reasoning, *reply.tool_calls])
        found.append((events, reply.content, reply.output_tokens, reply.finish_reason, reply.error == "empty"))
    assert found[0] == found[1]


READY = b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [], "usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n'


@reader("text", lambda: [READY], readiness.Unanswered)
def readiness_stream(content: bytes, folder: Path) -> None:
    readiness._check(content, 1)


@reader("text", files("tests/unit/load/vllm_0_32_0_metrics.txt"))
def metrics_page(content: bytes, folder: Path) -> None:
    engines = scrape.parse_metrics(content.decode("utf-8", "replace"))
    for row in scrape.rows(1.0, engines):
        assert all(value is None or isinstance(value, str) or math.isfinite(value) for value in row.values())
    for column in scrape.COLUMNS:
        scrape.rise(engines, engines, column)


LOG = (
    b"INFO 11-30 03:00:00 [gpu_model_runner.py:1] Model loading took 12.34 GiB and 5.0 seconds\n"
    b"INFO 11-30 03:00:01 [kv_cache_utils.py:1] GPU KV cache size: 131,072 tokens\n"
    b"ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    b"ValueError: No available memory for the cache blocks.\n"
)


@reader("text", lambda: [LOG])
def server_log(content: bytes, folder: Path) -> None:
    """The lines of a server's log that become numbers."""
    server = object.__new__(Server)
    server.log = put(folder, "server.log", content)
    assert server.weights_bytes is None or server.weights_bytes >= 0
    assert server.kv_cache_tokens is None or server.kv_cache_tokens >= 0
    stage_of_log(server.log.read_text(errors="replace"))
    shown = server.log_tail().removeprefix(f"last lines of {server.log}")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown), "a terminal would obey the log"


@reader("text", lambda: [b"processor\t: 0\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: fpu\n"])
def cpuinfo(content: bytes, folder: Path) -> None:
    assert isinstance(cpu_model(content.decode("utf-8", "replace")), str)


@reader("json", lambda: [b'{"pid": 7, "experiment": "e13_agents", "since": "2026-03-02T10:00:00+00:00"}'])
def lock_holder(content: bytes, folder: Path) -> None:
    path = put(folder, "lock", content)
    with path.open("rb") as file:
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", lock._holder(file.fileno()))


# --- what tools, runs and models left -------------------------------------------------------------------------------------

GPU_TEXTS = [
    b"index, uuid, name, driver_version, pci.bus_id, memory.total [MiB], memory.used [MiB], mig.mode.current, "
    b"utilization.gpu [%]\n"
    b"0, GPU-1, NVIDIA H200, 570.1, 00000000:19:00.0, 143771, [N/A], Disabled, 3\n",
    b"pid, process_name, used_gpu_memory [MiB]\n77, python, 1024\n",
    b"\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV18\tPIX\t0-47,96-143\t0\t\tN/A\n"
    b"GPU1\tNV18\t X \tSYS\t48-95\t1\t\tN/A\nNIC0\tPIX\tSYS\t X \n",
    b"7f0000000000 default anon=512 N0=256 N1=256 kernelpagesize_kB=4\n7f00ffff0000 bind:1 N1=3 kernelpagesize_kB=2048\n",
    b"0-3,8",
    b"491520K",
]


@reader("text", lambda: GPU_TEXTS)
def gpu_texts(content: bytes, folder: Path) -> None:
    """What nvidia-smi and the kernel print about a machine."""
    text = content.decode("utf-8", "replace")
    topology.read_gpus(text)
    topology.read_gpu_processes(text)
    topology.read_matrix(text)
    numbers = topology.read_list(text)
    assert topology.read_list(topology.show_list(numbers)) == numbers
    assert all(size >= 0 for size in topology.read_numa_maps(text, 0x7F0000001000)[1].values())
    topology.cache_bytes(text)


SWAPS = [
    swaps.SwapRecord(step=3, t_s=1.5, layer=LAYERS[0], promoted=0, demoted=1, bytes=9, copy_s=0.1, map_s=0.1, outcome="done"),
    swaps.TrafficRecord(step=4, t_s=1.5, reads=7, host_reads=3),
    swaps.AuditRecord(step=4, t_s=1.6, layer=LAYERS[0], tensor="w", expert=0, memory="gpu", loaded="a", in_place="a"),
    swaps.EndRecord(step=5, t_s=2.0, reason="the server stops"),
]


@reader("jsonl", lambda: [b"".join(record.model_dump_json().encode() + b"\n" for record in SWAPS)], swaps.JournalError)
def swap_journal(content: bytes, folder: Path) -> None:
    records = swaps.load_journal(put(folder, "journal0.jsonl", content))
    found = swaps.residency_after({LAYERS[0]: [0, 3], LAYERS[1]: []}, records, experts=4, classes=1)
    assert all(0 <= expert < 4 for ids in found.values() for expert in ids)


@reader(
    "jsonl", lambda: [b'{"event": "started", "at": "x", "pid": 7}\n{"event": "stopped", "reason": "SIGTERM", "again": true}\n']
)
def run_journal(content: bytes, folder: Path) -> None:
    put(folder, run_events.FILE, content)
    assert all(isinstance(event["event"], str) for event in run_events.events(folder))


REPLY = {
    "system": "a", "task": "gsm8k", "item": "1", "order": 0, "request": {"model": "m"}, "headers": {}, "failures": ["HTTP 503"],
    "response": {"choices": [{"message": {"content": "#### 4"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}},
    "sent_at": "2026-03-02T10:00:00.000+00:00", "wall_s": 0.5,
}  # fmt: skip


@reader("jsonl", lambda: lines([REPLY, REPLY | {"item": "2", "response": None}]), QualityError)
def quality_replies(content: bytes, folder: Path) -> None:
    """The journal of a comparison that goes on, and what is taken out of each reply in it."""
    put(folder, "replies.jsonl", content)
    with Journal(folder, resume=True) as journal:
        for reply in journal.replies.values():
            assert all(0 <= score <= 1 for score in _answer(gsm8k_item(), reply).scores.values())


@cache
def gsm8k_item() -> Item:
    return load_items("gsm8k", "own", None)[0]


@cache
def all_items() -> list[Item]:
    tasks: tuple[TaskName, ...] = ("gsm8k", "humaneval", "ifeval")
    return [item for task in tasks for item in load_items(task, "own", None)[:12]]


TEXTS = [
    b"She buys 3 x $4.50 = $13.50.\n#### 13.50",
    b"Here is it:\n```python\nimport math\ndef f(x):\n    return x + 1\n```\nDone.",
    b'<<A title>>\n\n* one\n* two\n\n*highlight* [placeholder] SECTION 1\nP.S. bye. ***\n"quoted" {"json": [1, 2]}',
]


@reader("text", lambda: TEXTS)
def model_answer(content: bytes, folder: Path) -> None:
    """What a model said, under every task's extraction and checks."""
    for item in all_items():
        _, scores, _ = _score(item, content.decode("utf-8", "replace"))
        assert all(0 <= score <= 1 for score in scores.values())


LOGPROBS = [
    b'{"prompt_token_ids": [5, 7, 9], "token_ids": [1, 2], "prompt_logprobs": [null, {"7": {"logprob": -0.5, "rank": 1}}, '
    b'{"9": {"logprob": -2.5, "rank": 3}, "2": {"logprob": -0.25, "rank": 1}}]}'
]


@reader("json", lambda: LOGPROBS, QualityError)
def prompt_logprobs(content: bytes, folder: Path) -> None:
    """How a server reads a text, through the client that asks it."""
    body = b'{"choices": [%b]}' % content
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))

    async def ask() -> teacher.Reading:
        async with httpx.AsyncClient(transport=transport) as client:
            return await teacher._read(client, RemoteEndpoint("a", "http://127.0.0.1", "m"), "text", 2, 3)

    for position in asyncio.run(ask()).positions:
        assert position.token in position.top
