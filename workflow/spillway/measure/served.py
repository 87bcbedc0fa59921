"""Experiments on a server: launch it, send every cell's load, and keep the rows."""

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spillway.engine import host as machine
from spillway.engine.errors import ServerDied, ServerError, ServerNotReady
from spillway.engine.processes import process_memory
from spillway.engine.server import Server, serve, server_environment
from spillway.load.progress import Progress
from spillway.load.run import Endpoint, run_cell
from spillway.measure.arms import (
    HOST_READS,
    Way,
    arm_row,
    forget_prefixes,
    host_reads,
    launch,
    proof_columns,
    proved,
    set_cold_share,
    ways,
)
from spillway.measure.checkpoint import Ledger, Step, marked
from spillway.measure.errors import MeasureError
from spillway.measure.memory import MESSAGE_CHARS, found_stage, memory, predicted_stage
from spillway.measure.residency import residency
from spillway.measure.run import Rows, Run
from spillway.placement.proof import ProofError, RankProof
from spillway.record import parquet
from spillway.spec.arm import Arm
from spillway.spec.experiment import OnHost
from spillway.spec.host import Argument


def prepare(run: Run, on: OnHost) -> tuple[list[Way], dict[str, Any]]:
    """The ways to serve, with models and plans in place, and what is known of engine and model before a server runs.

    Raises MeasureError for a model, a plan or an engine that cannot be had.
    """
    each = ways(run, on)
    return each, _provenance(run, on, each)


def serve_and_measure(run: Run, on: OnHost, each: Sequence[Way], ledger: Ledger) -> None:
    """Measure every boot, arm and cell that `ledger` does not hold yet, and hand it their rows as they come.

    An arm that fails is a row of the table `arms`, and the others go on; where there is no other, its error is raised.
    """
    failed: ServerError | ProofError | None = None
    for boot in range(on.boots):
        with contextlib.ExitStack() as running:
            up: _Up | None = None
            for way in [way for way in each if boot < on.boots_of(way.arm)]:
                end = Step("end", boot, way.name)
                if ledger.finished(end):
                    continue
                if up is not None and not up.way.arm.served_as(way.arm):
                    running.close()
                    up = None
                row = arm_row(run, way, boot)
                try:
                    up = _serve(run, on, way, boot, row, ledger, running, up)
                except (ServerDied, ServerNotReady, ProofError) as error:
                    if not on.arms:
                        raise
                    running.close()
                    up = None
                    failed = error
                    row |= {"outcome": "failed", "message": str(error)[:MESSAGE_CHARS]}
                    run.say(f"boot {boot}: {way.label}: failed: {row['message'].splitlines()[0]}")
                    ledger.add("arms", [row])
                ledger.finish(end)
    if failed is not None and all(row["outcome"] == "failed" for row in ledger.tables()["arms"]):
        raise MeasureError(f"no arm gave every cell; the last one that failed: {failed}") from failed
    for name, overrides in on.attempts.items():
        attempt = Step("attempt", name=name)
        if not ledger.finished(attempt):
            ledger.begin(attempt)
            ledger.add("attempts", [_attempt(run, on, each[0], name, overrides)])
            ledger.finish(attempt)


@dataclasses.dataclass(frozen=True)
class _Up:
    """A server that is up and proved, the arm that it was started for, and the folder of its start."""

    server: Server
    way: Way
    folder: Path
    proofs: list[RankProof]


def _serve(
    run: Run,
    on: OnHost,
    way: Way,
    boot: int,
    row: dict[str, Any],
    ledger: Ledger,
    running: contextlib.ExitStack,
    up: _Up | None,
) -> _Up | None:
    """What is left of one boot of one arm: ready, proved, measured; fills its row of `arms`. No start where nothing is left.

    A server that is `up` already is one that can serve the arm, too; returns the one that did, which `running` stops.
    """
    cells = on.workloads(way.arm)
    left = [cell for cell in cells if not ledger.finished(Step("cell", boot, way.name, cell))]
    start = Step("start", boot, way.name)
    if not left and ledger.finished(start):
        return up
    ledger.begin(start)
    said = f"boot {boot}: {f'{way.name}: ' if way.name else ''}"
    if up is None:
        folder = run.new_folder(" ".join(part for part in (f"boot{boot}", way.name) if part))
        timeout_s = run.asked.host.engine.ready_timeout_s
        server = running.enter_context(serve(launch(run, on, way, folder), folder, ready_timeout_s=timeout_s))
        row["startup_s"] = server.startup_s
        run.say(f"{said}ready after {server.startup_s:.1f} s")
        up = _Up(server, way, folder, proved(run, way, folder))
    else:
        forget_prefixes(up.server)
        run.say(f"{said}served by the start of {up.way.label}, with another cold share")
    row |= {"startup_s": up.server.startup_s} | proof_columns(up.proofs) | {"outcome": "served"}
    if on.arms or way.plan is not None:
        ledger.add("arms", [dict(row)])
    _describe_start(run, way, boot, up.server, up.proofs, ledger)
    ledger.finish(start)
    for number, cell in enumerate(cells, start=1):
        if cell in left:
            run.say(f"boot {boot}: cell {number} of {len(cells)}: {cell}")
            moved = partial(residency, way.plan, up.proofs, up.folder / "proof")
            _measure_cell(run, on, way, boot, up.server, cell, ledger, moved)
    return up


