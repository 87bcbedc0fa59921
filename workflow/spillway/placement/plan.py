"""A placement plan: which routed experts of which model live in host memory, and where that choice came from.

A plan is a JSON file. It names every mixture-of-experts layer of its model (a layer with nothing on the host has an
empty list), so a layer that is missing or misspelt is an error and never a layer silently left in GPU memory.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spillway.spec.json_text import parse_json
from spillway.spec.shown import shown

# Keys of config.json that change when tools rewrite the file, although the weights do not.
_VOLATILE_KEYS = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}
_EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts")
_MOST = 2**31
"""Largest size that is believed of a configuration."""
_DTYPE_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}

ExpertId = Annotated[int, Field(ge=0, strict=True)]


class PlanError(ValueError):
    """A plan that cannot be used: says what was found, where, and what to do."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelIdentity(Frozen):
    """The model that a plan, or a file of counts, belongs to."""

    config_sha256: str = Field(pattern="^[0-9a-f]{64}$", description="canonical hash of config.json, see config_sha256")
    experts: int = Field(ge=1, description="routed experts per layer")
    top_k: int = Field(ge=1, description="routed experts per token and layer")
    expert_bytes: int = Field(ge=1, description="bytes of one expert's weights, all ranks together, scales excluded")


class Choice(Frozen):
    """How the experts were chosen, and what share of the routing was expected to reach them."""

    builder: Literal["coldest", "coldest_per_layer", "whole_layers", "random", "imported", "given"]
    parameters: dict[str, int | float | str] = Field(default_factory=dict)
    counts_sha256: str | None = Field(default=None, description="hash of the counts it was chosen from, if any")
    counted_picks: int | None = Field(default=None, ge=1, description="routed picks in those counts, all layers")
    host_share: float | None = Field(default=None, ge=0, le=1, description="share of those picks that hit the host")


class Plan(Frozen):
    """Routed experts, and whole parameters, that live in host memory."""

    schema_version: Literal["spillway.plan/1"] = "spillway.plan/1"
    model: ModelIdentity
    choice: Choice
    layers: dict[str, tuple[ExpertId, ...]] = Field(min_length=1, description="host expert ids of every MoE layer")
    parameters: tuple[str, ...] = Field(default=(), description="whole parameters for the host, by full name")

    @model_validator(mode="after")
    def _ids_are_sound(self) -> "Plan":
        for name, ids in self.layers.items():
            outside = [e for e in ids if e >= self.model.experts]
            if outside:
                raise ValueError(f"layers.{name}: ids {shown(outside)} are outside 0..{self.model.experts - 1}")
            if twice := repeated(ids):
                raise ValueError(f"layers.{name}: ids {shown(twice)} are listed twice")
            if list(ids) != sorted(ids):
                raise ValueError(f"layers.{name}: ids must be in ascending order")
        if not any(self.layers.values()) and not self.parameters:
            raise ValueError("layers: nothing is on the host; serve without a plan instead")
        if len(set(self.parameters)) != len(self.parameters):
            raise ValueError("parameters: a name is listed twice")
        return self

    @property
    def host_experts(self) -> int:
        return sum(len(ids) for ids in self.layers.values())

    @property
    def all_experts(self) -> int:
        return len(self.layers) * self.model.experts

    @property
    def host_bytes(self) -> int:
        """Bytes of the host experts' weights, all ranks together, before rounding to pages."""
        return self.host_experts * self.model.expert_bytes

    @property
    def sha256(self) -> str:
        return canonical_sha256(self.model_dump(mode="json"))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")


def load_plan(path: Path) -> Plan:
    """Read and check a plan file; raises PlanError naming the file, the key and what is wrong there."""
    try:
        return Plan.model_validate(read_json(path))
    except ValidationError as error:
        raise PlanError(f"{path}: {explain(error)}") from error


def read_json(path: Path) -> Any:
    """Read a JSON file that names no key twice; raises PlanError naming the file."""
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError as error:
        raise PlanError(f"{path}: no such file") from error
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path}: {error}") from error


def repeated(ids: Sequence[int]) -> list[int]:
    """The ids that stand there more than once, sorted."""
    return sorted(expert for expert, count in Counter(ids).items() if count > 1)


