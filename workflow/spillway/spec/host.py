"""A host: a machine that serves, its engine environment and the arguments that every launch there gets."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from spillway.spec.engine_options import check_arguments, check_variables
from spillway.spec.read import Strict

Argument = bool | int | float | str


class Gpus(Strict):
    """The GPUs of a host."""

    name: str = Field(description="as the driver reports it")
    count: PositiveInt
    memory_gib: PositiveFloat = Field(description="memory of one GPU that programs can use, in GiB")


class Slurm(Strict):
    """Where a SLURM cluster has machines like this host, and what a measuring job asks for there."""

    partition: str = Field(pattern=r"^[A-Za-z0-9._-]+$", description="whose machines are all like this host")
    cores: PositiveInt = Field(description="of one machine, all of which a job gets: server and client share them")
    memory_gib: PositiveInt = Field(description="memory that a job asks for, in GiB: all that the machine gives to jobs")
    minutes: PositiveInt = Field(description="time limit of a job; one experiment is one job")


class Engine(Strict):
    """How vLLM is launched on a host."""

    environment: str = Field(
        pattern="^engine-[a-z0-9]+$", description="lock file in envs/ (without .txt), installed into .envs/ under the same name"
    )
    module: str = Field(description="Python module of vLLM's API server, run with -m")
    arguments: dict[str, Argument] = Field(
        default_factory=dict, description="vLLM's long options without the dashes; true means the bare option"
    )
    variables: dict[str, str] = Field(default_factory=dict, description="environment variables of the server")
    plan_variable: str | None = Field(
        default=None,
        pattern=r"^[A-Z][A-Z0-9_]*$",
        description="of an engine that places experts by itself: the environment variable that names its plan, in the bare "
        "form, see placement/engine_plan.py; absent: Spillway's plugin places them",
    )
    answer_timeout_s: PositiveFloat = Field(
        default=120.0, description="silence on a request, in seconds, after which it has failed; above the longest prefill"
    )
    ready_timeout_s: PositiveFloat = Field(description="how long a launch may take until ready, in seconds")


class Host(Strict):
    """A file of experiments/hosts/."""

    title: str = Field(description="how the paper names the machine")
    measured: bool = Field(description="false: described only, nothing is measured on it here")
    gpus: Gpus | None = Field(default=None, description="absent: a host without GPUs")
    nodes: PositiveInt = Field(
        default=1,
        description="machines like this one that serve a model together, each with all `gpus`; vLLM joins them with Ray",
    )
    slurm: Slurm | None = Field(default=None, description="where a cluster has this host; absent: it is in none")
    host_memory_gib: PositiveFloat | None = Field(default=None, description="memory of the machine, in GiB; absent: as found")
    engine: Engine
    notes: str = Field(default="", description="free text; not part of the specification's hash")

    @model_validator(mode="after")
    def _check(self) -> "Host":
        check_arguments("engine.arguments", self.engine.arguments)
        check_variables("engine.variables", self.engine.variables)
        if self.gpus is None and self.engine.arguments.get("tensor-parallel-size", 1) != 1:
            raise ValueError("engine.arguments.tensor-parallel-size: found more than 1; expected 1 on a host without gpus")
        if self.nodes > 1:
            self._check_nodes()
        return self

    def _check_nodes(self) -> None:
        if self.gpus is None:
            raise ValueError(f"nodes: found {self.nodes}; expected 1 on a host without gpus")
        tensor, pipeline = (self.engine.arguments.get(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline"))
        ranks = tensor * pipeline if isinstance(tensor, int) and isinstance(pipeline, int) else None
        gpus = self.nodes * self.gpus.count
        if ranks != gpus:
            raise ValueError(
                f"nodes: found {self.nodes} with {self.gpus.count} GPUs each, and tensor-parallel-size {tensor} times "
                f"pipeline-parallel-size {pipeline} in engine.arguments; expected the product to be {gpus}"
            )
        if self.engine.arguments.get("distributed-executor-backend") != "ray":
            raise ValueError("engine.arguments.distributed-executor-backend: expected ray where nodes is more than 1")


FP8_BLOCK = 128
"""Rows and columns of weights in block fp8 that share a scale."""


class TinyMoe(Strict):
    """A Qwen3-MoE with random weights that is made on the spot by engine/tinymodel.py: same bytes on every machine."""

    kind: Literal["tiny_moe"]
    layers: PositiveInt
    experts: PositiveInt
    experts_per_token: PositiveInt
    hidden: PositiveInt
    expert_hidden: PositiveInt
    heads: PositiveInt = Field(default=4, description="heads of attention, of queries")
    kv_heads: PositiveInt = Field(default=2, description="of keys and values")
    head_size: PositiveInt = 64
    format: Literal["bf16", "fp8"] = Field(
        default="bf16",
        description="fp8: the same weights, rounded; linear layers in e4m3 with a scale for each block of 128 x 128, as "
        "published checkpoints store them",
    )
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="over all files of the model, checked after making it")

    @model_validator(mode="after")
    def _check(self) -> "TinyMoe":
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token: found {self.experts_per_token}; expected at most the {self.experts} experts")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads: found {self.heads}; expected a multiple of kv_heads, {self.kv_heads}")
        sizes = {
            "hidden": self.hidden,
            "expert_hidden": self.expert_hidden,
            "heads * head_size": self.heads * self.head_size,
            "kv_heads * head_size": self.kv_heads * self.head_size,
        }
        if self.format == "fp8":
            for name, size in sizes.items():
                if size % FP8_BLOCK:
                    raise ValueError(f"{name}: found {size}; expected a multiple of {FP8_BLOCK}, the block of fp8")
        return self

    @property
    def shape(self) -> dict[str, int]:
        """The sizes alone, as engine/tinymodel.py takes them."""
        return self.model_dump(exclude={"kind", "format", "sha256"})


class Shape(Strict):
    """A published model's shape without its weights: the engine fills them by its load format `dummy`."""

    kind: Literal["shape"]
    config: dict[str, Any] = Field(description="the model's config.json")

    @model_validator(mode="after")
    def _check(self) -> "Shape":
        if not isinstance(self.config.get("vocab_size"), int):
            raise ValueError(f"config.vocab_size: found {self.config.get('vocab_size')!r}; expected a number of tokens")
        return self


