"""Experiments on a server: launch it, send every cell's load, and keep the rows."""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spillway.engine import host as machine
from spillway.engine.errors import ServerDied, ServerNotReady
from spillway.engine.processes import process_memory
from spillway.engine.server import Launch, Server, serve, server_environment
from spillway.engine.tinymodel import write_model
from spillway.load import capacity
from spillway.load.latency import TooFewSamples
from spillway.load.progress import Progress
from spillway.load.run import Endpoint, run_cell
from spillway.measure.memory import found_stage, memory, predicted_stage
from spillway.measure.run import MeasureError, Rows, Run, Tables
from spillway.record import parquet
from spillway.spec.experiment import OnHost, Resolved
from spillway.spec.host import Argument, TinyMoe


def serve_and_measure(run: Run, on: OnHost, tables: Tables, origin: dict[str, Any]) -> None:
    """Append the rows of every boot and cell to `tables` as they come, and what is known of the engine to `origin`."""
    asked = run.asked
    launch = launch_of(asked, on, run.root)
    origin |= _provenance(run, on, launch)
    for boot in range(on.boots):
        with serve(launch, run.folder / f"boot{boot}", ready_timeout_s=asked.host.engine.ready_timeout_s) as server:
            run.say(f"boot {boot}: ready after {server.startup_s:.1f} s")
            _measure_boot(run, on, boot, server, origin, tables)
    for name, overrides in on.attempts.items():
        tables.setdefault("attempts", []).append(_attempt(run, on, name, overrides))


def _attempt(run: Run, on: OnHost, name: str, overrides: dict[str, Argument]) -> dict[str, Any]:
    """Start the server with other arguments and record where it failed, beside where it was predicted to."""
    asked = run.asked
    folder = run.folder / f"attempt {name}"
    launch = launch_of(asked, on, run.root, overrides)
    predicted = predicted_stage(asked.host, overrides, asked.served_model, model_folder(asked, on, run.root))
    run.say(f"attempt {name}: predicted to end at: {predicted}")
    started = time.monotonic()
    try:
        with serve(launch, folder, ready_timeout_s=asked.host.engine.ready_timeout_s):
            found, message = "fits", "the server became ready"
    except (ServerDied, ServerNotReady):
        found, message = found_stage((folder / "server.log").read_text(errors="replace"))
    run.say(f"attempt {name}: found: {found}: {message}")
    return {
        "run": run.id,
        "attempt": name,
        "arguments": json.dumps(overrides, sort_keys=True),
        "predicted": predicted,
        "found": found,
        "agrees": predicted == found,
        "message": message,
        "duration_s": time.monotonic() - started,
    }


def launch_of(asked: Resolved, on: OnHost, root: Path, overrides: Mapping[str, Argument] = MappingProxyType({})) -> Launch:
    """The server's command, environment and proofs for an experiment; makes the model if it is made on the spot."""
    engine, model = asked.host.engine, asked.served_model
    python = root / ".envs" / engine.environment / "bin" / "python"
    if not python.exists():
        raise MeasureError(
            f"{python}: no such interpreter; make the engine's environment with: scripts/setup {engine.environment}"
        )
    arguments = {"model": str(model_folder(asked, on, root)), "served-model-name": on.model,
                 "max-model-len": model.max_model_len, **engine.arguments, **overrides}  # fmt: skip
    command = [str(python), "-m", engine.module]
    for option, value in arguments.items():
        if value is not False:
            command += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    workloads = on.workloads().values()
    longest = max((workload.longest_sequence_tokens for workload in workloads), default=256)
    return Launch(
        command=command,
        environment=dict(engine.variables),
        model=on.model,
        vocabulary=range(model.first_prompt_token, model.last_prompt_token + 1),
        full_batch=max((workload.most_streams for workload in workloads), default=1),
        long_prefill_tokens=min(longest, model.max_model_len - 1),
        progress_timeout_s=engine.answer_timeout_s,
    )


