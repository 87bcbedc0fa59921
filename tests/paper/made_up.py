"""A host that does not exist, with numbers made up, so that the paper's text for GPU hosts is rendered and typeset in a test.

Only ever written into a throw-away copy of the project; the host's title, which the paper prints, says what it is.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

import yaml

from spillway.measure.levels import capacity_rows
from spillway.measure.link_line import link_lines
from spillway.record import manifest, parquet
from spillway.record.provenance import new_run
from spillway.record.tables import TABLES
from spillway.spec.arm import Arm
from spillway.spec.experiment import NotRun, OnHost, Resolved, names, resolve
from spillway.spec.quality import Quality
from spillway.spec.workload import Workload
from tests.conftest import Project

HOST, LIKE, LARGER = "made-up", "h200", "h200x2"
BESIDE = "e6_situations"
"""An experiment on one GPU of a machine with several."""
LARGEST = ("h200x4", "h200x8")
TITLE = "no machine: every number measured here is MADE UP, to test the text"
Row = dict[str, Any]
ALL_GPU = "all in VRAM"
FAILED = """server ended with 1 before it was ready; the last lines of runs/made-up/e2_stock_offload/server.log:
ValueError: No common block size for 64: the engine's log goes on for a while about this."""


def make_up(project: Project) -> None:
    """Give the copy a host `made-up` that runs what the first GPU host runs, and data for it and for the larger hosts."""
    hosts = project.root / "experiments/hosts"
    host = yaml.safe_load((hosts / f"{LIKE}.yaml").read_text()) | {"title": TITLE, "measured": True}
    (hosts / f"{HOST}.yaml").write_text(yaml.safe_dump(host))
    for name in names(project.root):
        path = project.root / f"experiments/{name}.yaml"
        content = yaml.safe_load(path.read_text())
        no_data = {"not_run": "Nobody made up any numbers for this experiment."}
        # Of residency, what is recorded stands in.
        content["hosts"][HOST] = content["hosts"].get(LIKE, no_data) if name != "e15_follow" else no_data
        if name == "e8_quality":
            content["hosts"][HOST]["comparisons"] |= {"placed against another start": {"a": "bf16, placed", "b": "bf16 again"}}
        path.write_text(yaml.safe_dump(content, sort_keys=False))
    for name in names(project.root):
        _record(project, name, HOST)
    _record(project, "e9_all_in_vram", LARGER)
    for host in LARGEST:
        record_largest(project, host)


def fill(project: Project, host: str) -> None:
    """Give the copy made-up data of a host that exists, for the experiments that it runs and that are not recorded yet."""
    for name in names(project.root):
        if not any((project.root / f"data/{host}").glob(f"{name}.*")):
            _record(project, name, host)


def record_largest(project: Project, host: str) -> None:
    """What the paper prints of the largest model on one of its two hosts."""
    for name in ("e1_memory", "e9_all_in_vram"):
        _record(project, name, host)


def _record(project: Project, name: str, host: str) -> None:
    asked = resolve(project.root, name, host)
    if isinstance(asked, NotRun):
        return
    run = new_run()
    tables = _tables(project, asked, run)
    folder = project.root / "runs" / host / name / run
    folder.mkdir(parents=True)
    for table, rows in tables.items():
        parquet.write(folder / f"{name}.{table}.parquet", table, rows, _provenance(asked, run))
    manifest.publish(folder, project.root / "data")


def _tables(project: Project, asked: Resolved, run: str) -> dict[str, list[Row]]:
    if asked.experiment.measures in ("activity", "seats"):  # calculated from the published figures on every host alike
        recorded = (project.root / "data/cpu").glob(f"{asked.name}.*.parquet")
        return {path.name.split(".")[1]: parquet.read_rows(path) for path in recorded}
    if asked.experiment.measures == "topology":
        return {"topology": list(_links(run))}
    if isinstance(asked.on, Quality):
        return _agreement(project, asked.on, run)
    assert isinstance(asked.on, OnHost)
    tables: dict[str, list[Row]] = {"boots": [], "arms": [], "requests": [], "cells": [], "server_metrics": []}
    if asked.experiment.measures == "memory":
        tables = {"boots": [], "arms": [], "memory": [], "attempts": []}
        for attempt in asked.on.attempts:
            found = {"attempt": attempt, "predicted": "weights", "found": "weights", "agrees": True}
            tables["attempts"].append(_row("attempts", run=run, **found))
    for arm, how in asked.on.served().items():
        for boot in range(asked.on.boots_of(how)):
            _serve(tables, asked, run, arm, how, boot, random.Random(f"{asked.name} {arm} {boot}"))
    if "requests" in tables:
        tables["link_line"] = link_lines(asked.on, tables)
        tables["capacity"] = [_row("capacity", **row) for row in capacity_rows(asked, asked.on, tables)]
    return {table: rows for table, rows in tables.items() if rows}


