"""Reading numbers out of a model's config.json, with errors that name the key."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spillway.fit.formats import BF16, FP16, FP32, Format, Fp8Block, Plain
from spillway.fit.weights import FitError

Config = Mapping[str, Any]

DTYPES: dict[str, Plain] = {"bfloat16": BF16, "float16": FP16, "float32": FP32}


def parse_config(text: str, where: str) -> dict[str, Any]:
    """The object in a config.json; raises FitError naming the file if it is no JSON object."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise FitError(f"{where}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise FitError(f"{where}: found {type(content).__name__}; expected a JSON object")
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model's folder; raises FitError naming the file."""
    path = folder / "config.json"
    try:
        return parse_config(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise FitError(f"{path}: no such file; a model's folder has a config.json") from None


def whole(config: Config, key: str, at_least: int = 1) -> int:
    """A whole number of the configuration; raises FitError naming the key."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        found = "nothing" if key not in config else repr(value)
        raise FitError(f"config.json: {key}: found {found}; expected a whole number of at least {at_least}")
    return value


def whole_or(config: Config, key: str, default: int) -> int:
    """The same for a key whose absence (or null) has a documented meaning in the model's own code."""
    return default if config.get(key) is None else whole(config, key, at_least=0)


def flag(config: Config, key: str, default: bool) -> bool:
    """A true or false of the configuration; `default` is what the model's own code takes when the key is absent."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise FitError(f"config.json: {key}: found {value!r}; expected true or false")
    return value


def plain_format(config: Config) -> Plain:
    """The unquantised data type of the configuration; raises FitError for one that is not known."""
    name = config.get("dtype", config.get("torch_dtype"))
    if name not in DTYPES:
        raise FitError(f"config.json: dtype (or torch_dtype): found {name!r}; expected one of: {', '.join(DTYPES)}")
    return DTYPES[name]


def linear_format(config: Config) -> Format:
    """The format of the quantised matrices: block FP8 as DeepSeek and Qwen write it, or the plain data type.

    Raises FitError for any other quantisation, since its bytes would be a guess.
    """
    quantization = config.get("quantization_config")
    if quantization is None:
        return plain_format(config)
    method, block = quantization.get("quant_method"), quantization.get("weight_block_size")
    if method == "fp8" and isinstance(block, list) and len(block) == 2:
        return Fp8Block(*block)
    raise FitError(
        f"config.json: quantization_config: found quant_method {method!r}, weight_block_size {block!r}; "
        "known: fp8 with weight_block_size [rows, columns], or none. State the format with --format"
    )


def router_format(config: Config) -> Format:
    """The router's format: vLLM quantises it with the other linear layers unless `modules_to_not_convert` names it.

    Source: vLLM 0.32 model_executor/models/qwen3_moe.py and quantization/fp8.py. The released FP8 checkpoints name it.
    """
    kept = (config.get("quantization_config") or {}).get("modules_to_not_convert") or []
    return plain_format(config) if any(name.endswith(".gate") for name in kept) else linear_format(config)
