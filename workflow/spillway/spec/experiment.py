"""An experiment: a question, and for each host the model and the cells that answer it there."""

import hashlib
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, TypeAdapter, ValidationError, model_validator

from spillway.spec.host import Argument, Host, Model
from spillway.spec.read import SpecError, Strict, read
from spillway.spec.workload import Workload

EXPERIMENTS = Path("experiments")
_WORKLOAD: TypeAdapter[Workload] = TypeAdapter(Workload)


class CellGroup(Strict):
    """One workload, or one for each combination of the swept values."""

    name: str | None = Field(default=None, description="prefix of the cells' names; needed where two groups would collide")
    workload: dict[str, Any] = Field(description="a workload without the swept fields; see spec/workload.py")
    sweep: dict[str, list[int | float | str]] = Field(
        default_factory=dict, description="field of the workload -> its values, one cell each"
    )

    def cells(self) -> dict[str, Workload]:
        """Cell name -> workload; raises ValueError naming the cell whose workload is wrong."""
        cells: dict[str, Workload] = {}
        for values in itertools.product(*self.sweep.values()):
            swept = dict(zip(self.sweep, values, strict=True))
            label = ",".join(f"{field}={value}" for field, value in swept.items())
            name = " ".join(part for part in (self.name, label) if part) or str(self.workload.get("kind", "cell"))
            if twice := sorted(set(swept) & set(self.workload)):
                raise ValueError(f"sweep.{twice[0]}: found here and in workload; expected one of the two")
            if name in cells:
                raise ValueError(f"sweep: found the cell {name!r} twice; expected different values")
            try:
                cells[name] = _WORKLOAD.validate_python(self.workload | swept)
            except ValidationError as error:
                fault = error.errors()[0]
                field = ".".join(str(part) for part in fault["loc"][1:]) or "workload"
                raise ValueError(
                    f"workload of cell {name!r}: {field}: found {fault['input']!r}; "
                    f"expected: {fault['msg'].removeprefix('Value error, ')}"
                ) from None
        return cells


class OnHost(Strict):
    """What an experiment does on one host."""

    model: str = Field(description="file in experiments/models/, without .yaml")
    boots: PositiveInt = Field(default=1, description="starts of the server; the unit of intervals over boots")
    seed: int = Field(ge=0, description="of prompts and arrivals; the run id keeps prompts of two runs apart")
    attempts: dict[str, dict[str, Argument]] = Field(
        default_factory=dict,
        description="starts that memory may refuse: name -> engine arguments that differ; outcome predicted and found",
    )
    cells: list[CellGroup] = Field(default_factory=list, description="absent: the experiment sends no load")

    @model_validator(mode="after")
    def _check(self) -> "OnHost":
        self.workloads()
        return self

    def situations(self) -> dict[str, str]:
        """Cell name -> situation that it is a level of: the name of its group, or `all`."""
        return {cell: group.name or "all" for group in self.cells for cell in group.cells()}

    def workloads(self) -> dict[str, Workload]:
        """Cell name -> workload over all groups; raises ValueError for a name that two groups share."""
        cells: dict[str, Workload] = {}
        for position, group in enumerate(self.cells):
            for name, workload in group.cells().items():
                if name in cells:
                    raise ValueError(f"cells[{position}]: found the cell {name!r} again; expected a `name` to tell them apart")
                cells[name] = workload
        return cells


class Calculated(Strict):
    """What an experiment calculates, without a server."""

    seed: int = Field(ge=0, description="of resampling and simulation")
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
    return "NotRun" if "not_run" in value else "Calculated" if "q_days" in value else "OnHost"


Asked = Annotated[
    Annotated[OnHost, Tag("OnHost")] | Annotated[Calculated, Tag("Calculated")] | Annotated[NotRun, Tag("NotRun")],
    Discriminator(_which),
]