def _serve(
    tables: dict[str, list[Row]], asked: Resolved, run: str, arm: str, how: Arm, boot: int, chance: random.Random
) -> None:
    assert isinstance(asked.on, OnHost)
    fails = how.arguments.get("block-size") == 64
    keys = {"run": run, "boot": boot} | ({"arm": arm} if arm else {})
    host_bytes = 17_170_000_000 if how.plan else None
    served = {"arm": arm or "served", "model": how.model or asked.on.model, "host_bytes": host_bytes, "host_experts": 1824}
    proved = {"gpu_bytes": 40_500_000_000, "host_read_bytes_per_s": 5.1e10, "host_copy_bytes_per_s": 5.54e10}
    message = FAILED if fails else None
    outcome = {"outcome": "failed" if fails else "served", "message": message, "startup_s": None if fails else 60.0}
    outcome |= {"arguments": json.dumps(how.arguments, sort_keys=True)}
    if how.routing:
        outcome |= {"routing": f"synthetic: {how.routing.unpopular} experts (seed 0) get {how.routing.cold_share} of picks"}
    without_plan = dict.fromkeys([*proved, "host_experts"]) if not how.plan else {}
    tables["arms"].append(_row("arms", run=run, boot=boot, **(served | outcome | proved | without_plan)))
    if fails:
        return
    tables["boots"].append(_row("boots", **keys, startup_s=60 + chance.random(), kv_cache_tokens=612_352))
    if "memory" in tables:
        tables["memory"] += _memory(keys, how)
        return
    shares = asked.on.cold_shares()
    counts = any(other.count for other in asked.on.arms.values())
    for cell, workload in asked.on.workloads(how).items():
        share = shares.get(cell, how.routing.cold_share if how.routing else 0.3)
        routed = {"cold_share_fraction": share} if how.routing else {}
        load = _load(workload)
        read = {"decode_steps": 200, "host_reads": 3840, "host_read_bytes": 3840 * 9 * 2**20}
        counted = read if how.count else dict.fromkeys(read) if counts else {}
        tables["cells"].append(_row("cells", **keys, cell=cell, **routed, **load, **counted, outcome="measured", marks="none",
                                    client_delay_p99_s=1e-4, client_delay_bound_s=0.01))  # fmt: skip
        for number in range(load["requests_ok"]):
            request = _request(arm, how, share, load, chance)
            tables["requests"].append(_row("requests", **keys, cell=cell, **routed, request=number, **request))
        usage = _row("server_metrics", **keys, cell=cell, kv_cache_usage_fraction=0.61)
        tables["server_metrics"].append(usage)


def _load(workload: Workload) -> Row:
    asked = workload.model_dump()
    prompt = asked.get("prompt_tokens") or asked.get("context_tokens") or asked.get("prefix_tokens") or 9000
    return {
        "streams": workload.most_streams, "context_tokens": prompt, "requests_ok": asked["requests"],
        "output_tokens": asked.get("output_tokens") or asked.get("output_limit_tokens"), "kind": asked["kind"],
        "shared_prompt_tokens": prompt, "prefix_hit_tokens": prompt,
    }  # fmt: skip


def _request(arm: str, how: Arm, share: float, load: Row, chance: random.Random) -> Row:
    distinct = load["streams"] ** 0.9
    link = 30 * share * distinct if how.plan else 12 * distinct if "uva" in arm else 20 if "prefetch" in arm else 0
    tpot_s = 1e-3 * (2.8 + 0.4 * load["streams"] + load["context_tokens"] / 1e5 + link) * chance.uniform(0.97, 1.05)
    ttft_s = (0.03 + load["context_tokens"] * (1.2e-5 if arm == ALL_GPU else 2.3e-5)) * chance.uniform(0.98, 1.04)
    sent = chance.uniform(0, 180)
    return {
        "phase": "measured", "outcome": "ok", "streams": load["streams"], "tpot_s": tpot_s, "ttft_s": ttft_s,
        "rate_tok_per_s": 1 / tpot_s, "prompt_tokens": load["context_tokens"], "asked_output_tokens": load["output_tokens"],
        "shared_tokens": load["context_tokens"], "sent_s": sent, "first_output_s": sent + ttft_s,
    }  # fmt: skip


def _memory(keys: Row, how: Arm) -> list[Row]:
    gib = 2**30
    log = "engine log and proof of placement" if how.plan else "engine log"
    gpu = {"all weights": (118.2, 118.4, log), "KV cache": (9.0, None, None), "whole GPU": (None, 135.1, "driver")}
    placed = {"placed experts": (94.1, 94.1, "proof of placement")} if how.plan else {}
    host = placed | {"whole process": (None, 101.7 if how.plan else 7.2, "process memory")}
    return [
        _row("memory", **keys, place=place, component=component, measured_from=source,
             predicted_from=predicted and "computed", predicted_bytes=predicted and round(predicted * gib),
             measured_bytes=measured and round(measured * gib))
        for place, components in (("gpu 0", gpu), ("host", host))
        for component, (predicted, measured, source) in components.items()
    ]  # fmt: skip