def _attempt(run: Run, on: OnHost, way: Way, name: str, overrides: dict[str, Argument]) -> dict[str, Any]:
    """Start the server with other arguments and record where it failed, beside where it was predicted to."""
    asked = run.asked
    folder = run.new_folder(f"attempt {name}")
    without_plan = dataclasses.replace(way, plan=None)
    predicted = predicted_stage(asked.host, overrides, way.model, way.model_folder)
    run.say(f"attempt {name}: predicted to end at: {predicted}")
    started = time.monotonic()
    try:
        with serve(launch(run, on, without_plan, folder, overrides), folder, ready_timeout_s=asked.host.engine.ready_timeout_s):
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


def _describe_start(run: Run, way: Way, boot: int, server: Server, proofs: Sequence[RankProof], ledger: Ledger) -> None:
    """Rows about a server that has just become ready; raises MeasureError if its version is not that of the run."""
    engine = f"vLLM {server.engine_version}" if server.engine_version else "vLLM, version not reported"
    if ledger.origin.setdefault("engine", engine) != engine:
        raise MeasureError(
            f"boot {boot} reports {engine}, earlier ones {ledger.origin['engine']}: boots of one run must be of one engine"
        )
    of_start = {"run": run.id, "boot": boot} | way.columns
    ledger.add("boots", [of_start | {
        "startup_s": server.startup_s,
        "health_s": server.health_s,
        "process_memory_bytes": process_memory(server.pid).pss_bytes,
        "weights_bytes": server.weights_bytes,
        "kv_cache_tokens": server.kv_cache_tokens,
    }])  # fmt: skip
    if run.asked.experiment.measures == "memory":
        ledger.add("memory", [of_start | row for row in memory(run, way, boot, server, proofs)])


def _measure_cell(
    run: Run,
    on: OnHost,
    way: Way,
    boot: int,
    server: Server,
    cell: str,
    ledger: Ledger,
    moved: Callable[[str], tuple[Rows, str | None]],
) -> None:
    """Send the load of one cell and finish its step; raises ServerDied if the server ended meanwhile.

    `moved` gives the cell's rows of `residency` and its mark by its start, or raises ProofError.
    """
    step = Step("cell", boot, way.name, cell)
    ledger.begin(step)
    share = _cold_share(on, way, cell)
    if share is not None and on.changes_cold_share:
        set_cold_share(server, share)
    before = host_reads(server) if way.arm.count else None
    progress = Progress(cell)
    result = asyncio.run(
        run_cell(
            Endpoint(
                server.base_url,
                server.launch.model,
                vocabulary=server.launch.vocabulary,
                options={"temperature": way.model.temperature, "ignore_eos": True},
                seeded=way.model.temperature > 0,
                first_output_timeout_s=server.launch.progress_timeout_s,
                progress_timeout_s=server.launch.progress_timeout_s,
            ),
            on.workloads()[cell],
            cell=cell,
            seed=on.seed,
            nonce=f"{run.id}/{boot}",  # the same for all arms, so that they are asked the same
            alive=server.alive,
            progress=progress,
        )
    )
    progress.close()
    columns = {"run": run.id, "boot": boot} | way.columns
    if any(arm.count for arm in on.arms.values()):
        after = host_reads(server) if before is not None else {}
        counted = {name: after[name] - before[name] if before is not None else None for name in HOST_READS}
        result = dataclasses.replace(result, cells=[row | counted for row in result.cells])
    routed = columns if share is None else columns | {"cold_share_fraction": share}
    moves: Rows = []
    mark: str | None = None
    try:
        server.check_alive()
        moves, mark = moved(result.cells[0]["started_at"])
    finally:  # what was measured is kept, whatever became of the server
        cells = result.cells if mark is None else [marked(row, mark) for row in result.cells]
        for table, rows in (result.tables() | {"cells": cells}).items():
            ledger.add(table, [(routed if table in ("cells", "requests") else columns) | row for row in rows])
        for row in cells:
            if row["outcome"] != "measured":
                run.say(f"boot {boot}: {cell}: {row['outcome']}: {row['marks']}")
    if moves:
        ledger.add("residency", [columns | {"cell": cell} | row for row in moves])
    ledger.finish(step)


def _cold_share(on: OnHost, way: Way, cell: str) -> float | None:
    """Share of picks that the synthetic routing gives the unpopular experts during a cell; None: the model's own routing."""
    return on.cold_shares().get(cell, None if way.arm.routing is None else way.arm.routing.cold_share)


def _provenance(run: Run, on: OnHost, each: Sequence[Way]) -> dict[str, Any]:
    """What is known of the engine and the model before the server runs; its version joins at the first boot.

    The arms differ from what stands here by what the table `arms` says of each.
    """
    asked, engine = run.asked, run.asked.host.engine
    python = str(run.root / ".envs" / engine.environment / "bin" / "python")
    arguments = launch(run, on, dataclasses.replace(each[0], arm=Arm(), plan=None), run.folder).command[3:]
    plans = {way.label: way.plan.sha256 for way in each if way.plan is not None}
    return {
        "model": on.model,
        "model_title": asked.served_model.title,
        "weights": asked.served_model.weights,
        "environment_hash": machine.environment_hash(python, server_environment(engine.variables)),
        "lock_hash": parquet.sha256(run.root / "envs" / f"{engine.environment}.txt"),
        "model_config_hash": machine.model_config_hash(each[0].model_folder),
        "arguments": " ".join(arguments),
        **({"plans": plans} if plans else {}),
    }
