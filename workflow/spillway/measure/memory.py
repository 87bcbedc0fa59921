"""Bytes of a ready server, predicted and measured, for e1_memory."""

from pathlib import Path

from spillway.engine.processes import process_memory
from spillway.engine.server import Server
from spillway.fit.architectures import describe
from spillway.fit.checkpoint import Folder, stored_bytes_by_component, stored_tensors
from spillway.fit.config import read_config
from spillway.fit.rows import Amount, memory_rows
from spillway.fit.weights import bytes_by_component
from spillway.measure.run import Rows, Run

Amounts = dict[str, Amount]


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
