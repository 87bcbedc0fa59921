"""An experiment: a question, and for each host the model and the cells that answer it there."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, TypeAdapter, ValidationError, model_validator

from spillway.spec.arm import Arm, AskedPlan, PlanChoice, Routing
from spillway.spec.engine_options import check_arguments
from spillway.spec.host import Argument, Host, Model
from spillway.spec.names import NAME_RULE, is_name
from spillway.spec.quality import Quality
from spillway.spec.read import SpecError, Strict, read
from spillway.spec.shown import shown
from spillway.spec.topology import LinkRates
from spillway.spec.workload import Count, Workload

EXPERIMENTS = Path("experiments")
COLD_SHARE = "cold_share"
MOST_CELLS = 1000
_WORKLOAD: TypeAdapter[Workload] = TypeAdapter(Workload)


class CellGroup(Strict):
    """One workload, or one for each combination of the swept values."""

    name: str | None = Field(default=None, description="prefix of the cells' names; needed where two groups would collide")
    workload: dict[str, Any] = Field(description="a workload without the swept fields; see spec/workload.py")
    sweep: dict[str, list[int | float | str]] = Field(
        default_factory=dict, description=f"field of the workload, or {COLD_SHARE} -> its values, one cell each"
    )

    def cells(self) -> dict[str, Workload]:
        """Cell name -> workload; raises ValueError naming the cell whose workload is wrong."""
        cells: dict[str, Workload] = {}
        for name, swept in self._combinations():
            asked = {field: value for field, value in swept.items() if field != COLD_SHARE}
            if twice := sorted(set(asked) & set(self.workload)):
                raise ValueError(f"sweep.{twice[0]}: found here and in workload; expected one of the two")
            if name in cells:
                raise ValueError(f"sweep: found the cell {shown(name)} twice; expected different values")
            try:
                cells[name] = _WORKLOAD.validate_python(self.workload | asked)
            except ValidationError as error:
                fault = error.errors()[0]
                field = ".".join(str(part) for part in fault["loc"][1:]) or "workload"
                raise ValueError(
                    f"workload of cell {shown(name)}: {field[:80]}: found {shown(fault['input'])}; "
                    f"expected: {fault['msg'].removeprefix('Value error, ')}"
                ) from None
        return cells

    def cold_shares(self) -> dict[str, float]:
        """Cell name -> cold share that it sweeps, for cells that do; raises ValueError for what is no share."""
        shares: dict[str, float] = {}
        for name, swept in self._combinations():
            if COLD_SHARE in swept:
                share = swept[COLD_SHARE]
                if isinstance(share, str) or not 0 <= share <= 1:
                    raise ValueError(f"sweep.{COLD_SHARE}: found {shown(share)}; expected fractions from 0 to 1")
                shares[name] = float(share)
        return shares

    def _combinations(self) -> Iterator[tuple[str, dict[str, int | float | str]]]:
        """Cell name and swept values, for each combination of them; raises ValueError for more than MOST_CELLS."""
        if (cells := math.prod(map(len, self.sweep.values()))) > MOST_CELLS:
            raise ValueError(f"sweep: found {cells} combinations; expected at most {MOST_CELLS} cells")
        for values in itertools.product(*self.sweep.values()):
            swept = dict(zip(self.sweep, values, strict=True))
            label = ",".join(f"{field}={value}" for field, value in swept.items())
            yield " ".join(part for part in (self.name, label) if part) or str(self.workload.get("kind", "cell")), swept


class OnHost(Strict):
    """What an experiment does on one host."""

    model: str = Field(description="file in experiments/models/, without .yaml")
    boots: PositiveInt = Field(default=1, description="starts of the server; the unit of intervals over boots")
    seed: Count = Field(description="of prompts and arrivals; the run id keeps prompts of two runs apart")
    attempts: dict[str, dict[str, Argument]] = Field(
        default_factory=dict,
        description="starts that memory may refuse: name -> engine arguments that differ; outcome predicted and found",
    )
    plan: AskedPlan | None = Field(default=None, description="of an experiment without arms: experts on the host")
    routing: Routing | None = Field(
        default=None, description="synthetic routing of all arms that name none; absent: the model's"
    )
    arms: dict[str, Arm] = Field(
        default_factory=dict, description="name -> a way to serve the model; each gets the same boots and cells in turn"
    )
    cells: list[CellGroup] = Field(default_factory=list, description="absent: the experiment sends no load")
    answer_timeout_s: PositiveFloat | None = Field(
        default=None, description="silence on a request after which it has failed, of longer prompts than the host's is for"
    )

    @model_validator(mode="after")
    def _check(self) -> "OnHost":
        self.workloads()
        for name, arguments in self.attempts.items():
            check_arguments(f"attempts.{name}", arguments, free=frozenset({"max-model-len"}))
        for name in [*self.attempts, *self.arms]:
            if "/" in name or not name.isprintable():
                raise ValueError(f"{name!r}: found a name that is no name of a folder; expected one without `/`")
        if self.arms and self.plan is not None:
            raise ValueError("plan: found one beside arms; expected it in the arms that have one")
        for name, arm in self.served().items():
            where = f"arms.{name}." if self.arms else ""
            if isinstance(arm.plan, PlanChoice) and arm.plan.needs_counts and arm.routing is None:
                raise ValueError(f"{where}plan.counts: found nothing; expected recorded counts, or a routing to take them from")
            if arm.boots is not None and arm.boots > self.boots:
                raise ValueError(f"{where}boots: found {arm.boots}; expected at most the experiment's, {self.boots}")
            if unknown := sorted(set(arm.situations or []) - {str(group.name) for group in self.cells}):
                raise ValueError(f"{where}situations: found {shown(unknown[0])}; expected names of groups of cells")
            if self.cold_shares() and arm.routing is None:
                raise ValueError(f"{where}routing: found nothing; expected one, since cells sweep {COLD_SHARE}")
        return self

    def served(self) -> dict[str, Arm]:
        """The arms with their routing; of an experiment without any, the one way in which it is served, named ``."""
        if not self.arms:
            return {"": Arm(plan=self.plan, routing=self.routing)}
        return {name: arm.model_copy(update={"routing": arm.routing or self.routing}) for name, arm in self.arms.items()}

    def cold_shares(self) -> dict[str, float]:
        """Cell name -> share of picks on unpopular experts during that cell, for cells that do not take the arm's."""
        return {cell: share for group in self.cells for cell, share in group.cold_shares().items()}

    @property
    def changes_cold_share(self) -> bool:
        """Whether a running server's cold share is changed: cells sweep it, or one start serves arms that differ in it."""
        arms = list(self.served().values())
        return bool(self.cold_shares()) or any(one.served_as(other) for one, other in itertools.combinations(arms, 2))

    def situations(self) -> dict[str, str]:
        """Cell name -> situation that it is a level of: the name of its group, or `all`."""
        return {cell: group.name or "all" for group in self.cells for cell in group.cells()}

    def boots_of(self, arm: Arm) -> int:
        """Starts of an arm's server."""
        return self.boots if arm.boots is None else arm.boots

    def workloads(self, arm: Arm | None = None) -> dict[str, Workload]:
        """Cell name -> workload over all groups, or those that an arm measures.

        Raises ValueError for a name that two groups share.
        """
        cells: dict[str, Workload] = {}
        for position, group in enumerate(self.cells):
            if arm is not None and arm.situations is not None and group.name not in arm.situations:
                continue
            for name, workload in group.cells().items():
                if name in cells:
                    raise ValueError(f"cells[{position}]: found the cell {name!r} again; expected a `name` to tell them apart")
                cells[name] = workload
        return cells


