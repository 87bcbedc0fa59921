"""Bytes of a ready server, predicted and measured, for e1_memory."""

from collections.abc import Mapping
from pathlib import Path

from spillway.engine.processes import process_memory
from spillway.engine.server import Server
from spillway.fit.architectures import describe
from spillway.fit.budget import Demand, OnHost, budget, capacity_of, stage_of_log
from spillway.fit.checkpoint import Folder, stored_bytes_by_component, stored_tensors
from spillway.fit.config import read_config
from spillway.fit.rows import Amount, memory_rows
from spillway.fit.weights import bytes_by_component
from spillway.measure.run import Rows, Run
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


def memory(run: Run, folder: Path, boot: int, server: Server) -> Rows:
    """Predicted and measured bytes of a ready server: each component of the weights, the KV cache, the whole process."""
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