def explain(error: ValidationError) -> str:
    """The first few faults of a validation, each with its key."""
    faults = [f"{'.'.join(map(str, e['loc']))[:200] or 'file'}: {e['msg'][:500]}" for e in error.errors()]
    more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
    return "; ".join(faults[:5]) + more


def canonical_sha256(value: object) -> str:
    """SHA-256 of the value's JSON with sorted keys and no spaces."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def config_sha256(config: Mapping[str, Any]) -> str:
    """Hash of a config.json without the keys that tools rewrite."""
    return canonical_sha256({key: value for key, value in config.items() if key not in _VOLATILE_KEYS})


def identify_model(config: Mapping[str, Any]) -> ModelIdentity:
    """Identity of the model that a config.json describes; raises PlanError for one that is no mixture of experts.

    One expert is three matrices of hidden_size x moe_intermediate_size (gate, up, down), in the type of the checkpoint.
    """
    text = _text_part(config)
    experts = next((key for key in _EXPERT_KEYS if key in text), None)
    if experts is None:
        raise PlanError(f"config.json: none of {', '.join(_EXPERT_KEYS)}: not a mixture-of-experts model")
    missing = [key for key in ("hidden_size", "num_experts_per_tok") if key not in text]
    width = "moe_intermediate_size" if text.get("moe_intermediate_size") is not None else "intermediate_size"
    if text.get(width) is None:
        missing.append("moe_intermediate_size")
    if missing:
        raise PlanError(f"config.json: no {', '.join(missing)}; the size of an expert is unknown")
    return ModelIdentity(
        config_sha256=config_sha256(config),
        experts=_whole(text, experts, 1, _MOST),
        top_k=_whole(text, "num_experts_per_tok", 1, _MOST),
        expert_bytes=3
        * _whole(text, "hidden_size", 1, _MOST)
        * _whole(text, width, 1, _MOST)
        * _weight_bits(config, text)
        // 8,
    )


def _text_part(config: Any) -> Mapping[str, Any]:
    """The part of a configuration that describes the language model; raises PlanError if it is no object."""
    text = config.get("text_config", config) if isinstance(config, Mapping) else config
    if not isinstance(text, Mapping):
        raise PlanError(f"config.json: found {shown(text)}; expected an object with the model's keys")
    return text


def _whole(text: Mapping[str, Any], key: str, at_least: int, at_most: int) -> int:
    value = text.get(key)
    if type(value) is not int or not at_least <= value <= at_most:
        raise PlanError(f"config.json: {key}: found {shown(value)}; expected a whole number from {at_least} to {at_most}")
    return value


def _weight_bits(config: Mapping[str, Any], text: Mapping[str, Any]) -> int:
    quantization = config.get("quantization_config", text.get("quantization_config"))
    if isinstance(quantization, Mapping) and quantization.get("quant_method") == "exl3":
        return _exl3_bits(quantization, text)
    if quantization is not None:
        known = isinstance(quantization, Mapping) and quantization.get("quant_method") == "fp8"
        if not known or not quantization.get("weight_block_size"):
            raise PlanError(
                f"config.json: quantization_config is {shown(quantization)}; plans know bf16, block fp8 and EXL3 experts"
            )
        return 8
    name = text.get("dtype", text.get("torch_dtype", config.get("dtype", config.get("torch_dtype"))))
    if not isinstance(name, str) or name not in _DTYPE_BITS:
        raise PlanError(f"config.json: dtype is {shown(name)}; expected one of {', '.join(_DTYPE_BITS)}")
    return _DTYPE_BITS[name]


def _exl3_bits(quantization: Mapping[str, Any], text: Mapping[str, Any]) -> int:
    """Bits of a value in the routed experts of an EXL3 pack, which may store draft layers, beyond the others, otherwise."""
    bits, by_layer = _whole(quantization, "bits", 1, 8), quantization.get("layer_bits") or {}
    if not isinstance(by_layer, Mapping) or any(by_layer.get(str(i), bits) != bits for i in range(_layers(text))):
        raise PlanError(
            f"config.json: quantization_config.layer_bits is {shown(by_layer)}; plans know packs whose layers all store "
            f"their experts in `bits`, here {bits}"
        )
    return bits


def moe_layers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the routed-expert layers, as vLLM gives them, for the families whose config says which layers are dense.

    Other families: record counts from a running server, whose file names the layers. Raises PlanError for those.
    """
    text = _text_part(config)
    kind = text.get("model_type")
    if "deepseek_v41" in (config.get("model_type"), kind):
        return tuple(f"model.layers.{i}.ffn.experts" for i in range(_layers(text)))
    if kind in ("qwen3_moe", "qwen2_moe"):
        dense = text.get("mlp_only_layers") or []
        if not isinstance(dense, list):
            raise PlanError(f"config.json: mlp_only_layers: found {shown(dense)}; expected a list of layers")
        count, step = _layers(text), _whole({"decoder_sparse_step": 1, **text}, "decoder_sparse_step", 1, _MOST)
        chosen = [i for i in range(count) if i not in dense and (i + 1) % step == 0]
    elif kind in ("deepseek_v2", "deepseek_v3"):
        count, step = _layers(text), _whole({"moe_layer_freq": 1, **text}, "moe_layer_freq", 1, _MOST)
        chosen = list(range(_whole(text, "first_k_dense_replace", 0, _MOST), count))
        chosen = [i for i in chosen if i % step == 0]
    else:
        raise PlanError(
            f"config.json: model_type {shown(kind)}: which layers hold experts is not known here; "
            "record counts from a running server (SPILLWAY_COUNTS) and build the plan from them"
        )
    if not chosen:
        raise PlanError("config.json: its numbers leave no layer with routed experts")
    return tuple(f"model.layers.{i}.mlp.experts" for i in chosen)


