"""Measure one experiment on one host: boots, cells, tables, publication. The only command that starts a server.

    python -m spillway.measure e13_agents --host cpu

Everything raw stays in runs/<host>/<experiment>/<run id>/; its tables are published into data/<host>/ when all boots and
cells are done. A run that fails or is stopped publishes nothing, and its folder keeps what was measured until then.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import spillway
from spillway.engine import host as machine
from spillway.engine.errors import ServerError
from spillway.engine.lock import measuring
from spillway.engine.processes import process_memory
from spillway.engine.server import Launch, Server, serve, server_environment
from spillway.engine.tinymodel import write_model
from spillway.fit.architectures import describe
from spillway.fit.checkpoint import Folder, stored_bytes_by_component, stored_tensors
from spillway.fit.config import read_config
from spillway.fit.rows import Amount, memory_rows
from spillway.fit.weights import FitError, bytes_by_component
from spillway.load import capacity
from spillway.load.latency import TooFewSamples
from spillway.load.run import Endpoint, run_cell
from spillway.record import manifest, parquet
from spillway.record.parquet import RecordError
from spillway.record.provenance import commit, new_run
from spillway.spec.experiment import NotRun, Resolved, names, resolve
from spillway.spec.host import TinyMoe
from spillway.spec.read import SpecError

Rows = list[dict[str, Any]]
Amounts = dict[str, Amount]


class MeasureError(Exception):
    """A measurement cannot start; the message says what is missing and how to make it."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one experiment: where its raw data go and how it reports."""

    asked: Resolved
    root: Path
    id: str
    log: TextIO

    @property
    def folder(self) -> Path:
        return self.root / "runs" / self.asked.host_name / self.asked.name / self.id

    def say(self, text: str) -> None:
        """One line for the person who waits, and for the log."""
        now = datetime.datetime.now(datetime.UTC)
        for stream in (sys.stderr, self.log):
            print(f"{now:%H:%M:%S} {self.asked.name}: {text}", file=stream, flush=True)


def measure(root: Path, name: str, host_name: str, log: TextIO) -> list[Path]:
    """Measure an experiment anew and publish it; returns the published files, none where the host does not run it.

    Raises SpecError, MeasureError, ServerError or RecordError; then nothing is published.
    """
    asked = resolve(root, name, host_name)
    if isinstance(asked, NotRun):
        print(f"{name}: not run on {host_name}: {asked.not_run}", file=sys.stderr)
        return []
    if not asked.host.measured:
        raise MeasureError(
            f"experiments/hosts/{host_name}.yaml: measured: found false: that host is described, not measured here"
        )
    with measuring(name):
        run = Run(asked, root, new_run(), log)
        run.folder.mkdir(parents=True)
        run.say(f"run {run.id} on {host_name}, {asked.on.boots} boot(s), {len(asked.on.workloads())} cell(s) each")
        launch = launch_of(asked, root)
        origin = _provenance(run, launch)
        tables: dict[str, Rows] = {}
        try:
            for boot in range(asked.on.boots):
                with serve(launch, run.folder / f"boot{boot}", ready_timeout_s=asked.host.engine.ready_timeout_s) as server:
                    run.say(f"boot {boot}: ready after {server.startup_s:.1f} s")
                    _measure_boot(run, boot, server, origin, tables)
        except BaseException:
            _write(run.folder / "partial", name, tables, origin)
            run.say(f"not finished, nothing published; what was measured is in {run.folder}")
            raise
        _write(run.folder, name, tables, origin)
        published = manifest.publish(run.folder, root / manifest.DATA)
        run.say(f"published {len(published)} tables in {published[0].parent}")
    return published


def launch_of(asked: Resolved, root: Path) -> Launch:
    """The server's command, environment and proofs for an experiment; makes the model if it is made on the spot."""
    engine, model = asked.host.engine, asked.model
    python = root / ".envs" / engine.environment / "bin" / "python"
    if not python.exists():
        raise MeasureError(
            f"{python}: no such interpreter; make the engine's environment with: scripts/setup {engine.environment}"
        )
    arguments = {"model": str(model_folder(asked, root)), "served-model-name": asked.on.model,
                 "max-model-len": model.max_model_len, **engine.arguments}  # fmt: skip
    command = [str(python), "-m", engine.module]
    for option, value in arguments.items():
        if value is not False:
            command += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    workloads = asked.on.workloads().values()
    longest = max((workload.longest_sequence_tokens for workload in workloads), default=256)
    return Launch(
        command=command,
        environment=dict(engine.variables),
        model=asked.on.model,
        vocabulary=range(model.first_prompt_token, model.last_prompt_token + 1),
        full_batch=max((workload.most_streams for workload in workloads), default=1),
        long_prefill_tokens=min(longest, model.max_model_len - 1),
        progress_timeout_s=engine.answer_timeout_s,
    )


