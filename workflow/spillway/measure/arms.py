"""One way to serve a model: its folder, its plan, the launch, and the proof that the server is placed as planned."""

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from spillway.engine.dummymodel import write_shape
from spillway.engine.errors import ServerError
from spillway.engine.repository import refuse_foreign_code
from spillway.engine.server import Launch, Server
from spillway.engine.tinymodel import write_model
from spillway.measure.errors import MeasureError
from spillway.measure.run import Run
from spillway.placement import choose
from spillway.placement.counts import COUNTS_VARIABLE, load_counts
from spillway.placement.discovery import write_discovery
from spillway.placement.engine_plan import require_log, write_bare
from spillway.placement.follow import RESIDENCY_VARIABLE
from spillway.placement.plan import Plan, PlanError, check_model, export_bare, identify_model, load_plan, moe_layers
from spillway.placement.proof import DIRECTORY_VARIABLE, STAGE_ROWS_VARIABLE, Asked, RankProof, require_proof
from spillway.placement.routing import ROUTING_VARIABLE, STRATEGY, STRATEGY_VARIABLE, SyntheticRouting
from spillway.record.parquet import sha256
from spillway.spec.arm import Arm, PlanChoice, PlanFile, Routing
from spillway.spec.experiment import OnHost, Resolved
from spillway.spec.host import Argument, Converted, Engine, Host, Model, Shape, TinyMoe

WORKER_EXTENSION = "spillway.placement.worker.PlacementWorker"
RPC_TIMEOUT_S = 30.0
BARE_PLAN = "plan.bare.json"
"""Where an engine that places by itself finds its plan, in the folder of a start."""


@dataclass(frozen=True)
class Way:
    """An arm with all that its launch needs, made before any server starts. `name` is empty where there is one only."""

    name: str
    arm: Arm
    model_name: str
    model: Model
    model_folder: Path
    plan: Plan | None

    @property
    def label(self) -> str:
        return self.name or "served"

    @property
    def columns(self) -> dict[str, str]:
        """What the rows of an experiment with arms carry beside the others."""
        return {"arm": self.name} if self.name else {}


def ways(run: Run, on: OnHost) -> list[Way]:
    """Every arm of the experiment, with its model and its plan in place; raises MeasureError for one that cannot be made."""
    found: list[Way] = []
    folders: dict[str, Path] = {}  # a model that is made on the spot takes seconds
    for name, arm in on.served().items():
        model_name = arm.model or on.model
        model = run.asked.arm_models.get(name, run.asked.served_model)
        if model_name not in folders:
            folders[model_name] = model_folder(model_name, model, run.root)
        folder = folders[model_name]
        try:
            alike = next((way for way in found if way.arm.served_as(arm)), None)
            if alike is not None:  # the plan of the start that serves both
                plan = alike.plan
            else:
                plan = None if arm.plan is None else _plan(run.root, arm.plan, arm.routing, folder)
            if plan is not None and run.asked.host.engine.plan_variable is not None:
                export_bare(plan)
        except PlanError as error:
            raise MeasureError(f"experiments/{run.asked.name}.yaml: {_where(run.asked, name)}.plan: {error}") from None
        found.append(Way(name, arm, model_name, model, folder, plan))
    return found


def _where(asked: Resolved, arm: str) -> str:
    return f"hosts.{asked.host_name}" + (f".arms.{arm}" if arm else "")


