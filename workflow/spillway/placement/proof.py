"""Proof of placement: what each rank found in its own memory, and the check that the harness makes before a run counts.

A flag that is accepted and ignored is the commonest fault of offloading. So each rank reads back from the driver which
memory backs the very parameters that its kernels use, compares sampled experts with what was loaded, and measures how
fast it reads the host part. The checker works out from the plan alone what must have been found.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from spillway.placement.follow import parse_residency
from spillway.placement.journal import (
    AuditRecord,
    EndRecord,
    JournalError,
    Record,
    SwapRecord,
    journal_path,
    load_journal,
    residency_after,
)
from spillway.placement.layout import PAGE_BYTES, placed_layout
from spillway.placement.plan import Frozen, Plan, PlanError, explain, read_json
from spillway.placement.switch_over import crossing

DIRECTORY_VARIABLE = "SPILLWAY_PROOF_DIR"
STAGE_ROWS_VARIABLE = "SPILLWAY_STAGE_ROWS"


def proof_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


AUDIT_EVERY = 64
"""Swaps between two after which the experts that moved are read back."""


class ProofError(RuntimeError):
    """The server did not prove its placement."""


class TensorProof(Frozen):
    """One weight tensor of one layer on one rank, bytes as the driver reports them for the parameter in use."""

    experts: int
    expert_bytes: int
    host_bytes: int
    gpu_bytes: int


class ExpertSample(Frozen):
    """Checksums of one expert's bytes: as loaded, as the kernels read it in place, and as staged (null: no staging)."""

    expert: int
    tensor: str
    memory: Literal["gpu", "host"]
    loaded: str
    in_place: str
    staged: str | None


class LayerProof(Frozen):
    host_experts: tuple[int, ...] = Field(description="of which the driver says that they lie on the host")
    backend: str
    tensors: dict[str, TensorProof]
    samples: tuple[ExpertSample, ...] = ()


class SwitchOver(Frozen):
    """Cost of one layer's experts by rows of a step, and from how many rows on they are staged.

    `in_place_s` is timed; `staged_s` is the longer of the layer's copy and of computing from the copies, each timed alone.
    The layer is the first of the plan's that runs.
    """

    rows: int | None = Field(description="steps of at least this many rows are staged; null: never within those timed")
    rows_timed: tuple[int, ...]
    in_place_s: tuple[float, ...]
    staged_s: tuple[float, ...]
    copy_s: float
    host_share: float = Field(description="share of picks on the host that the timed routing had")
    measured: bool = Field(description="false: set by SPILLWAY_STAGE_ROWS")


class FollowingProof(Frozen):
    """How residency follows traffic; the journal of the same rank says what moved since."""

    setting: str = Field(description="value of SPILLWAY_RESIDENCY with every default filled in")
    classes: int = Field(description="experts whose ids agree modulo this can change places")
    spare_bytes: int = Field(description="GPU memory of the slots through which experts move")
    copied_bytes: int = Field(description="host memory that holds copies of GPU experts")


class RankProof(Frozen):
    """What one rank proves."""

    schema_version: Literal["spillway.proof/1"] = "spillway.proof/1"
    state: Literal["loaded", "ready"] = Field(description="loaded: before the first large step; ready: after it")
    rank: int
    ranks: int
    plan_sha256: str
    engine: str = Field(description="vLLM's version")
    device: str
    numa_node: int
    layers: dict[str, LayerProof]
    parameters: dict[str, int] = Field(default_factory=dict, description="whole parameters on the host: bytes found")
    host_read_bytes_per_s: float
    gpu_read_bytes_per_s: float
    host_copy_bytes_per_s: float | None = Field(description="copy engine, host to staging buffer; null: no staging")
    kernel_read_bytes_per_s: float | None = Field(
        default=None,
        description="effective rate of the experts' kernel on host experts (1 row, no expert twice): their bytes over the "
        "time that they take beyond as many GPU experts, so it can exceed the link's own rate",
    )
    staging_bytes: int
    switch_over: SwitchOver | None = None
    largest_graph_rows: int = Field(
        description="steps of up to this many rows replay a CUDA graph, which reads in place; under FULL_DECODE_ONLY those "
        "with prefill do not"
    )
    following: FollowingProof | None = Field(default=None, description="null: experts stay where the plan put them")
    routing: str | None = Field(default=None, description="synthetic routing in force, null for the model's own")
    seconds: dict[str, float] = Field(default_factory=dict, description="where the plugin's share of the start went")

    @property
    def host_bytes(self) -> int:
        return sum(t.host_bytes for layer in self.layers.values() for t in layer.tensors.values())

    @property
    def gpu_bytes(self) -> int:
        return sum(t.gpu_bytes for layer in self.layers.values() for t in layer.tensors.values())

    @property
    def most_classes(self) -> int | None:
        """What the layout of layers whose experts move was chosen for; None where none does."""
        following = None if self.following is None else parse_residency(self.following.setting, has_plan=True)
        return None if following is None else following.classes

    @property
    def backend_names(self) -> set[str]:
        return {layer.backend for layer in self.layers.values()}

    def save(self, folder: Path) -> None:
        """Write the proof whole or not at all."""
        path = proof_path(folder, self.rank)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        partial.replace(path)