class Experiment(Strict):
    """A file of experiments/."""

    question: str = Field(description="the question that it answers, one sentence")
    measures: Literal["memory", "load", "activity", "seats"] = Field(
        description="memory: bytes of a ready server against the prediction; load: latencies of requests; activity: how busy a "
        "developer's stream is; seats: developers on a server. The last two are calculated, without a server"
    )
    floor_tok_per_s: PositiveFloat | None = Field(
        default=None, description="speed that a stream must hold, in token/s; the cells are then levels of streams to judge"
    )
    margin_fraction: float = Field(default=0.1, ge=0, description="of the floor, on top of it for the median")
    hosts: dict[str, Asked] = Field(description="file in experiments/hosts/, without .yaml -> what is done there")

    @model_validator(mode="after")
    def _check(self) -> "Experiment":
        for name, on in self.hosts.items():
            if not isinstance(on, NotRun) and (self.measures in ("activity", "seats")) != isinstance(on, Calculated):
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


@dataclass(frozen=True)
class Resolved:
    """One experiment on one host, with all that decides its outcome."""

    name: str
    host_name: str
    experiment: Experiment
    host: Host
    on: OnHost | Calculated
    model: Model | None

    @property
    def served_model(self) -> Model:
        """The model of an experiment that starts a server."""
        assert self.model is not None
        return self.model

    @property
    def hash(self) -> str:
        """SHA-256 over what was asked: this host's part of the experiment, the host and the model, without free text.

        Values equal to their default are left out, so that a new optional key does not make old data stale.
        """
        asked = {
            "name": self.name,
            "host_name": self.host_name,
            "experiment": self.experiment.model_dump(mode="json", exclude_defaults=True, exclude={"question", "hosts"}),
            "on": self.on.model_dump(mode="json", exclude_defaults=True),
        }
        if self.model is not None:
            asked["host"] = self.host.model_dump(mode="json", exclude_defaults=True, exclude={"title", "notes", "measured"})
            asked["model"] = self.model.model_dump(mode="json", exclude_defaults=True, exclude={"title", "notes"})
        return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def names(root: Path, kind: str = "") -> list[str]:
    """The experiments of a project (or its `hosts`, its `models`) by file name, e2 before e13."""
    found = (path.stem for path in (root / EXPERIMENTS / kind).glob("*.yaml"))
    return sorted(found, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def resolve(root: Path, name: str, host_name: str) -> Resolved | NotRun:
    """The experiment `name` on the host, checked as a whole; raises SpecError naming file, key, found and expected."""
    path = root / EXPERIMENTS / f"{name}.yaml"
    experiment = read(Experiment, path)
    host = read(Host, root / EXPERIMENTS / "hosts" / f"{host_name}.yaml")
    if host_name not in experiment.hosts:
        raise SpecError(
            f"{path}: hosts.{host_name}: found nothing; expected what to do on that host, or `not_run` with the reason"
        )
    on = experiment.hosts[host_name]
    if isinstance(on, NotRun):
        return on
    if isinstance(on, Calculated):
        return Resolved(name, host_name, experiment, host, on, None)
    model = read(Model, root / EXPERIMENTS / "models" / f"{on.model}.yaml")
    batch = host.engine.arguments.get("max-num-seqs")
    for cell, workload in on.workloads().items():
        if workload.longest_sequence_tokens > model.max_model_len:
            raise SpecError(
                f"{path}: hosts.{host_name}.cells: found {workload.longest_sequence_tokens} tokens in one sequence of cell "
                f"{cell!r}; expected at most max_model_len = {model.max_model_len} of experiments/models/{on.model}.yaml"
            )
        if isinstance(batch, int) and workload.most_streams > batch:
            raise SpecError(
                f"{path}: hosts.{host_name}.cells: found {workload.most_streams} streams at once in cell {cell!r}; expected "
                f"at most max-num-seqs = {batch} of experiments/hosts/{host_name}.yaml, or the server queues them"
            )
    return Resolved(name, host_name, experiment, host, on, model)