def _plan(root: Path, asked: PlanChoice | PlanFile, routing: Routing | None, folder: Path) -> Plan:
    """The plan that an arm asks for; raises PlanError."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model, layers = identify_model(config), moe_layers(config)
    if isinstance(asked, PlanFile):
        plan = load_plan(root / plan_path(asked))
        check_model(plan, model, layers)
        return plan
    counts = None
    if asked.counts is not None:
        counts = load_counts(root / asked.counts)
    elif routing is not None:
        counts = synthetic(routing).counts(model, layers)
    if asked.choose == "whole_layers":
        return choose.whole_layers(model, layers, _number(asked.host_share, len(layers)), counts)
    if asked.choose == "coldest_per_layer":
        assert counts is not None  # the specification was checked for it
        return choose.coldest_per_layer(counts, _number(asked.host_share, model.experts))
    experts = _number(asked.host_share, len(layers) * model.experts)
    if asked.choose == "random":
        assert asked.seed is not None
        return choose.random_experts(model, layers, experts, asked.seed, counts)
    assert counts is not None
    return choose.coldest(counts, experts)


def plan_path(asked: PlanFile) -> Path:
    """Where a plan that an arm names lies, from the project's root; a variable that is not set stays in it."""
    return Path(os.path.expandvars(asked.file)).expanduser()


def _number(share: float, of: int) -> int:
    """The share in whole things, at least one and never all."""
    return min(max(1, math.floor(share * of + 0.5)), of - 1)


def _routing(way: Way) -> str | None:
    """Label of the synthetic routing that its server starts with; None: the model's own."""
    return None if way.arm.routing is None else synthetic(way.arm.routing).label


def synthetic(routing: Routing) -> SyntheticRouting:
    """The engine's side of a routing that an experiment asks for."""
    return SyntheticRouting(routing.unpopular, routing.cold_share, routing.seed, routing.shift_every_s, routing.sets)


def model_folder(name: str, model: Model, root: Path) -> Path:
    """The model's folder with its config.json; raises MeasureError if it is absent or not the described one."""
    made = root / "build" / "models" / name
    match model.source:
        case TinyMoe() as source:
            if (found := write_model(made, source.shape, source.format)) != source.sha256:
                raise MeasureError(
                    f"experiments/models/{name}.yaml: source.sha256: found {source.sha256}; as made here: {found}"
                )
            return made
        case Shape() as source:
            write_shape(made, source.config)
            return made
        case Converted() as source:
            folder = root / ".envs" / source.setup / "model"
            weights = folder / "model.safetensors"
            if not weights.is_file():
                raise MeasureError(f"{weights}: no such file; make the model with: scripts/setup {source.setup}")
            if (found := sha256(weights)) != source.sha256:
                raise MeasureError(
                    f"{weights}: found SHA-256 {found}; expected {source.sha256} of experiments/models/{name}.yaml: "
                    f"delete {folder.parent} and make it again with: scripts/setup {source.setup}"
                )
            return folder
        case source:
            folder = Path(os.path.expandvars(source.path)).expanduser()
            if not (folder / "config.json").is_file():
                raise MeasureError(
                    f"experiments/models/{name}.yaml: source.path: no config.json in {folder}"
                    + (": set that variable to the model's folder" if "$" in str(folder) else "")
                )
            refuse_foreign_code(folder, model.trust_remote_code, f"experiments/models/{name}.yaml")
            return folder


def launch(run: Run, on: OnHost, way: Way, folder: Path, overrides: Mapping[str, Argument] = MappingProxyType({})) -> Launch:
    """The server's command, environment and proofs; `folder` takes its plan and its proof of placement."""
    engine = run.asked.host.engine
    python = run.root / ".envs" / engine.environment / "bin" / "python"
    if not python.exists():
        raise MeasureError(
            f"{python}: no such interpreter; make the engine's environment with: scripts/setup {engine.environment}"
        )
    given = {**given_arguments(run.asked.host, on, way.arm), **overrides}
    command = server_command(str(python), engine.module, way.model_name, way.model, way.model_folder, given)
    workloads = on.workloads(way.arm).values()
    longest = max((workload.longest_sequence_tokens for workload in workloads), default=256)
    return Launch(
        command=command,
        environment=engine.variables | _placement_variables(engine, on, way, folder) | way.arm.variables,
        model=way.model_name,
        vocabulary=range(way.model.first_prompt_token, way.model.last_prompt_token + 1),
        full_batch=max((workload.most_streams for workload in workloads), default=1),
        long_prefill_tokens=min(longest, way.model.max_model_len - 1),
        progress_timeout_s=on.answer_timeout_s or engine.answer_timeout_s,
    )