def load_proofs(folder: Path) -> list[RankProof]:
    """Read the proofs of all ranks; raises ProofError when there is none or one cannot be read."""
    paths = sorted(folder.glob("rank*.json"))
    if not paths:
        raise ProofError(f"{folder}: no proof of placement; the plugin did not run, or no layer was placed")
    proofs = []
    for path in paths:
        try:
            proofs.append(RankProof.model_validate(read_json(path)))
        except (ValidationError, PlanError) as error:
            reason = explain(error) if isinstance(error, ValidationError) else error
            raise ProofError(f"{path}: {reason}") from error
    return proofs


MODELS_OWN = "the model's own"


@dataclass(frozen=True)
class Asked:
    """What a server was asked for beside its plan."""

    residency: str | None = None
    """Value of SPILLWAY_RESIDENCY."""
    stage_rows: str | None = None
    """Value of SPILLWAY_STAGE_ROWS."""
    routing: str | None = None
    """Label of the synthetic routing at the start; None: the model's own."""


def require_proof(plan: Plan, folder: Path, ranks: int, asked: Asked | None = None) -> list[RankProof]:
    """The proofs of a server that may be measured; raises ProofError with every fault found.

    Without `asked` it stays unchecked whether the server also did what it was asked for beside the plan.
    """
    proofs = load_proofs(folder)
    faults = check_proofs(plan, proofs, ranks, asked)
    if faults:
        shown = "\n  ".join(faults[:20])
        raise ProofError(f"{folder}: {len(faults)} faults in the proof of placement:\n  {shown}")
    return proofs


def check_proofs(plan: Plan, proofs: Sequence[RankProof], ranks: int, asked: Asked | None = None) -> list[str]:
    """Every way in which the proofs fall short of the plan, and of what was `asked`; empty when the placement is proved."""
    faults = []
    found = sorted(proof.rank for proof in proofs)
    if found != list(range(ranks)):
        faults.append(f"proofs of ranks {found}, expected 0 to {ranks - 1} once each")
    backends = Counter(layer.backend for proof in proofs for layer in proof.layers.values())
    if len(backends) > 1:
        faults.append(f"more than one expert backend in use: {dict(backends)}")
    for field in ("engine", "routing", "following"):
        if len({getattr(proof, field) for proof in proofs}) > 1:
            told = {proof.rank: getattr(proof, field) for proof in proofs}
            faults.append(f"ranks differ in {field}: {told}")
    for proof in proofs:
        each = _check_rank(plan, proof, ranks) + ([] if asked is None else _check_asked(plan, proof, asked))
        faults += [f"rank {proof.rank}: {fault}" for fault in each]
    return faults


def _check_asked(plan: Plan, proof: RankProof, asked: Asked) -> list[str]:
    faults = []
    follows, due = proof.following, parse_residency(asked.residency, has_plan=True)
    if (follows and follows.setting) != (due and due.setting):
        does = "stay where they are" if follows is None else f"move ({follows.setting})"
        faults.append(f"its experts {does}, asked: {asked.residency or 'static'}")
    if proof.routing != asked.routing:
        faults.append(f"its picks are {proof.routing or MODELS_OWN}, asked: {asked.routing or MODELS_OWN}")
    switch = proof.switch_over
    if asked.stage_rows == "off":
        if proof.staging_bytes:
            faults.append("large steps are staged, asked: off")
    elif not proof.staging_bytes:
        if plan.host_experts:
            faults.append("large steps are not staged, although that was not switched off")
    elif switch is not None and asked.stage_rows is None and not switch.measured:
        faults.append(f"steps are staged from {switch.rows} rows on by a setting, asked: as measured")
    elif switch is not None and asked.stage_rows is not None and (switch.measured or switch.rows != int(asked.stage_rows)):
        faults.append(f"steps are staged from {switch.rows} rows on, asked: {asked.stage_rows}")
    return faults


