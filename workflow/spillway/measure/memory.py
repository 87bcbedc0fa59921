"""Bytes of a ready server, predicted and measured, for e1_memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from spillway.engine.processes import process_memory
from spillway.engine.server import Server
from spillway.fit.architectures import describe
from spillway.fit.budget import Demand, OnHost, budget, capacity_of, stage_of_log
from spillway.fit.checkpoint import Folder, stored_bytes_by_component, stored_tensors
from spillway.fit.config import read_config
from spillway.fit.formats import parse_format
from spillway.fit.placing import layer_numbers
from spillway.fit.published import published_model
from spillway.fit.rows import Amount, memory_rows
from spillway.fit.shapes import Model as Described
from spillway.fit.weights import FitError, bytes_by_component
from spillway.load.telemetry import gpu_memory_bytes
from spillway.measure.arms import Way
from spillway.measure.run import Rows, Run
from spillway.placement.proof import RankProof
from spillway.spec.host import Argument, Host, Model

MESSAGE_CHARS = 400

Amounts = dict[str, Amount]


def predicted_stage(host: Host, overrides: Mapping[str, Argument], model: Model, folder: Path) -> str:
    """Where a start with other arguments is predicted to run out of memory, in the words of fit/budget.py, or `fits`.

    The server must hold one sequence of `max_model_len`. Raises FitError for a model that the memory model does not know.
    """
    arguments = {**host.engine.arguments, **overrides}
    described, start = _described(model, folder)
    changed = host.model_copy(update={"engine": host.engine.model_copy(update={"arguments": arguments})})
    context = arguments.get("max-model-len", model.max_model_len)
    demand = _demand(changed, int(context))
    return budget(described, capacity_of(changed), demand, start).stage


def found_stage(log: str) -> tuple[str, str]:
    """Where a server's log says that memory ran out, and the line that says so; `other` and the last line if it does not."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        if stage := stage_of_log(line):
            return stage, line[-MESSAGE_CHARS:]
    return "other", lines[-1][-MESSAGE_CHARS:] if lines else "the log is empty"


def memory(run: Run, way: Way, boot: int, server: Server, proofs: Sequence[RankProof]) -> Rows:
    """Predicted and measured bytes of a ready server: the weights, the KV cache, and what the processes and GPUs took.

    The weights of a checkpoint are compared component by component. Of dummy weights there is no checkpoint: the bytes on
    each GPU are compared with the engine's log, to which the proof of placement adds what lies in the plan's pages.
    """
    model, start = _described(way.model, way.model_folder)
    demand = _demand(run.asked.host, way.model.max_model_len)
    rows: Rows = []
    if way.model.weights != "dummy":
        stored = stored_bytes_by_component(stored_tensors(Folder(way.model_folder)))
        in_checkpoint: Amounts = {name: Amount(size, "computed") for name, size in bytes_by_component(model.weights).items()}
        found: Amounts = {name: Amount(size, "checkpoint header") for name, size in stored.items()}
        rows += memory_rows(run.id, boot, "checkpoint", in_checkpoint, found)
    capacity = capacity_of(run.asked.host)
    planned = budget(model, capacity, demand, _on_host(way, start), ())
    host_predicted: Amounts = {}
    host_measured: Amounts = {"whole process": Amount(process_memory(server.pid).pss_bytes, "process memory")}
    kv_predicted: Amounts = {}
    kv_measured: Amounts = {}
    if server.kv_cache_tokens is not None:
        kv_bytes = round(server.kv_cache_tokens * model.cache(demand.cache, max(1, capacity.gpus)).token_bytes)
        kv_predicted = {"KV cache": Amount(kv_bytes, "computed for the tokens that the engine's log names")}
    if isinstance(size := run.asked.host.engine.arguments.get("kv-cache-memory-bytes"), int):
        kv_measured = {"KV cache": Amount(size, "engine argument")}
    if not capacity.gpus:
        return rows + memory_rows(run.id, boot, "host", kv_predicted, kv_measured | host_measured)
    if proofs:
        host_predicted["placed experts"] = Amount(planned.total("host", "weights"), "computed")
        host_measured["placed experts"] = Amount(sum(proof.host_bytes for proof in proofs), "proof of placement")
    used = gpu_memory_bytes()
    for gpu in range(capacity.gpus):
        predicted: Amounts = {"all weights": Amount(planned.total("gpu", "weights"), "computed")} | kv_predicted
        measured: Amounts = {"whole GPU": Amount(used[gpu], "driver")} if gpu < len(used) else {}
        if server.weights_bytes is not None:
            placed = proofs[gpu].gpu_bytes if proofs else 0
            source = "engine log and proof of placement" if proofs else "engine log"
            measured["all weights"] = Amount(server.weights_bytes + placed, source)
        rows += memory_rows(run.id, boot, f"gpu {gpu}", predicted, measured | kv_measured)
    return rows + memory_rows(run.id, boot, "host", host_predicted, host_measured)


def _described(model: Model, folder: Path) -> tuple[Described, OnHost]:
    """A model as it is stored, and what its deployment keeps on the host without any plan; raises FitError."""
    if model.published is None:
        return describe(read_config(folder)), OnHost(paged=True)
    published = published_model(model.published.model)
    if model.published.pack not in published.packs:
        raise FitError(f"published.pack: found {model.published.pack!r}; expected one of: {', '.join(published.packs)}")
    pack = published.packs[model.published.pack]
    formats = {name: parse_format(text) for name, text in pack.formats.items()}
    stored = describe(published.config).stored_as(formats, frozenset(pack.replicated))
    return stored, OnHost(components=frozenset([*pack.on_host, *model.published.on_host]))


def _demand(host: Host, context_tokens: int) -> Demand:
    """One sequence, in the KV cache's format and with or without draft layers as the engine's arguments have it."""
    asked = host.engine.arguments
    cache = "fp8" if str(asked.get("kv-cache-dtype", "auto")).startswith("fp8") else "bf16"
    return Demand(context_tokens, 1, cache, draft="speculative-config" in asked)


def _on_host(way: Way, start: OnHost) -> OnHost:
    """The plan in the memory model's terms: experts by the number of their layer, beside what is on the host anyway."""
    if way.plan is None:
        return start
    return replace(start, experts=layer_numbers(f"plan of {way.label}", way.plan.layers))
