"""The journal of swaps: what moved, when, and how long it took, one JSON object a line, appended by each rank.

The plan says where experts lie at the start; the plan and the journal together say where they lie at any later step.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from spillway.placement.plan import Frozen, explain

Outcome = Literal["done", "not promoted", "not demoted"]


class JournalError(RuntimeError):
    """A journal that cannot be read, or that tells what cannot have happened."""


class SwapRecord(Frozen):
    """One swap, finished or given up."""

    kind: Literal["swap"] = "swap"
    step: int = Field(ge=0, description="step of the engine before which it ended, counted from the first one served")
    t_s: float = Field(description="Unix time at which it ended")
    layer: str
    promoted: int = Field(ge=0, description="expert that was to move to GPU memory")
    demoted: int = Field(ge=0, description="expert that was to move to the host")
    bytes: int = Field(ge=0, description="bytes copied over the link on this rank")
    copy_s: float = Field(ge=0, description="time of those copies")
    map_s: float = Field(ge=0, description="time for which mapping its pages held up the engine")
    outcome: Outcome = Field(
        description="not promoted: nothing moved; not demoted: the promoted expert moved and the other one stayed"
    )
    reason: str | None = Field(default=None, description="what the driver said, where it refused")


class TrafficRecord(Frozen):
    """Decode steps since the last such record, and where their reads of experts went."""

    kind: Literal["traffic"] = "traffic"
    step: int = Field(ge=0)
    t_s: float = Field(description="Unix time")
    reads: int = Field(ge=0, description="reads of an expert by a step, all placed layers")
    host_reads: int = Field(ge=0, description="of these, on the host")


class AuditRecord(Frozen):
    """An expert read back after it moved, as its layer's kernels read it."""

    kind: Literal["audit"] = "audit"
    step: int = Field(ge=0)
    t_s: float = Field(description="Unix time")
    layer: str
    tensor: str
    expert: int = Field(ge=0)
    memory: Literal["gpu", "host"]
    loaded: str = Field(description="checksum as loaded")
    in_place: str = Field(description="checksum now")


class EndRecord(Frozen):
    """Following stopped: nothing moves any more, and the server goes on with what lies where."""

    kind: Literal["stopped"] = "stopped"
    step: int = Field(ge=0)
    t_s: float = Field(description="Unix time")
    reason: str


Record = Annotated[SwapRecord | TrafficRecord | AuditRecord | EndRecord, Field(discriminator="kind")]
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


def journal_path(folder: Path, rank: int) -> Path:
    return folder / f"journal{rank}.jsonl"


class Journal:
    """Appends records to a rank's journal, each in one write, so that a kill leaves whole lines."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = journal_path(folder, rank)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, record: Record) -> None:
        os.write(self._file, record.model_dump_json().encode() + b"\n")


def load_journal(path: Path) -> list[Record]:
    """Read a journal; raises JournalError naming file, line and fault. A last line without its end is not a record yet."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(f"{path}: no journal of swaps can be read there: {error}") from error
    records = []
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            records.append(_RECORD.validate_json(line))
        except ValidationError as error:
            raise JournalError(f"{path}, line {number}: {explain(error)}") from error
    return records


def residency_after(
    host: Mapping[str, Iterable[int]], records: Iterable[Record], experts: int, classes: int
) -> dict[str, set[int]]:
    """Host experts of each layer once the records happened, from those of the plan.

    Raises JournalError for a record that contradicts what went before: an expert promoted that was not on the host, one
    demoted that was, two of different classes, a layer or an expert that does not exist, an audit that found the expert
    in the other memory or other bytes, a step before the last one's, anything moved after following stopped.
    """
    now = {name: set(ids) for name, ids in host.items()}
    step, stopped = 0, False
    for number, record in enumerate(records, 1):
        where = f"record {number}"
        if record.step < step:
            raise JournalError(f"{where}: step {record.step} after step {step}")
        step = record.step
        if isinstance(record, EndRecord):
            stopped = True
        elif isinstance(record, SwapRecord):
            _apply(record, now, experts, classes, stopped, where)
        elif isinstance(record, AuditRecord):
            _check_audit(record, now, where)
    return now


def _apply(record: SwapRecord, now: dict[str, set[int]], experts: int, classes: int, stopped: bool, where: str) -> None:
    if record.layer not in now:
        raise JournalError(f"{where}: no layer {record.layer} in the plan")
    layer, up, down = now[record.layer], record.promoted, record.demoted
    if max(up, down) >= experts:
        raise JournalError(f"{where}: {record.layer} has experts 0 to {experts - 1}, found {max(up, down)}")
    if record.outcome == "not promoted":
        return
    if stopped:
        raise JournalError(f"{where}: {record.layer}: expert {up} moved after following stopped")
    if up not in layer:
        raise JournalError(f"{where}: {record.layer}: expert {up} was promoted but was not on the host")
    if down in layer or down == up:
        raise JournalError(f"{where}: {record.layer}: expert {down} was to be demoted but was on the host")
    if (up - down) % classes:
        raise JournalError(f"{where}: {record.layer}: experts {up} and {down} cannot change places (classes: {classes})")
    layer.remove(up)
    if record.outcome == "done":
        layer.add(down)


def _check_audit(record: AuditRecord, now: dict[str, set[int]], where: str) -> None:
    if record.layer not in now:
        raise JournalError(f"{where}: no layer {record.layer} in the plan")
    due = "host" if record.expert in now[record.layer] else "gpu"
    if record.memory != due:
        raise JournalError(
            f"{where}: {record.layer}.{record.tensor}: expert {record.expert} lay in {record.memory} memory, due: {due}"
        )
    if record.in_place != record.loaded:
        raise JournalError(f"{where}: {record.layer}.{record.tensor}: expert {record.expert} differs from what was loaded")
