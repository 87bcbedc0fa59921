"""An arm: one way to serve an experiment's model, compared with others under the same load."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, model_validator

from spillway.placement.follow import parse_residency
from spillway.placement.plan import PlanError
from spillway.spec.engine_options import check_arguments, check_variables
from spillway.spec.host import Argument
from spillway.spec.read import Strict
from spillway.spec.workload import Count

Share = Annotated[float, Field(ge=0, le=1)]


class Routing(Strict):
    """Synthetic routing, for speed without trained weights: in every layer the same experts are unpopular.

    Everything measured under it says so; placement/routing.py is what the engine does.
    """

    unpopular: PositiveInt = Field(description="experts of each layer that share `cold_share` of the picks evenly")
    cold_share: Share = Field(description="fraction of picks that fall on them; unpopular / experts is uniform routing")
    seed: Count = Field(default=0, description="which experts are unpopular")
    shift_every_s: PositiveFloat | None = Field(
        default=None, description="other experts become unpopular at every multiple of this time of day; absent: never"
    )
    sets: Annotated[int, Field(ge=2)] = Field(default=2, description="sets of unpopular experts that take turns then")


class PlanChoice(Strict):
    """A plan that the harness builds before the server starts, by a builder of placement/choose.py."""

    choose: Literal["coldest", "coldest_per_layer", "whole_layers", "random"]
    host_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="fraction of all routed experts that go to the host, to the nearest number of experts or layers"
    )
    counts: str | None = Field(
        default=None, description="file of recorded counts, from the project's root; absent: those of the synthetic routing"
    )
    seed: Count | None = Field(default=None, description="of the choice `random`, and only of that")

    @model_validator(mode="after")
    def _check(self) -> "PlanChoice":
        if (self.seed is not None) != (self.choose == "random"):
            raise ValueError(f"seed: found {self.seed}; expected one for the choice random, and only for that")
        return self

    @property
    def needs_counts(self) -> bool:
        """Whether the choice rests on counts that only a routing can give."""
        return self.choose in ("coldest", "coldest_per_layer") and self.counts is None


class PlanFile(Strict):
    """A plan that is there already, made by `spillway plan`."""

    file: str = Field(description="plan file, from the project's root; ~ and $VARIABLES are expanded")


def _which(value: Any) -> str:
    return "PlanFile" if isinstance(value, PlanFile) or (isinstance(value, dict) and "file" in value) else "PlanChoice"


AskedPlan = Annotated[Annotated[PlanChoice, Tag("PlanChoice")] | Annotated[PlanFile, Tag("PlanFile")], Discriminator(_which)]


class Arm(Strict):
    """What differs from the host's file and from the experiment's other arms."""

    model: str | None = Field(default=None, description="file in experiments/models/; absent: the experiment's model")
    plan: AskedPlan | None = Field(default=None, description="experts in host memory; absent: all on the GPUs")
    routing: Routing | None = Field(default=None, description="absent: the experiment's routing, or the model's own")
    arguments: dict[str, Argument | list[str]] = Field(
        default_factory=dict,
        description="engine arguments that differ from the host's; false takes one away, a list is an option's several values",
    )
    residency: str | None = Field(
        default=None, description="static (absent means that), or follow[,key=value...], see placement/follow.py"
    )
    variables: dict[str, str] = Field(default_factory=dict, description="environment variables of the server that differ")
    count: bool = Field(
        default=False, description="count picks in the server: its cells then say how many host experts a decode step read"
    )
    boots: PositiveInt | None = Field(default=None, description="starts of this arm's server; absent: the experiment's")
    situations: list[str] | None = Field(
        default=None, description="names of the groups of cells that this arm measures; absent: all", min_length=1
    )

    @model_validator(mode="after")
    def _check_options(self) -> "Arm":
        check_arguments("arguments", self.arguments)
        check_variables("variables", self.variables)
        return self

    @model_validator(mode="after")
    def _can_move(self) -> "Arm":
        try:
            parse_residency(self.residency, self.plan is not None)
        except PlanError as error:
            raise ValueError(f"residency: {error}") from None
        if self.count and (self.plan is None or self.residency not in (None, "static")):
            raise ValueError("count: found true; expected it beside a plan whose experts stay where they are")
        return self

    def served_as(self, other: "Arm") -> bool:
        """Whether one start can serve both: they differ in nothing but the share of picks that fall on unpopular experts."""
        if self.routing is None or other.routing is None or self.residency not in (None, "static"):
            return False
        same = other.model_copy(update={"routing": other.routing.model_copy(update={"cold_share": self.routing.cold_share})})
        return self == same

    @property
    def needs_plugin(self) -> bool:
        """Whether it asks for what only Spillway's plugin does, not an engine that places experts by itself."""
        return self.routing is not None or self.residency is not None or self.count