class Calculated(Strict):
    """What an experiment calculates, without a server."""

    seed: Count = Field(description="of resampling and simulation")
    trace: str | None = Field(
        default=None,
        description="Parquet file of recorded agent sessions, one row per request; $VARIABLES are expanded, and where one is "
        "not set, nothing is calculated from a trace",
    )
    q_days: PositiveInt = Field(description="days that the published q is assumed to rest on, for its interval")
    q_day_cv: PositiveFloat = Field(description="assumed coefficient of variation of q from day to day, for its interval")


class NotRun(Strict):
    """An experiment that a host cannot run."""

    not_run: str = Field(min_length=10, description="why, in words that the paper can print")


def _which(value: Any) -> str:
    if not isinstance(value, dict):
        return type(value).__name__
    return (
        "NotRun"
        if "not_run" in value
        else "Calculated"
        if "q_days" in value
        else "LinkRates"
        if "buffer_mib" in value
        else "Quality"
        if "systems" in value
        else "OnHost"
    )


Asked = Annotated[
    Annotated[OnHost, Tag("OnHost")]
    | Annotated[Calculated, Tag("Calculated")]
    | Annotated[LinkRates, Tag("LinkRates")]
    | Annotated[Quality, Tag("Quality")]
    | Annotated[NotRun, Tag("NotRun")],
    Discriminator(_which),
]