def _agreement(project: Project, on: Quality, run: str) -> dict[str, list[Row]]:
    """A comparison without tasks, in which two starts of one server differ a little, and two number formats much.

    What is placed is as the start that is not the reference of A/A.
    """
    assert not on.tasks
    tables: dict[str, list[Row]] = {"boots": [], "arms": [], "quality_agreement": [], "quality_texts": []}
    for name, system in on.launched.items():
        tables["boots"].append(_row("boots", run=run, arm=name, startup_s=40.0))
        size = 452_984_832 if system.model is None else 226_492_416
        proved = {"host_experts": 24, "host_bytes": size * 3 // 10, "gpu_bytes": size * 7 // 10, "staged_from_rows": 128}
        place = proved | {"plan_sha256": "0" * 64, "backend": "TRITON"} if system.plan else {}
        served = {"arm": name, "outcome": "served", "model": system.model or on.model, "startup_s": 40.0}
        tables["arms"].append(_row("arms", run=run, **served, **place))
    references = {pair.b for pair in on.comparisons.values() if pair.same}
    for name, pair in on.comparisons.items():
        other = on.systems[pair.a].model != on.systems[pair.b].model
        again = (pair.a in references) != (pair.b in references)
        largest, divergence, diverged, first = (7.125, 0.25, 6, 0.75) if other else (2.5, 0.125, 5, 0.875)
        differs = {"largest_difference_nats": largest, "divergence_nats": divergence, "diverged_texts": diverged}
        differs |= {"same_first_fraction": first, "identical_texts": 6 - diverged, "identical": False}
        equal = {"same_first_fraction": 1.0, "identical_texts": 6, "identical": True}
        found = differs if other or again else equal
        compared = {"comparison": name, "a": pair.a, "b": pair.b, "same": pair.same, "texts": 6, "tokens": 1212}
        nll = {"a_nll_nats": 12.5 if other else 12.25, "b_nll_nats": 12.25}
        tables["quality_agreement"].append(_row("quality_agreement", run=run, **compared, **nll, **found))
        tables["quality_texts"].append(_row("quality_texts", run=run, **compared, text="river", written_tokens=64))
    published = project.root / "data/cpu/e8_quality.quality_published.parquet"
    return tables | {"quality_published": parquet.read_rows(published)}


def _links(run: str) -> Iterator[Row]:
    for link, source, by, threads, rate in (
        ("host copy", "node0", "node0", 1, 9e9), ("host copy", "node0", "node0", 16, 9e10),
        ("host to gpu", "node0", "gpu0", None, 5.54e10), ("in place", "node0", "gpu0", None, 5.1e10),
    ):  # fmt: skip
        rates = {"rate_bytes_per_s": rate, "lowest_bytes_per_s": 0.97 * rate, "highest_bytes_per_s": 1.02 * rate}
        yield _row("topology", run=run, link=link, source=source, by=by, threads=threads, at_once=1, repeats=9,
                   buffer_bytes=2**30, proved=True, **rates)  # fmt: skip


def _row(table: str, **known: Any) -> Row:
    """A row with what is known, and zero, `x` or false in every other column that must have a value."""
    blank: Row = {}
    for name, column in TABLES[table].items():
        if column.nullable:
            blank[name] = None
        elif not column.optional:
            blank[name] = {"string": "x", "int64": 0, "double": 0.0, "bool": False}[str(column.type)]
    return blank | {name: value for name, value in known.items() if name in TABLES[table]}


def _provenance(asked: Resolved, run: str) -> Row:
    gpus = {"host_gpus": 2, "host_gpus_visible": "1"} if asked.name == BESIDE else {"host_gpus": 1}
    return gpus | {
        "run": run, "experiment": asked.name, "host": asked.host_name, "host_title": TITLE, "spec_hash": asked.hash,
        "model": getattr(asked.on, "model", "none"), "model_title": "a shape that is MADE UP", "weights": "dummy",
        "engine": "vLLM of no version", "environment_hash": "0" * 64, "commit": "0" * 40, "dirty": False,
        "measured_at": "2000-01-01T00:00:00+00:00", "host_cpu_model": "no processor", "host_cores_usable": 16,
        "host_memory_bytes": 2**37, "host_numa_nodes": 1, "host_os": "no system", "host_kernel": "none",
        "host_gpu0_name": "no GPU", "host_gpu0_memory_bytes": 2**37, "host_nvidia_driver": "no driver",
    }  # fmt: skip