def given_arguments(host: Host, on: OnHost | None, arm: Arm) -> dict[str, Argument | list[str]]:
    """What host, experiment and arm give a server's command beside what its model asks for; the arm's word is the last."""
    asks_workers = on is not None and (on.changes_cold_share or arm.count)
    extension = {"worker-extension-cls": WORKER_EXTENSION} if asks_workers else {}
    return {**extension, **host.engine.arguments, **arm.arguments}


def server_command(
    python: str, module: str, model_name: str, model: Model, folder: Path, given: Mapping[str, Argument | list[str]]
) -> list[str]:
    """The command of a server without host and port: what the model asks for, then the arguments that are `given`."""
    arguments = {
        "model": str(folder),
        "served-model-name": model_name,
        "max-model-len": model.max_model_len,
        **({"load-format": "dummy"} if model.weights == "dummy" else {}),
        **({"trust-remote-code": True} if model.trust_remote_code else {}),
        **given,
    }
    command = [python, "-m", module]
    for option, value in arguments.items():
        if value is not False:
            values = value if isinstance(value, list) else [] if value is True else [value]
            command += [f"--{option}", *map(str, values)]
    return command


def _placement_variables(engine: Engine, on: OnHost, way: Way, folder: Path) -> dict[str, str]:
    """Environment of the plugin, or of an engine that places by itself; empty where nothing asks for either."""
    if way.plan is None and way.arm.routing is None:
        return {}
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if engine.plan_variable is not None:
        assert way.plan is not None  # a specification with synthetic routing was refused
        way.plan.save(folder / "plan.json")
        write_bare(way.plan, folder / BARE_PLAN)
        return {engine.plan_variable: str(folder / BARE_PLAN)}
    variables = {"PYTHONPATH": os.pathsep.join(str(path) for path in write_discovery(folder / "plugin"))}
    if way.arm.routing is not None:
        variables |= {STRATEGY_VARIABLE: STRATEGY, ROUTING_VARIABLE: synthetic(way.arm.routing).setting}
    if way.arm.count:
        variables[COUNTS_VARIABLE] = str(folder / "counts.json")
    if on.changes_cold_share or way.arm.count:
        variables["VLLM_SERVER_DEV_MODE"] = "1"  # the server has /collective_rpc only then; it listens on loopback alone
    if way.plan is not None:
        way.plan.save(folder / "plan.json")
        variables |= {"SPILLWAY_PLAN": str(folder / "plan.json"), DIRECTORY_VARIABLE: str(folder / "proof")}
        if way.arm.residency is not None:
            variables[RESIDENCY_VARIABLE] = way.arm.residency
    return variables


def proved(run: Run, way: Way, folder: Path) -> list[RankProof]:
    """The proofs of a ready server's ranks, none without a plan.

    Raises ProofError unless they agree with the plan, and with what else the arm asked for. `way` is the one that it was
    started for.

    None either from an engine that places by itself: of it no more is known than that its log agrees with the plan.
    """
    if way.plan is None:
        return []
    arguments = run.asked.host.engine.arguments | way.arm.arguments
    ranks = arguments.get("tensor-parallel-size", 1)
    assert isinstance(ranks, int)
    if run.asked.host.engine.plan_variable is not None:
        require_log(way.plan, (folder / "server.log").read_text(errors="replace"), ranks)
        return []
    asked = Asked(
        residency=way.arm.residency,
        stage_rows=(run.asked.host.engine.variables | way.arm.variables).get(STAGE_ROWS_VARIABLE),
        routing=_routing(way),
    )
    return require_proof(way.plan, folder / "proof", ranks, asked)


def set_cold_share(server: Server, share: float) -> None:
    """Have the running server's synthetic routing give the unpopular experts this share; raises ServerError."""
    found = _ask_workers(server, "spillway_set_cold_share", repr(share))
    if any(rank != {"cold_share": share} for rank in found):
        raise ServerError(f"the cold share could not be set to {share:g}: the server answered: {found}")