class Experiment(Strict):
    """A file of experiments/."""

    question: str = Field(description="the question that it answers, one sentence")
    measures: Literal["memory", "load", "activity", "seats", "topology", "quality"] = Field(
        description="memory: bytes of a ready server against the prediction; load: latencies of requests; activity: how busy a "
        "developer's stream is; seats: developers on a server; topology: rates of the links between memories; "
        "quality: answers of servers to tasks. Activity, seats and topology start no server"
    )
    floor_tok_per_s: PositiveFloat | None = Field(
        default=None, description="speed that a stream must hold, in token/s; the cells are then levels of streams to judge"
    )
    margin_fraction: float = Field(default=0.1, ge=0, description="of the floor, on top of it for the median")
    hosts: dict[str, Asked] = Field(description="file in experiments/hosts/, without .yaml -> what is done there")
    other_hosts: NotRun | None = Field(default=None, description="why it is not run on hosts that `hosts` does not name")

    @model_validator(mode="after")
    def _check(self) -> "Experiment":
        for name, on in self.hosts.items():
            kinds = {"activity": Calculated, "seats": Calculated, "topology": LinkRates, "quality": Quality}
            kind = kinds.get(self.measures, OnHost)
            if not isinstance(on, NotRun | kind):
                raise ValueError(
                    f"hosts.{name}: found the keys of another kind of experiment than one that measures {self.measures}"
                )
            if isinstance(on, OnHost) and on.attempts and self.measures != "memory":
                raise ValueError(f"hosts.{name}.attempts: found some; expected them where the experiment measures memory")
            if isinstance(on, OnHost) and (self.measures == "load") != bool(on.cells):
                raise ValueError(
                    f"hosts.{name}.cells: found {len(on.cells)} groups; expected "
                    + ("at least one, since the experiment measures load" if self.measures == "load" else "none")
                )
        return self


class UnnamedHost(SpecError):
    """An experiment says nothing of a host, and nothing of hosts that it does not name."""


_NOT_ASKED = {"question", "hosts", "other_hosts"}
"""Keys of an experiment that do not decide what one host measures."""


