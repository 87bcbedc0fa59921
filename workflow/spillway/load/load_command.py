"""`spillway load URL`: one workload against any OpenAI-compatible server, written as the same tables that experiments have."""

import argparse
import asyncio
import concurrent.futures
import datetime
import ipaddress
import json
import tempfile
import urllib.parse
from pathlib import Path
from typing import Any

import httpcore
import pydantic

import spillway
from spillway.load.client import Client, Endpoint
from spillway.load.latency import percentile
from spillway.load.progress import Progress
from spillway.load.run import CellResult, run_cell
from spillway.record import parquet
from spillway.record.provenance import new_run
from spillway.spec.json_text import parse_json
from spillway.spec.read import SpecError, read_yaml
from spillway.spec.shown import shown
from spillway.spec.workload import Workload, seed_option

CELL = "load"
MODELS_TIMEOUT_S = 30.0
_WORKLOAD: pydantic.TypeAdapter[Workload] = pydantic.TypeAdapter(Workload)


class LoadError(Exception):
    """The command cannot do what was asked; the message says what was found and what to do."""


def read_workload(asked: str) -> Workload:
    """The workload in a YAML or JSON file, or in JSON itself; raises LoadError or SpecError naming what is wrong there."""
    try:
        content = parse_json(asked) if asked.lstrip().startswith("{") else read_yaml(Path(asked))
    except ValueError as error:
        raise LoadError(f"--workload: {error}") from None
    try:
        return _WORKLOAD.validate_python(content)
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"][1:]))[:200] or "kind"
        raise LoadError(f"--workload: {key}: found {shown(fault['input'])}; expected: {fault['msg'][:500]}") from None


def load_url(
    endpoint: Endpoint, workload: Workload, folder: Path, *, seed: int = 0, processes: int = 1, bound_s: float = 0.010
) -> CellResult:
    """Run a workload against a server that somebody else started and write its tables to `folder`.

    The files are named load.<table>.parquet; boot is 0, since the server is not ours to start. Raises FileExistsError if
    the folder holds such files already, OSError if it can hold none, and LoadError if the server does not answer.
    """
    if found := sorted(folder.glob(f"{CELL}.*.parquet")):
        raise FileExistsError(f"{found[0]}: exists already; give another folder, measured rows are never overwritten")
    run = new_run()
    served = asyncio.run(_models(endpoint))
    if endpoint.model not in served:
        raise LoadError(f"{endpoint.root}: found the models {served}; expected {endpoint.model!r}, set --model to one of them")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):  # before anything is measured that could not be written
        pass
    progress = Progress(workload.kind)
    result = asyncio.run(
        run_cell(
            endpoint, workload, cell=CELL, seed=seed, nonce=run, alive=lambda: None, processes=processes,
            client_delay_bound_s=bound_s, gpus=_is_this_machine(endpoint.root), progress=progress,
        )
    )  # fmt: skip
    progress.close()
    origin = {
        "run": run,
        "experiment": CELL,
        "model": endpoint.model,
        "server": endpoint.root,
        "spillway": spillway.__version__,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    for table, rows in result.tables().items():
        keyed = [{"run": run, "boot": 0} | row for row in rows]
        parquet.write(folder / f"{CELL}.{table}.parquet", table, keyed, origin)
    return result


async def _models(endpoint: Endpoint) -> list[str]:
    async with Client(endpoint) as client:
        try:
            async with asyncio.timeout(MODELS_TIMEOUT_S):
                response = await client.get(endpoint.root + "/v1/models")
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, TimeoutError) as error:
            why = str(error) or f"none within {MODELS_TIMEOUT_S:g} s"
            raise LoadError(f"{endpoint.root}: no answer ({why}); is the server up, and is the address right?") from None
    try:
        return [str(model["id"]) for model in response.json()["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LoadError(
            f"{endpoint.root}/v1/models: status {response.status_code}, not a list of models: "
            f"{endpoint.hidden(response.content[:200].decode('utf-8', 'replace'))!r}"
        ) from None


def _is_this_machine(url: str) -> bool:
    """Whether the GPUs of this machine may be the server's."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def summary(result: CellResult) -> str:
    """What a person wants to see at once: how it ended, and the medians that the sample allows."""
    [cell] = result.cells
    measured = [row for row in result.requests if row["phase"] == "measured"]
    lines = [f"{cell['requests_ok']} of {cell['requests_planned']} requests ok, cell {cell['outcome']}"]
    if cell["marks"] != "none":
        lines.append(f"marks: {cell['marks']}")
    for column, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E"), ("response_s", "response time")):
        values = [row[column] for row in measured if row[column] is not None]
        p50, p95 = percentile(values, 0.5), percentile(values, 0.95)
        lines.append(f"{name:<14} median {_milliseconds(p50)}   p95 {_milliseconds(p95)}")
    return "\n".join(lines)


def _milliseconds(value: Any) -> str:
    return f"{1000 * value:.1f} ms" if isinstance(value, float) else str(value)


def main(argv: list[str]) -> int | str:
    """Run one workload; returns 0, 2 if the cell failed, or a message that says why it could not start."""
    parser = argparse.ArgumentParser(prog="spillway load", description=__doc__)
    parser.add_argument("url", help="of the server, for example http://127.0.0.1:8000")
    parser.add_argument("--model", required=True, help="name under which the server serves it")
    parser.add_argument(
        "--workload", required=True, help="a YAML or JSON file, or JSON itself; see spec/workload.py for the kinds"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables; made if absent")
    parser.add_argument("--token-ids", metavar="FIRST:LAST", help="send prompts of these token ids to /v1/completions")
    parser.add_argument("--api-key-variable", help="environment variable that holds the server's API key")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON", help="field of every request's body")
    parser.add_argument("--plain-usage", action="store_true", help="do not ask for token counts on every chunk")
    parser.add_argument("--max-concurrent", type=int, help="most requests in flight; more wait in the client")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=seed_option, default=0)
    parser.add_argument("--delay-bound-ms", type=float, default=10.0, help="most that the client may be late (p99)")
    asked = parser.parse_args(argv)
    try:
        workload = read_workload(asked.workload)
        first, _, last = (asked.token_ids or "").partition(":")
        endpoint = Endpoint(
            asked.url,
            asked.model,
            api="completions" if asked.token_ids else "chat",
            vocabulary=range(int(first), int(last) + 1) if asked.token_ids else None,
            api_key_variable=asked.api_key_variable,
            max_concurrent=asked.max_concurrent,
            options={name: json.loads(value) for name, _, value in (option.partition("=") for option in asked.option)},
            continuous_usage=not asked.plain_usage,
        )
        result = load_url(
            endpoint, workload, asked.out, seed=asked.seed, processes=asked.processes, bound_s=asked.delay_bound_ms / 1000
        )
    except concurrent.futures.BrokenExecutor:
        return (
            "spillway: a process of the client was ended from outside, so its share of the requests is unknown and no table "
            "was written; if nobody did it, the kernel did because memory ran out (`dmesg | tail`): run it again"
        )
    except (LoadError, SpecError, parquet.RecordError, OSError, ValueError) as error:
        return f"spillway: {error}"
    print(summary(result))
    return 0 if result.cells[0]["outcome"] != "failed" else 2