def model_folder(asked: Resolved, on: OnHost, root: Path) -> Path:
    """The model's folder with its config.json; raises MeasureError if it is absent or not the described one."""
    source = asked.served_model.source
    if isinstance(source, TinyMoe):
        folder = root / "build" / "models" / on.model
        shape = source.model_dump(exclude={"kind", "sha256"})
        if (made := write_model(folder, shape)) != source.sha256:
            raise MeasureError(
                f"experiments/models/{on.model}.yaml: source.sha256: found {source.sha256}; as made here: {made}"
            )
        return folder
    folder = Path(os.path.expandvars(source.path)).expanduser()
    if not (folder / "config.json").is_file():
        raise MeasureError(f"experiments/models/{on.model}.yaml: source.path: no config.json in {folder}")
    return folder


def _measure_boot(run: Run, on: OnHost, boot: int, server: Server, origin: dict[str, Any], tables: Tables) -> None:
    """Append the rows of one start of the server to `tables`, cell by cell."""

    def add(table: str, rows: Rows) -> None:
        tables.setdefault(table, []).extend({"run": run.id, "boot": boot} | row for row in rows)

    engine = f"vLLM {server.engine_version}" if server.engine_version else "vLLM, version not reported"
    if origin.setdefault("engine", engine) != engine:
        raise MeasureError(
            f"boot {boot} reports {engine}, earlier ones {origin['engine']}: boots of one run must be of one engine"
        )
    add("boots", [{
        "startup_s": server.startup_s,
        "health_s": server.health_s,
        "process_memory_bytes": process_memory(server.pid).pss_bytes,
        "weights_bytes": server.weights_bytes,
        "kv_cache_tokens": server.kv_cache_tokens,
    }])  # fmt: skip
    if run.asked.experiment.measures == "memory":
        add("memory", memory(run, model_folder(run.asked, on, run.root), boot, server))
    cells = on.workloads()
    requests: Rows = []
    for number, (cell, workload) in enumerate(cells.items(), start=1):
        run.say(f"boot {boot}: cell {number} of {len(cells)}: {cell}")
        progress = Progress(cell)
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
                seed=on.seed,
                nonce=f"{run.id}/{boot}",
                alive=server.alive,
                progress=progress,
            )
        )
        progress.close()
        for table, rows in result.tables().items():
            add(table, rows)
        requests += result.requests
        for row in result.cells:
            if row["outcome"] != "measured":
                run.say(f"boot {boot}: {cell}: {row['outcome']}: {row['marks']}")
        server.check_alive()
    if (floor := run.asked.experiment.floor_tok_per_s) is not None:
        add("capacity", _capacity(run, on, floor, requests))


def _capacity(run: Run, on: OnHost, floor_tok_per_s: float, requests: Rows) -> Rows:
    """For each situation, the speed of a stream at each level and the largest level that holds the floor."""
    judge = {"floor_tok_per_s": floor_tok_per_s, "margin_fraction": run.asked.experiment.margin_fraction}
    situations: dict[str, dict[int, Rows]] = {}
    for row in requests:
        level = situations.setdefault(on.situations()[row["cell"]], {}).setdefault(row["streams"], [])
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


def _provenance(run: Run, on: OnHost, launch: Launch) -> dict[str, Any]:
    """What is known of the engine and the model before the server runs; its version joins at the first boot."""
    asked = run.asked
    return {
        "model": on.model,
        "model_title": asked.served_model.title,
        "weights": asked.served_model.weights,
        "environment_hash": machine.environment_hash(launch.command[0], server_environment(launch.environment)),
        "lock_hash": parquet.sha256(run.root / "envs" / f"{asked.host.engine.environment}.txt"),
        "model_config_hash": machine.model_config_hash(model_folder(asked, on, run.root)),
        "arguments": " ".join(launch.command[3:]),
    }
