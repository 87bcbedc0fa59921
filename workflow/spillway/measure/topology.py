"""Rates of the links between memories, for e12_topology: the host's own by its cores, a GPU's by the engine's torch."""

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from spillway.engine import host as machine
from spillway.engine.ask import ask
from spillway.engine.host_rates import MisplacedMemory, host_rates
from spillway.engine.memory_nodes import Node, last_level_cache_bytes, nodes
from spillway.engine.server import server_environment
from spillway.engine.topology import CROSSES_NODES, QUERY_MATRIX, Matrix, gpu_of, read_gpus, read_matrix, show_list
from spillway.measure.errors import MeasureError
from spillway.measure.run import Rows, Run, Tables
from spillway.placement.host_memory import available_bytes
from spillway.spec.topology import LinkRates

GPU_RATES_TIMEOUT_S = 600.0
MATRIX_TIMEOUT_S = 30.0


def measure_links(run: Run, on: LinkRates, tables: Tables, origin: dict[str, Any]) -> None:
    """Fill `tables` with a row for every link; raises MeasureError if the buffers do not do or a GPU cannot be measured."""
    host = run.asked.host
    python = sys.executable
    if host.gpus is not None:
        python = str(run.root / ".envs" / host.engine.environment / "bin" / "python")
    environment = server_environment(dict(host.engine.variables)) if host.gpus is not None else dict(os.environ)
    origin |= {
        "model": "none",
        "engine": "none",
        "environment_hash": machine.environment_hash(python, environment),
    }
    found = nodes()
    rows = tables.setdefault("topology", [])
    for row in _host_rows(run, on, found):
        rows.append({"run": run.id} | row)
    if host.gpus is not None:
        for row in _gpu_rows(run, on, found, python, environment):
            rows.append({"run": run.id} | row)


def _host_rows(run: Run, on: LinkRates, found: Sequence[Node]) -> Rows:
    size, cache = on.buffer_mib * 2**20, last_level_cache_bytes()
    if cache is not None and size < 2 * cache:
        size = -(-2 * cache // 2**20) * 2**20  # or the cache would be measured
        run.say(f"buffers of {size // 2**20} MiB, since the last-level cache has {cache // 2**20}")
    if 2 * size > (free := available_bytes()):
        raise MeasureError(
            f"experiments/{run.asked.name}.yaml: hosts.{run.asked.host_name}.buffer_mib: found {on.buffer_mib}; two buffers of "
            f"{size // 2**20} MiB do not fit in the {free // 2**20} MiB of memory that are free: stop what else runs here"
        )
    rows: Rows = []
    try:
        for rate in host_rates(found, size, on.repeats):
            row = {
                "link": f"host {rate.work}",
                "source": f"node{rate.source}",
                "target": None if rate.target is None else f"node{rate.target}",
                "by": f"node{rate.by}",
                "threads": rate.threads,
                "at_once": 1,
                "crosses_nodes": len({rate.by, rate.source, rate.source if rate.target is None else rate.target}) > 1,
                "path": None,
                "buffer_bytes": size,
                "cache_bytes": cache,
                "proved": rate.proved,
            } | spread(rate.rates)
            run.say(f"{shown(row)}, {rate.threads} threads")
            rows.append(row)
    except MisplacedMemory as error:
        raise MeasureError(str(error)) from None
    return rows


def _gpu_rows(run: Run, on: LinkRates, found: Sequence[Node], python: str, environment: Mapping[str, str]) -> Rows:
    """Have the engine's torch measure every GPU; raises MeasureError with the end of what it said if it cannot."""
    with_memory = show_list(node.number for node in found if node.has_memory)
    command = [python, "-m", "spillway.engine.gpu_rates", "--buffer-mib", str(on.buffer_mib)]
    command += ["--repeats", str(on.repeats), "--nodes", with_memory]
    # NVML, and so nvidia-smi, number the cards by bus; CUDA would put the fastest first.
    path = {"PYTHONPATH": str((run.root / "workflow").resolve()), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    answer = ask(command, GPU_RATES_TIMEOUT_S, {**environment, **path})
    if answer.fault is not None:
        raise MeasureError(
            f"the GPUs' links could not be measured: {' '.join(command[:3])}: {answer.errors[-2000:] or answer.fault}"
        )
    rows = gpu_rows(json.loads(answer.out.splitlines()[-1]), read_matrix(ask(QUERY_MATRIX, MATRIX_TIMEOUT_S).out))
    for row in rows:
        run.say(shown(row))
    return rows


def gpu_rows(answer: Mapping[str, Any], matrix: Matrix) -> Rows:
    """The rows of what engine/gpu_rates.py printed, with the paths that nvidia-smi names."""
    near = {f"gpu{gpu['index']}": f"node{gpu['node']}" for gpu in answer["gpus"]}
    links = {}
    for gpu in answer["gpus"]:
        told = gpu_of(read_gpus(gpu["under_load"]), gpu["uuid"], gpu["index"])
        links[f"gpu{gpu['index']}"] = told.link if told is not None else None
    rows: Rows = []
    for rate in answer["rates"]:
        ends = [place for place in (rate["source"], rate["target"]) if place is not None]
        gpus = [place for place in ends if place.startswith("gpu")]
        relation = matrix.relations.get((gpus[0].upper(), gpus[1].upper())) if len(gpus) == 2 else None
        path, crosses = relation, None if relation is None else relation in CROSSES_NODES
        if rate["link"] == "gpu memory":
            path, crosses = None, False
        elif len(gpus) < 2:
            path = links.get(rate["by"])
            crosses = any(place.startswith("node") and place != near[rate["by"]] for place in ends)
        rows.append(
            {name: rate[name] for name in ("link", "source", "target", "by", "at_once")}
            | {"threads": None, "crosses_nodes": crosses, "path": path, "buffer_bytes": answer["buffer_bytes"]}
            | {"cache_bytes": None, "proved": rate["link"] != "gpu to gpu"}
            | spread(rate["rates"])
        )
    return rows


def spread(rates: Sequence[float]) -> dict[str, Any]:
    """The columns of the repeats of one rate, in bytes/s."""
    return {
        "repeats": len(rates),
        "rate_bytes_per_s": statistics.median(rates),
        "lowest_bytes_per_s": min(rates),
        "highest_bytes_per_s": max(rates),
    }


def shown(row: Mapping[str, Any]) -> str:
    """One line for a person: what moves from where to where, and how fast."""
    to = f" to {row['target']}" if row["target"] is not None else ""
    return f"{row['link']} by {row['by']}: {row['source']}{to}: {row['rate_bytes_per_s'] / 1e9:.1f} GB/s"