def _check_rank(plan: Plan, proof: RankProof, ranks: int) -> list[str]:
    faults = []
    if proof.plan_sha256 != plan.sha256:
        faults.append(f"proves plan {proof.plan_sha256[:12]}, not {plan.sha256[:12]}")
    if proof.ranks != ranks:
        faults.append(f"was one of {proof.ranks} ranks, expected {ranks}")
    if proof.state != "ready":
        faults.append("was written before the engine's first step; vLLM runs one as it starts: check once the server is ready")
    faults += _check_staging(proof)
    if proof.numa_node < 0:
        faults.append(f"host memory of NUMA node {proof.numa_node}")
    if not 0 < proof.host_read_bytes_per_s < proof.gpu_read_bytes_per_s / 2:
        faults.append(
            f"host experts are read at {proof.host_read_bytes_per_s / 1e9:.1f} GB/s, GPU experts at "
            f"{proof.gpu_read_bytes_per_s / 1e9:.1f} GB/s: they do not lie in different memories"
        )
    expected = {name for name, ids in plan.layers.items() if ids}
    if set(proof.layers) != expected:
        faults.append(
            f"layers placed without need: {sorted(set(proof.layers) - expected)}, "
            f"not placed: {sorted(expected - set(proof.layers))}"
        )
    if set(proof.parameters) != set(plan.parameters):
        faults.append(f"parameters on the host: {sorted(proof.parameters)}, plan: {sorted(plan.parameters)}")
    faults += [
        f"parameter {name}: {size} bytes on the host, expected whole pages of {PAGE_BYTES}"
        for name, size in proof.parameters.items()
        if size <= 0 or size % PAGE_BYTES
    ]
    for name in sorted(expected & set(proof.layers)):
        found = _check_layer(plan, name, proof.layers[name], ranks, proof.most_classes)
        found += _check_samples(plan, proof.layers[name], plan.layers[name], bool(proof.staging_bytes))
        faults += [f"{name}: {fault}" for fault in found]
    return faults


def _check_staging(proof: RankProof) -> list[str]:
    switch = proof.switch_over
    if not proof.staging_bytes:
        return [] if switch is None else ["a switch-over to staged steps, but no staging buffers"]
    if switch is None or proof.host_copy_bytes_per_s is None:
        return ["staging buffers but no measured switch-over"]
    timed = switch.rows_timed
    if not (timed and len(timed) == len(switch.in_place_s) == len(switch.staged_s) and sorted(set(timed)) == list(timed)):
        counts = f"{len(switch.in_place_s)} times in place and {len(switch.staged_s)} staged"
        return [f"steps of {list(timed)} rows were timed {counts}"]
    due = crossing(timed, switch.in_place_s, switch.staged_s)
    if switch.measured and switch.rows != due:
        return [f"steps are staged from {switch.rows} rows on; by the times measured, from {due}"]
    return []


def _check_layer(plan: Plan, name: str, layer: LayerProof, ranks: int, most_classes: int | None) -> list[str]:
    faults = []
    ids = plan.layers[name]
    if layer.host_experts != ids:
        faults.append(f"experts {list(layer.host_experts)} on the host, plan: {list(ids)}")
        return faults
    expert_bytes = sum(tensor.expert_bytes for tensor in layer.tensors.values())
    if expert_bytes * ranks != plan.model.expert_bytes:
        faults.append(f"{expert_bytes} bytes per expert on each of {ranks} ranks, model: {plan.model.expert_bytes}")
    for key, tensor in layer.tensors.items():
        if tensor.experts != plan.model.experts:
            faults.append(f"{key}: {tensor.experts} experts, model: {plan.model.experts}")
            continue
        layout = placed_layout(tensor.experts, tensor.expert_bytes, ids, most_classes)
        for memory, got, due in (
            ("host", tensor.host_bytes, layout.host_bytes),
            ("GPU", tensor.gpu_bytes, layout.gpu_bytes),
        ):
            if got != due:
                faults.append(f"{key}: {got} bytes in {memory} memory, {due} due, rounding included")
    return faults