def model_folder(asked: Resolved, root: Path) -> Path:
    """The model's folder with its config.json; raises MeasureError if it is absent or not the described one."""
    source = asked.model.source
    if isinstance(source, TinyMoe):
        folder = root / "build" / "models" / asked.on.model
        shape = source.model_dump(exclude={"kind", "sha256"})
        if (made := write_model(folder, shape)) != source.sha256:
            raise MeasureError(
                f"experiments/models/{asked.on.model}.yaml: source.sha256: found {source.sha256}; as made here: {made}"
            )
        return folder
    folder = Path(os.path.expandvars(source.path)).expanduser()
    if not (folder / "config.json").is_file():
        raise MeasureError(f"experiments/models/{asked.on.model}.yaml: source.path: no config.json in {folder}")
    return folder


def _measure_boot(run: Run, boot: int, server: Server, origin: dict[str, Any], tables: dict[str, Rows]) -> None:
    """Append the rows of one start of the server to `tables`, cell by cell."""

    def add(table: str, rows: Rows) -> None:
        tables.setdefault(table, []).extend({"run": run.id, "boot": boot} | row for row in rows)

    engine = f"vLLM {server.engine_version}" if server.engine_version else "vLLM, version not reported"
    if origin.setdefault("engine", engine) != engine:
        raise MeasureError(
            f"boot {boot} reports {engine}, earlier ones {origin['engine']}: boots of one run must be of one engine"
        )
    memory = process_memory(server.pid)
    add("boots", [{
        "startup_s": server.startup_s,
        "health_s": server.health_s,
        "process_memory_bytes": memory.pss_bytes,
        "weights_bytes": server.weights_bytes,
        "kv_cache_tokens": server.kv_cache_tokens,
    }])  # fmt: skip
    if run.asked.experiment.measures == "memory":
        add("memory", _memory(run, boot, server))
    cells = run.asked.on.workloads()
    requests: Rows = []
    for number, (cell, workload) in enumerate(cells.items(), start=1):
        run.say(f"boot {boot}: cell {number} of {len(cells)}: {cell}")
        result = asyncio.run(
            run_cell(
                Endpoint(
                    server.base_url,
                    server.launch.model,
                    vocabulary=server.launch.vocabulary,
                    first_output_timeout_s=server.launch.progress_timeout_s,
                    progress_timeout_s=server.launch.progress_timeout_s,
                ),
                workload,
                cell=cell,
                seed=run.asked.on.seed,
                nonce=f"{run.id}/{boot}",
                alive=server.alive,
            )
        )
        for table, rows in result.tables().items():
            add(table, rows)
        requests += result.requests
        for row in result.cells:
            if row["outcome"] != "measured":
                run.say(f"boot {boot}: {cell}: {row['outcome']}: {row['marks']}")
        server.check_alive()
    if (floor := run.asked.experiment.floor_tok_per_s) is not None:
        add("capacity", _capacity(run, floor, requests))


def _capacity(run: Run, floor_tok_per_s: float, requests: Rows) -> Rows:
    """For each situation, the speed of a stream at each level and the largest level that holds the floor."""
    judge = {"floor_tok_per_s": floor_tok_per_s, "margin_fraction": run.asked.experiment.margin_fraction}
    situations: dict[str, dict[int, Rows]] = {}
    for row in requests:
        level = situations.setdefault(run.asked.on.situations()[row["cell"]], {}).setdefault(row["streams"], [])
        if row["phase"] == "measured" and row["outcome"] == "ok" and row["rate_tok_per_s"] is not None:
            level.append(row)
    rows: Rows = []
    for situation, counted in situations.items():
        rates = {streams: [row["rate_tok_per_s"] for row in level] for streams, level in counted.items()}
        levels = [capacity.level(streams, rates[streams]) for streams in sorted(rates)]
        found = capacity.capacity(levels, **judge)
        for each in levels:
            rows.append(
                judge
                | {
                    "situation": situation,
                    "streams": each.streams,
                    "requests": len(rates[each.streams]),
                    "median_prompt_tokens": _median([row["prompt_tokens"] for row in counted[each.streams]]),
                    "median_tok_per_s": _known(each.median_tok_per_s),
                    "p5_tok_per_s": _known(each.p5_tok_per_s),
                    "holds": _known(capacity.holds(each, **judge)),
                    "capacity_streams": found.streams,
                    "capacity_is": "at least" if found.at_least else "exact",
                }
            )
    return rows