def _layers(text: Mapping[str, Any]) -> int:
    return _whole(text, "num_hidden_layers", 1, 10_000)


def check_model(plan: Plan, model: ModelIdentity, layers: Sequence[str] | None = None) -> None:
    """Raise PlanError unless the plan was made for this model and, where given, for exactly these layers."""
    faults = [
        f"{field}: plan has {getattr(plan.model, field)!r}, model has {getattr(model, field)!r}"
        for field in ModelIdentity.model_fields
        if getattr(plan.model, field) != getattr(model, field)
    ]
    if layers is not None:
        unknown, missing = sorted(set(plan.layers) - set(layers)), sorted(set(layers) - set(plan.layers))
        if unknown:
            faults.append(f"layers that the model does not have: {', '.join(unknown)}")
        if missing:
            faults.append(f"layers that the plan does not name: {', '.join(missing)}")
    if faults:
        raise PlanError("the plan is for another model: " + "; ".join(faults) + ". Build a plan from this model")


def export_bare(plan: Plan) -> dict[str, list[int]]:
    """The bare form that the published EXL3 host-expert patch reads: layer name to host expert ids.

    Raises PlanError for a plan with whole parameters, which that form cannot say.
    """
    if plan.parameters:
        raise PlanError(f"parameters: the bare form knows experts only, and would leave {', '.join(plan.parameters)} out")
    return {name: list(ids) for name, ids in plan.layers.items() if ids}


def import_bare(bare: object, model: ModelIdentity, layers: Sequence[str], source: str) -> Plan:
    """A checked plan from the bare form; `source` names the file in errors.

    A key may be a layer's name or a dotted end that fits exactly one layer. Raises PlanError for a key that fits none
    or several, for two keys of one layer, and for ids that are not integers, out of range, repeated or empty.
    """
    if not isinstance(bare, dict):
        raise PlanError(f"{source}: expected an object of layer names, found {type(bare).__name__}")
    found: dict[str, tuple[int, ...]] = {}
    for key, ids in bare.items():
        matches = [name for name in layers if name == key or name.endswith(f".{key}")]
        if len(matches) != 1:
            what = "no layer" if not matches else f"{len(matches)} layers"
            raise PlanError(f"{source}: key {shown(key)} fits {what} of this model, such as {layers[0]!r}")
        if matches[0] in found:
            raise PlanError(f"{source}: key {shown(key)} names {matches[0]} again")
        if not isinstance(ids, list) or not ids or not all(type(e) is int for e in ids):
            raise PlanError(f"{source}: {key}: expected a list of expert ids, found {shown(ids)}")
        if twice := repeated(ids):
            raise PlanError(f"{source}: {key}: ids {shown(twice)} are listed twice")
        found[matches[0]] = tuple(sorted(ids))
    try:
        return Plan(
            model=model,
            choice=Choice(builder="imported", parameters={"source": source}),
            layers={name: found.get(name, ()) for name in layers},
        )
    except ValidationError as error:
        raise PlanError(f"{source}: {explain(error)}") from error
