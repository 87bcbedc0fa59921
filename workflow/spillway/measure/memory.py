"""Bytes of a ready server, predicted and measured, for e1_memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from spillway.engine.processes import process_memory
from spillway.engine.server import Server
from spillway.fit.architectures import describe
from spillway.fit.budget import Demand, OnHost, budget, capacity_of, stage_of_log
from spillway.fit.checkpoint import Folder, stored_bytes_by_component, stored_tensors
from spillway.fit.config import read_config
from spillway.fit.placing import layer_numbers
from spillway.fit.rows import Amount, memory_rows
from spillway.fit.weights import bytes_by_component
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
    changed = host.model_copy(update={"engine": host.engine.model_copy(update={"arguments": arguments})})
    context = arguments.get("max-model-len", model.max_model_len)
    demand = Demand(context_tokens=int(context), sequences=1, cache="bf16")
    return budget(describe(read_config(folder)), capacity_of(changed), demand, OnHost()).stage


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
    config = read_config(way.model_folder)
    model = describe(config)
    rows: Rows = []
    if way.model.weights != "dummy":
        stored = stored_bytes_by_component(stored_tensors(Folder(way.model_folder)))
        in_checkpoint: Amounts = {name: Amount(size, "computed") for name, size in bytes_by_component(model.weights).items()}
        found: Amounts = {name: Amount(size, "checkpoint header") for name, size in stored.items()}
        rows += memory_rows(run.id, boot, "checkpoint", in_checkpoint, found)
    capacity = capacity_of(run.asked.host)
    planned = budget(model, capacity, Demand(way.model.max_model_len, 1, "bf16"), _on_host(way), ())
    host_predicted: Amounts = {}
    host_measured: Amounts = {"whole process": Amount(process_memory(server.pid).pss_bytes, "process memory")}
    kv_predicted: Amounts = {}
    kv_measured: Amounts = {}
    if server.kv_cache_tokens is not None:
        kv_bytes = round(server.kv_cache_tokens * model.cache("bf16", max(1, capacity.gpus)).token_bytes)
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


def _on_host(way: Way) -> OnHost:
    """The plan in the memory model's terms: experts by the number of their layer."""
    if way.plan is None:
        return OnHost()
    return OnHost(experts=layer_numbers(f"plan of {way.label}", way.plan.layers), paged=True)