class Converted(Strict):
    """Trained weights that the set-up takes out of a package and converts: `scripts/setup NAME` makes .envs/NAME/model."""

    kind: Literal["converted"]
    setup: str = Field(pattern="^[a-z0-9]+$", description="name of the set-up; envs/<name>.txt locks the package")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of model.safetensors, checked before it is served")


class Folder(Strict):
    """A model in a local folder, in the layout of the hub."""

    kind: Literal["folder"]
    path: str = Field(description="folder with config.json; ~ and $VARIABLES are expanded")


class Pack(Strict):
    """What is published of a model and of the pack that stores it, in workflow/spillway/fit/published/."""

    model: str = Field(description="file there, without .yaml")
    pack: str = Field(description="one of its packs")
    on_host: list[str] = Field(
        default_factory=list, description="components that the host's arguments keep in host memory beside the pack's own"
    )


class Model(Strict):
    """A file of experiments/models/."""

    title: str = Field(description="how the paper names the model")
    weights: Literal["random", "dummy", "trained"] = Field(
        description="random: made from a seed; dummy: filled by the engine's load format; trained: the real ones"
    )
    source: Annotated[TinyMoe | Shape | Converted | Folder, Field(discriminator="kind")]
    published: Pack | None = Field(
        default=None,
        description="where bytes are predicted from; absent: from the config.json, which must say how it stores them",
    )
    max_model_len: PositiveInt = Field(description="longest sequence that the server takes, in tokens")
    first_prompt_token: int = Field(ge=0, description="lowest token id that prompts are drawn from")
    last_prompt_token: PositiveInt = Field(description="highest token id that prompts are drawn from")
    temperature: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="of sampling; above 0 each request gets a seed of its own. Greedy decoding of dummy weights repeats two "
        "tokens for ever, and then so does the routing",
    )
    trust_remote_code: bool | None = Field(
        default=None,
        description="of a repository that carries Python code: true lets the engine run it, false serves the model by the "
        "engine's own classes; absent: such a repository is refused",
    )
    notes: str = Field(default="", description="free text; not part of the specification's hash")

    @model_validator(mode="after")
    def _check(self) -> "Model":
        if self.last_prompt_token - self.first_prompt_token < 255:
            raise ValueError(
                f"last_prompt_token: found {self.last_prompt_token}; expected at least {self.first_prompt_token + 255}: "
                "prompts need 256 ids or more, or they repeat"
            )
        for kind, weights in (("tiny_moe", "random"), ("shape", "dummy")):
            if (self.source.kind == kind) != (self.weights == weights):
                raise ValueError(f"weights: found {self.weights!r}; expected {weights!r} for {kind} and only for it")
        return self
