"""A host: a machine that serves, its engine environment and the arguments that every launch there gets."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from spillway.spec.read import Strict

Argument = bool | int | float | str

# The launcher sets these itself; an argument file that sets them too would say something else than what runs.
RESERVED_ARGUMENTS = frozenset({"host", "port", "model", "served-model-name", "max-model-len"})


class Gpus(Strict):
    """The GPUs of a host."""

    name: str = Field(description="as the driver reports it")
    count: PositiveInt
    memory_gib: PositiveFloat = Field(description="memory of one GPU that programs can use, in GiB")


class Engine(Strict):
    """How vLLM is launched on a host."""

    environment: str = Field(description="lock file in envs/ (without .txt), installed into .envs/ under the same name")
    module: str = Field(description="Python module of vLLM's API server, run with -m")
    arguments: dict[str, Argument] = Field(
        default_factory=dict, description="vLLM's long options without the dashes; true means the bare option"
    )
    variables: dict[str, str] = Field(default_factory=dict, description="environment variables of the server")
    answer_timeout_s: PositiveFloat = Field(
        default=120.0, description="silence on a request, in seconds, after which it has failed; above the longest prefill"
    )
    ready_timeout_s: PositiveFloat = Field(description="how long a launch may take until ready, in seconds")


class Host(Strict):
    """A file of experiments/hosts/."""

    title: str = Field(description="how the paper names the machine")
    measured: bool = Field(description="false: described only, nothing is measured on it here")
    gpus: Gpus | None = Field(default=None, description="absent: a host without GPUs")
    host_memory_gib: PositiveFloat | None = Field(default=None, description="memory of the machine, in GiB; absent: as found")
    engine: Engine
    notes: str = Field(default="", description="free text; not part of the specification's hash")

    @model_validator(mode="after")
    def _check(self) -> "Host":
        for name in self.engine.arguments:
            if name.startswith("-"):
                raise ValueError(
                    f"engine.arguments.{name}: found an option with dashes; expected the name alone: {name.strip('-')}"
                )
            if name in RESERVED_ARGUMENTS:
                raise ValueError(
                    f"engine.arguments.{name}: found an argument that the launcher sets itself; expected none of: "
                    f"{', '.join(sorted(RESERVED_ARGUMENTS))}"
                )
        if self.gpus is None and self.engine.arguments.get("tensor-parallel-size", 1) != 1:
            raise ValueError("engine.arguments.tensor-parallel-size: found more than 1; expected 1 on a host without gpus")
        return self


class TinyMoe(Strict):
    """A Qwen3-MoE with random weights that the set-up makes on the spot: same bytes on every machine."""

    kind: Literal["tiny_moe"]
    layers: PositiveInt
    experts: PositiveInt
    experts_per_token: PositiveInt
    hidden: PositiveInt
    expert_hidden: PositiveInt
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="over all files of the model, checked after making it")

    @model_validator(mode="after")
    def _check(self) -> "TinyMoe":
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token: found {self.experts_per_token}; expected at most the {self.experts} experts")
        return self


class Folder(Strict):
    """A model in a local folder, in the layout of the hub."""

    kind: Literal["folder"]
    path: str = Field(description="folder with config.json; ~ and $VARIABLES are expanded")


class Model(Strict):
    """A file of experiments/models/."""

    title: str = Field(description="how the paper names the model")
    weights: Literal["random", "dummy", "trained"] = Field(
        description="random: made from a seed; dummy: filled by the engine's load format; trained: the real ones"
    )
    source: Annotated[TinyMoe | Folder, Field(discriminator="kind")]
    max_model_len: PositiveInt = Field(description="longest sequence that the server takes, in tokens")
    first_prompt_token: int = Field(ge=0, description="lowest token id that prompts are drawn from")
    last_prompt_token: PositiveInt = Field(description="highest token id that prompts are drawn from")
    notes: str = Field(default="", description="free text; not part of the specification's hash")

    @model_validator(mode="after")
    def _check(self) -> "Model":
        if self.last_prompt_token - self.first_prompt_token < 255:
            raise ValueError(
                f"last_prompt_token: found {self.last_prompt_token}; expected at least {self.first_prompt_token + 255}: "
                "prompts need 256 ids or more, or they repeat"
            )
        if (self.source.kind == "tiny_moe") != (self.weights == "random"):
            raise ValueError(f"weights: found {self.weights!r}; expected 'random' for tiny_moe and only for it")
        return self