def forget_prefixes(server: Server) -> None:
    """Empty the running server's prefix cache: the next arm is asked the same, and is to read it. Raises ServerError."""
    deadline = time.monotonic() + RPC_TIMEOUT_S
    while True:
        answer = _post(server, "/reset_prefix_cache", None)
        if answer.status_code == 200 and (not answer.content or answer.json().get("success", True)):
            return
        if answer.status_code != 200 or time.monotonic() > deadline:  # it fails while blocks are held by a request that ends
            raise ServerError(f"/reset_prefix_cache: the server answered {answer.status_code}: {answer.text[:500]}")
        time.sleep(0.2)


HOST_READS = ("decode_steps", "host_reads", "host_read_bytes")


def host_reads(server: Server) -> dict[str, int]:
    """HOST_READS of the fullest rank since the engine's start, of an arm that counts; raises ServerError."""
    found = _ask_workers(server, "spillway_host_reads")
    if any(not isinstance(rank, dict) or set(rank) != set(HOST_READS) for rank in found):
        raise ServerError(f"spillway_host_reads: the server answered: {found}")
    return max(found, key=lambda rank: rank["host_read_bytes"])


def _ask_workers(server: Server, method: str, *args: str) -> list[Any]:
    """What each rank's worker answers to a method of WORKER_EXTENSION; raises ServerError."""
    answer = _post(server, "/collective_rpc", {"method": method, "args": list(args), "timeout": RPC_TIMEOUT_S})
    found = answer.json().get("results") if answer.status_code == 200 else None
    if not found:
        raise ServerError(f"{method}: the server answered {answer.status_code}: {answer.text[:500]}")
    return list(found)


def _post(server: Server, path: str, body: Any) -> httpx.Response:
    try:
        return httpx.post(f"{server.base_url}{path}", json=body, timeout=RPC_TIMEOUT_S, trust_env=False)
    except httpx.TransportError as error:
        server.check_alive()
        raise ServerError(f"{path}: the server did not answer: {error!r}") from error


def arm_row(run: Run, way: Way, boot: int) -> dict[str, Any]:
    """A row of the table `arms` for a start that has not succeeded yet."""
    plan = way.plan
    row: dict[str, Any] = dict.fromkeys(
        ("host_bytes", "gpu_bytes", "host_read_bytes_per_s", "host_copy_bytes_per_s", "staged_from_rows", "backend",
         "startup_s", "message")
    )  # fmt: skip
    return row | {
        "run": run.id,
        "boot": boot,
        "arm": way.label,
        "outcome": "failed",
        "model": way.model_name,
        "arguments": json.dumps(way.arm.arguments, sort_keys=True),
        "plan_sha256": None if plan is None else plan.sha256,
        "plan_choice": None if plan is None else plan.choice.model_dump_json(),
        "host_experts": None if plan is None else plan.host_experts,
        "routing": _routing(way),
    }


def proof_columns(proofs: list[RankProof]) -> dict[str, Any]:
    """What the proofs add to a row of `arms`; nothing where there is no plan."""
    if not proofs:
        return {}
    copies = [proof.host_copy_bytes_per_s for proof in proofs if proof.host_copy_bytes_per_s is not None]
    switches = {proof.switch_over.rows for proof in proofs if proof.switch_over is not None}
    return {
        "host_bytes": sum(proof.host_bytes for proof in proofs),
        "gpu_bytes": sum(proof.gpu_bytes for proof in proofs),
        "host_read_bytes_per_s": min(proof.host_read_bytes_per_s for proof in proofs),
        "host_copy_bytes_per_s": min(copies, default=None),
        "staged_from_rows": max((rows for rows in switches if rows is not None), default=None),
        "backend": ", ".join(sorted(set().union(*(proof.backend_names for proof in proofs)))),
    }