def _check_samples(plan: Plan, layer: LayerProof, ids: Sequence[int], staging: bool) -> list[str]:
    faults = []
    for key in layer.tensors:
        samples = [sample for sample in layer.samples if sample.tensor == key]
        sampled = {sample.expert for sample in samples}
        if not sampled & set(ids):
            faults.append(f"{key}: no host expert was sampled")
        if len(ids) < plan.model.experts and not sampled - set(ids):
            faults.append(f"{key}: no GPU expert was sampled")
        if samples and all(set(sample.loaded) == {"0"} for sample in samples):
            faults.append(f"{key}: experts {sorted(sampled)} are nothing but zeros, as memory is into which nothing was loaded")
        faults += [f"{key}: {fault}" for sample in samples for fault in _check_sample(sample, ids, staging)]
    return faults


def _check_sample(sample: ExpertSample, ids: Sequence[int], staging: bool) -> list[str]:
    faults = []
    expert, where = f"expert {sample.expert}", "host" if sample.expert in ids else "gpu"
    if sample.memory != where:
        faults.append(f"{expert} lies in {sample.memory} memory, plan: {where}")
    if sample.in_place != sample.loaded:
        faults.append(f"{expert} read in place differs from what was loaded")
    if sample.staged is None and staging:
        faults.append(f"{expert} was not read back as staged")
    if sample.staged is not None and sample.staged != sample.loaded:
        faults.append(f"{expert} as staged differs from what was loaded")
    return faults


@dataclass(frozen=True)
class Residency:
    """Where experts lie after the swaps of a following server, and the swaps that brought them there."""

    host: dict[str, set[int]]
    records: list[Record]
    """Of rank 0."""
    stopped: str | None
    """Why nothing moves any more, of the first rank that told so; None while traffic is followed."""

    @property
    def swaps(self) -> int:
        return sum(isinstance(record, SwapRecord) and record.outcome == "done" for record in self.records)


def require_journals(plan: Plan, proofs: Sequence[RankProof], folder: Path, audit_every: int = AUDIT_EVERY) -> Residency:
    """What the journals of a server's ranks add to its sound proofs; raises ProofError with every fault found.

    All ranks must have moved the same experts before the same steps, as far as each has come. Every `audit_every` swaps
    must have been followed by a reading back of what moved.
    """
    faults, journals = [], {}
    for proof in proofs:
        assert proof.following is not None, "experts of this server do not move"
        path = journal_path(folder, proof.rank)
        try:
            journals[proof.rank] = load_journal(path)
            residency_after(plan.layers, journals[proof.rank], plan.model.experts, proof.following.classes)
        except JournalError as error:
            faults.append(str(error) if str(path) in str(error) else f"{path}: {error}")
            continue
        moved = [r for r in journals[proof.rank] if isinstance(r, SwapRecord) and r.outcome == "done"]
        audits = {(r.step, r.layer) for r in journals[proof.rank] if isinstance(r, AuditRecord)}
        # The server may be between its last swap and reading that back.
        if len(audits) < (len(moved) - 1) // audit_every:
            faults.append(f"{path}: {len(moved)} swaps but only {len(audits)} of them read back")
    if len({proof.following for proof in proofs}) > 1:
        faults.append("ranks follow with different settings")
    told = {rank: [_what_moved(r) for r in records if isinstance(r, SwapRecord)] for rank, records in journals.items()}
    for rank, moves in told.items():
        for number, (mine, first) in enumerate(zip(moves, told.get(0, []), strict=False), 1):
            if mine != first:
                faults.append(f"swap {number}: rank {rank} tells of {mine}, rank 0 of {first}")
                break
    if faults:
        shown = "\n  ".join(faults[:20])
        raise ProofError(f"{folder}: {len(faults)} faults in the journals of swaps:\n  {shown}")
    classes = proofs[0].following.classes if proofs[0].following is not None else 1
    ends = (record.reason for _, records in sorted(journals.items()) for record in records if isinstance(record, EndRecord))
    host = residency_after(plan.layers, journals[0], plan.model.experts, classes)
    return Residency(host, journals[0], next(ends, None))


def _what_moved(record: SwapRecord) -> tuple[int, str, int, int, str]:
    return record.step, record.layer, record.promoted, record.demoted, record.outcome