def _median(values: list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def _known(value: Any) -> Any:
    return None if isinstance(value, TooFewSamples) else value


def _memory(run: Run, boot: int, server: Server) -> Rows:
    """Predicted and measured bytes of a ready server: each component of the weights, the KV cache, the whole process."""
    folder = model_folder(run.asked, run.root)
    model = describe(read_config(folder))
    stored = stored_bytes_by_component(stored_tensors(Folder(folder)))
    predicted: Amounts = {name: Amount(size, "computed") for name, size in bytes_by_component(model.weights).items()}
    measured: Amounts = {name: Amount(size, "checkpoint header") for name, size in stored.items()}
    rows = memory_rows(run.id, boot, "checkpoint", predicted, measured)
    kv_predicted: Amounts = {}
    kv_measured: Amounts = {}
    if server.kv_cache_tokens is not None:
        kv_bytes = round(server.kv_cache_tokens * model.cache("bf16", 1).token_bytes)
        kv_predicted = {"KV cache": Amount(kv_bytes, "computed for the tokens that the engine's log names")}
    if isinstance(size := run.asked.host.engine.arguments.get("kv-cache-memory-bytes"), int):
        kv_measured = {"KV cache": Amount(size, "engine argument")}
    process: Amounts = {"whole process": Amount(process_memory(server.pid).pss_bytes, "process memory")}
    return rows + memory_rows(run.id, boot, "host", kv_predicted, kv_measured | process)


def _write(folder: Path, experiment: str, tables: dict[str, Rows], origin: dict[str, Any]) -> None:
    for table, rows in tables.items():
        if rows:  # a host without GPUs has no GPU telemetry
            parquet.write(folder / f"{experiment}.{table}.parquet", table, rows, origin)


def _provenance(run: Run, launch: Launch) -> dict[str, Any]:
    """What stands in every file of the run, so that each can be audited alone; the engine's version joins at the first boot."""
    asked = run.asked
    here = commit(run.root)
    lock = run.root / "envs" / f"{asked.host.engine.environment}.txt"
    return {
        "run": run.id,
        "experiment": asked.name,
        "host": asked.host_name,
        "host_title": asked.host.title,
        "model": asked.on.model,
        "model_title": asked.model.title,
        "weights": asked.model.weights,
        "spec_hash": asked.hash,
        "environment_hash": machine.environment_hash(launch.command[0], server_environment(launch.environment)),
        "lock_hash": parquet.sha256(lock),
        "model_config_hash": machine.model_config_hash(model_folder(asked, run.root)),
        "arguments_hash": hashlib.sha256(json.dumps(asked.host.engine.arguments, sort_keys=True).encode()).hexdigest(),
        "arguments": " ".join(launch.command[3:]),
        "commit": here.id,
        "dirty": here.dirty,
        "spillway": spillway.__version__,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **{f"host_{name}": value for name, value in machine.describe_host().items()},
    }


def _stop_with(parent: int) -> None:
    """End this process as SIGTERM does once its parent is gone: Snakemake, when killed, takes nobody along."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _log(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        with open(os.devnull, "w") as file:
            yield file
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            yield file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("experiment", nargs="?", help="name of a file in experiments/, without .yaml")
    parser.add_argument("--all", action="store_true", help="every experiment, one after the other")
    parser.add_argument("--host", required=True, help="name of a file in experiments/hosts/, without .yaml")
    parser.add_argument("--root", type=Path, default=Path("."))
    parser.add_argument("--stop-with-parent", action="store_true", help="stop when the process that started this one ends")
    parser.add_argument("--log", type=Path, help="file for the progress lines")
    options = parser.parse_args()
    if bool(options.experiment) == options.all:
        parser.error("give one experiment, or --all")
    if options.stop_with_parent:
        threading.Thread(target=_stop_with, args=(os.getppid(),), daemon=True).start()
    with _log(options.log) as log:
        try:
            for name in names(options.root) if options.all else [options.experiment]:
                measure(options.root, name, options.host, log)
        except (SpecError, MeasureError, ServerError, RecordError, FitError) as error:
            print(error, file=log)
            sys.exit(f"spillway: {error}")


if __name__ == "__main__":
    main()
