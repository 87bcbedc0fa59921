"""Reading numbers out of a model's config.json, with errors that name the key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spillway.fit.formats import BF16, FP16, FP32, Format, Fp8Block, Plain
from spillway.fit.weights import FitError
from spillway.spec.json_text import parse_json
from spillway.spec.shown import shown

Config = Mapping[str, Any]

DTYPES: dict[str, Plain] = {"bfloat16": BF16, "float16": FP16, "float32": FP32}


def parse_config(text: str | bytes, where: str) -> dict[str, Any]:
    """The object in a config.json; raises FitError naming the file if it is no JSON object."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise FitError(f"{where}: {error}") from None
    if not isinstance(content, dict):
        raise FitError(f"{where}: found {type(content).__name__}; expected a JSON object")
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model's folder; raises FitError naming the file."""
    path = folder / "config.json"
    try:
        return parse_config(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise FitError(f"{path}: no such file; a model's folder has a config.json") from None
    except OSError as error:
        raise FitError(f"{path}: cannot be read: {error.strerror}") from None


MOST = 2**31
"""Largest size that is believed of a configuration."""


def whole(config: Config, key: str, at_least: int = 1, at_most: int = MOST) -> int:
    """A whole number of the configuration; raises FitError naming the key."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        found = "nothing" if key not in config else shown(value)
        raise FitError(f"config.json: {key}: found {found}; expected a whole number of at least {at_least}")
    if value > at_most:
        raise FitError(f"config.json: {key}: found {shown(value)}; expected at most {at_most}")
    return value


def layers_of(config: Config) -> int:
    """The number of layers, which other numbers are counted over; raises FitError."""
    return whole(config, "num_hidden_layers", at_most=10_000)


def part(config: Config, key: str) -> Config:
    """An object inside the configuration, empty where the key is absent or null; raises FitError naming the key."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise FitError(f"config.json: {key}: found {shown(value)}; expected an object")
    return value or {}


def list_or_none(config: Config, key: str) -> list[Any]:
    """A list of the configuration, empty where the key is absent or null; raises FitError naming the key."""
    value = config.get(key)
    if value is not None and not isinstance(value, list):
        raise FitError(f"config.json: {key}: found {shown(value)}; expected a list")
    return value or []


def whole_or(config: Config, key: str, default: int, at_least: int = 0) -> int:
    """The same for a key whose absence (or null) has a documented meaning in the model's own code."""
    return default if config.get(key) is None else whole(config, key, at_least)


def flag(config: Config, key: str, default: bool) -> bool:
    """A true or false of the configuration; `default` is what the model's own code takes when the key is absent."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise FitError(f"config.json: {key}: found {shown(value)}; expected true or false")
    return value


def plain_format(config: Config) -> Plain:
    """The unquantised data type of the configuration; raises FitError for one that is not known."""
    name = config.get("dtype", config.get("torch_dtype"))
    if not isinstance(name, str) or name not in DTYPES:
        raise FitError(f"config.json: dtype (or torch_dtype): found {shown(name)}; expected one of: {', '.join(DTYPES)}")
    return DTYPES[name]


def linear_format(config: Config) -> Format:
    """The format of the quantised matrices: block FP8 as DeepSeek and Qwen write it, or the plain data type.

    Raises FitError for any other quantisation, since its bytes would be a guess.
    """
    if config.get("quantization_config") is None:
        return plain_format(config)
    quantization = part(config, "quantization_config")
    method, block = quantization.get("quant_method"), quantization.get("weight_block_size")
    if method == "fp8" and (sides := block_sides(block)):
        return Fp8Block(*sides)
    raise FitError(
        f"config.json: quantization_config: found quant_method {shown(method)}, weight_block_size {shown(block)}; "
        "known: fp8 with weight_block_size [rows, columns], or none. State the format with --format"
    )


def router_format(config: Config) -> Format:
    """The router's format: vLLM quantises it with the other linear layers unless `modules_to_not_convert` names it.

    Source: vLLM 0.32 model_executor/models/qwen3_moe.py and quantization/fp8.py. The released FP8 checkpoints name it.
    """
    kept = list_or_none(part(config, "quantization_config"), "modules_to_not_convert")
    return plain_format(config) if any(str(name).endswith(".gate") for name in kept) else linear_format(config)


def block_sides(value: Any) -> tuple[int, int] | None:
    """Rows and columns of a quantisation block, None if the value is not two whole numbers of at least 1."""
    match value:
        case [int(rows), int(columns)] if min(rows, columns) >= 1 and bool not in (type(rows), type(columns)):
            return rows, columns
    return None