@dataclass(frozen=True)
class Resolved:
    """One experiment on one host, with all that decides its outcome."""

    name: str
    host_name: str
    experiment: Experiment
    host: Host
    on: OnHost | Calculated | LinkRates | Quality
    model: Model | None
    arm_models: Mapping[str, Model] = field(default_factory=dict)
    """Arm -> its model, for arms that name one of their own."""

    @property
    def served_model(self) -> Model:
        """The model of an experiment that starts a server."""
        assert self.model is not None
        return self.model

    @property
    def on_gpus(self) -> bool:
        """Whether the host's GPUs take part: under a server, or under the engine's torch, which copies over the links."""
        return self.host.gpus is not None and (self.model is not None or isinstance(self.on, LinkRates))

    @property
    def hash(self) -> str:
        """SHA-256 over what was asked: this host's part of the experiment, the host and the model, without free text.

        Values equal to their default are left out, so that a new optional key does not make old data stale.
        """
        asked = {
            "name": self.name,
            "host_name": self.host_name,
            "experiment": self.experiment.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_ASKED),
            "on": self.on.model_dump(mode="json", exclude_defaults=True),
        }
        if self.model is not None:
            unasked = {"title", "notes", "measured", "slurm"}
            asked["host"] = self.host.model_dump(mode="json", exclude_defaults=True, exclude=unasked)
            asked["model"] = self.model.model_dump(mode="json", exclude_defaults=True, exclude={"title", "notes"})
        for name, model in self.arm_models.items():
            asked[f"model of {name}"] = model.model_dump(mode="json", exclude_defaults=True, exclude={"title", "notes"})
        return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def names(root: Path, kind: str = "") -> list[str]:
    """The experiments of a project (or its `hosts`, its `models`) by file name, e2 before e13.

    Raises SpecError for a name that a command line or a path would take for more than a name.
    """
    found = [path.stem for path in (root / EXPERIMENTS / kind).glob("*.yaml")]
    if wrong := [name for name in found if not is_name(name)]:
        raise SpecError(f"{root / EXPERIMENTS / kind}: found a file named {wrong[0]!r}; expected {NAME_RULE}")
    return sorted(found, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def resolve(root: Path, name: str, host_name: str) -> Resolved | NotRun:
    """The experiment `name` on the host, checked as a whole; raises SpecError naming file, key, found and expected."""
    path = root / EXPERIMENTS / f"{name}.yaml"
    experiment = read(Experiment, path)
    host = read(Host, root / EXPERIMENTS / "hosts" / f"{host_name}.yaml")
    on = experiment.hosts.get(host_name, experiment.other_hosts)
    if on is None:
        raise UnnamedHost(
            f"{path}: hosts.{host_name}: found nothing; expected what to do on that host, or `not_run` with the reason"
        )
    if isinstance(on, NotRun):
        return on
    if isinstance(on, Calculated | LinkRates):
        return Resolved(name, host_name, experiment, host, on, None)
    asked = on
    if isinstance(on, Quality):
        on = launched(on)
    model = _fitting_model(root, path, host_name, host, on, on.model)
    arm_models = {
        arm_name: _fitting_model(root, path, host_name, host, on, arm.model)
        for arm_name, arm in on.arms.items()
        if arm.model is not None
    }
    for arm_name, arm in on.served().items():
        where = f"{path}: hosts.{host_name}" + (f".arms.{arm_name}" if arm_name else "")
        if (arm.plan is not None or arm.routing is not None) and host.gpus is None:
            raise SpecError(f"{where}: found a plan or synthetic routing; expected neither on a host without GPUs")
        if host.engine.plan_variable is not None and arm.needs_plugin:
            raise SpecError(
                f"{where}: found routing, residency or count, which only Spillway's plugin knows; expected none of them on a "
                f"host whose engine places by itself ({host.engine.plan_variable})"
            )
    return Resolved(name, host_name, experiment, host, asked, model, arm_models)


def launched(on: Quality) -> OnHost:
    """The servers that a comparison of answers starts, as the arms of an experiment without cells."""
    return OnHost(model=on.model, seed=on.seed, arms=dict(on.launched))


def _fitting_model(root: Path, path: Path, host_name: str, host: Host, on: OnHost, name: str) -> Model:
    """A model file, which must hold every sequence of the cells, on a host that must hold every stream."""
    if not is_name(name):
        raise SpecError(f"{path}: hosts.{host_name}: model: found {name!r}; expected {NAME_RULE}")
    model = read(Model, root / EXPERIMENTS / "models" / f"{name}.yaml")
    batch = host.engine.arguments.get("max-num-seqs")
    for cell, workload in on.workloads().items():
        if workload.longest_sequence_tokens > model.max_model_len:
            raise SpecError(
                f"{path}: hosts.{host_name}.cells: found {workload.longest_sequence_tokens} tokens in one sequence of cell "
                f"{cell!r}; expected at most max_model_len = {model.max_model_len} of experiments/models/{name}.yaml"
            )
        if isinstance(batch, int) and workload.most_streams > batch:
            raise SpecError(
                f"{path}: hosts.{host_name}.cells: found {workload.most_streams} streams at once in cell {cell!r}; expected "
                f"at most max-num-seqs = {batch} of experiments/hosts/{host_name}.yaml, or the server queues them"
            )
    return model
