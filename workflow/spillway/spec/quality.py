"""A comparison of answers: which systems, of which pairs, on which tasks, with which margins."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from spillway.spec.arm import Arm
from spillway.spec.read import Strict
from spillway.spec.workload import Count, PositiveCount

TaskName = Literal["gsm8k", "ifeval", "humaneval"]
Tier = Literal["own", "fast", "full"]
Confinement = Literal["namespaces", "limits only"]

FIXED_FIELDS = frozenset({"model", "messages", "max_tokens", "temperature", "seed", "stop", "stream", "n"})
"""Fields of a request that no system may have otherwise than another, or that the comparison rests on."""

ANSWER_TABLES = frozenset({"quality_systems", "quality_answers", "quality_tasks", "quality_paired"})
"""Tables of what was asked and answered."""
PLACEMENT_TABLES = frozenset({"arms"})
"""Tables of where the launched systems have their experts."""


class Remote(Strict):
    """A server that somebody else runs, such as a vendor's API. $VARIABLES in `url` are expanded."""

    url: str = Field(description="up to and with /v1, or without it")
    model: str = Field(description="name of the model there")
    key_variable: str | None = Field(
        default=None, description="environment variable that holds the key; the key itself nowhere"
    )
    requests_per_s: PositiveFloat | None = Field(default=None, description="at most so many; absent: no limit")
    input_price_per_million: float | None = Field(default=None, ge=0, description="of a million prompt tokens")
    output_price_per_million: float | None = Field(default=None, ge=0, description="of a million tokens of answers")
    currency: str = Field(default="USD", description="of both prices")

    @model_validator(mode="after")
    def _check(self) -> "Remote":
        if (self.input_price_per_million is None) != (self.output_price_per_million is None):
            raise ValueError("output_price_per_million: found one of the two prices; expected both or none")
        return self


class System(Arm):
    """One way to get answers: a model launched as an arm says, or a remote server."""

    remote: Remote | None = Field(default=None, description="absent: a server that is launched for it alone")
    at_once: PositiveCount = Field(default=1, description="requests at once")
    options: dict[str, Any] = Field(
        default_factory=dict, description="further fields of every request, such as what switches a model's thinking off"
    )

    @model_validator(mode="after")
    def _check_system(self) -> "System":
        if fixed := sorted(FIXED_FIELDS & set(self.options)):
            raise ValueError(f"options.{fixed[0]}: found a field that is the same for all systems; expected others")
        if self.remote is not None and (self.arguments or self.variables or self.plan or self.model):
            raise ValueError("remote: found beside what a launch takes; expected only at_once and options with it")
        if self.routing is not None:
            raise ValueError("routing: found one; expected the model's own, since answers under a synthetic one mean nothing")
        return self


class Comparison(Strict):
    """Two systems that got the same questions; a difference is that of `a` less that of `b`."""

    a: str = Field(description="name of a system: the one in question")
    b: str = Field(description="name of a system: the reference")
    same: bool = Field(default=False, description="true: both are the same in all but chance, so that it shows the noise")


class AskedTask(Strict):
    """One task's items and how its outcome is judged. The margin is fixed here, before anything is measured."""

    tier: Tier = Field(description="own: written for this project; fast: 150 of the public set; full: all of it")
    items: PositiveCount | None = Field(default=None, description="only the first so many; absent: all of the tier")
    max_tokens: PositiveCount = Field(description="budget of an answer; no stop strings are set")
    margin_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="a loss of so much would matter: non-inferiority is tested against it"
    )


class Agreement(Strict):
    """Token-level agreement of two servers of one model, on the texts of quality/items/texts.yaml."""

    top: int = Field(default=20, gt=0, le=20, description="log-probabilities asked for at each position")
    greedy_tokens: PositiveCount = Field(description="tokens written after each text, without sampling")


class Quality(Strict):
    """What an experiment that measures quality does on one host."""

    model: str = Field(description="file in experiments/models/, without .yaml")
    seed: Count = Field(description="of the order of questions; also sent to the servers")
    data: str | None = Field(
        default=None, description="folder with the public sets; $VARIABLES are expanded; not needed for the tier own"
    )
    systems: dict[str, System] = Field(min_length=2, description="name -> how its answers are got")
    comparisons: dict[str, Comparison] = Field(min_length=1, description="name -> the two systems that are compared")
    tasks: dict[TaskName, AskedTask] = Field(
        default_factory=dict,
        description="task -> items, budget and margin; absent: agreement alone, which needs no learnt weights",
    )
    agreement: Agreement | None = Field(default=None, description="absent: answers alone are compared")
    confinement: Confinement = Field(
        default="namespaces", description="of programs that a model wrote; limits only: for models that you trust"
    )

    @model_validator(mode="after")
    def _check(self) -> "Quality":
        for name, pair in self.comparisons.items():
            for side, system in (("a", pair.a), ("b", pair.b)):
                if system not in self.systems:
                    raise ValueError(
                        f"comparisons.{name}.{side}: found {system!r}; expected one of the systems: {', '.join(self.systems)}"
                    )
            if pair.a == pair.b:
                raise ValueError(f"comparisons.{name}: found {pair.a!r} twice; expected two systems")
        if all(system.remote is not None for system in self.systems.values()):
            raise ValueError("systems: found remote servers alone; expected one that is launched, or use `spillway quality`")
        if not self.tasks:
            self._check_without_tasks()
        return self

    def _check_without_tasks(self) -> None:
        if self.agreement is None:
            raise ValueError("tasks: found none; expected one or more, or `agreement` to compare token by token alone")
        for name, system in self.systems.items():
            if system.remote is not None:
                raise ValueError(
                    f"systems.{name}.remote: found one without tasks; expected it beside tasks, since agreement is of "
                    "launched servers alone"
                )

    @property
    def launched(self) -> dict[str, System]:
        """Name -> system, of those for which a server is started."""
        return {name: system for name, system in self.systems.items() if system.remote is None}

    @property
    def placed(self) -> bool:
        """Whether one of the systems has experts in host memory."""
        return any(system.plan is not None for system in self.systems.values())

    @property
    def not_made(self) -> frozenset[str]:
        """Tables of other comparisons that this one has nothing for."""
        return (frozenset() if self.tasks else ANSWER_TABLES) | (frozenset() if self.placed else PLACEMENT_TABLES)
