"""Reading a YAML file into a checked object, with errors that name file, key, what was found and what was expected."""

import difflib
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from spillway.spec.shown import shown

MOST_BYTES = 256 * 1024
"""Largest YAML file that is read: the largest of the project has a tenth of it, and PyYAML takes seconds for a megabyte."""
MOST_MERGED_KEYS = 1000
"""Keys that `<<` may give one mapping; merges of merges double at every level."""
MOST_LEVELS = 50
"""Brackets that may be open at once."""
MOST_FAULTS = 20
"""Faults that one message names."""


class SpecError(Exception):
    """A file of experiments, hosts, models or numbers is wrong; the message has one line for each fault."""


class Strict(BaseModel):
    """The base of all specifications: unknown keys are refused, values are not coerced, objects do not change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Spec = TypeVar("Spec", bound=BaseModel)


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys without a word; here the second one is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # `<<: *anchor` adds the anchor's keys, which the mapping's own may override
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool):
                raise yaml.constructor.ConstructorError(None, None, f"key {shown(key)} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {shown(key)} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def fetch_flow_collection_start(self, kind: type[yaml.Token]) -> None:
        if self.flow_level > MOST_LEVELS:  # PyYAML's look-ahead takes time with the square of the open brackets
            raise yaml.scanner.ScannerError(None, None, f"more than {MOST_LEVELS} open brackets", self.get_mark())
        super().fetch_flow_collection_start(kind)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)  # calls this for each merged mapping, so no level can grow unseen
        if len(node.value) > MOST_MERGED_KEYS:
            raise yaml.constructor.ConstructorError(None, None, f"more than {MOST_MERGED_KEYS} keys", node.start_mark)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; raises SpecError if it is absent, not UTF-8, not YAML, or repeats a key."""
    try:
        content = path.read_bytes()
        if len(content) > MOST_BYTES:
            raise SpecError(f"{path}: found {len(content):,} bytes; expected at most {MOST_BYTES:,}")
        return deepcopy(_parsed(content))
    except FileNotFoundError:
        known = ", ".join(sorted(other.stem for other in path.parent.glob(f"*{path.suffix}"))) or "none"
        raise SpecError(f"{path}: no such file; in that folder: {known}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply") from None
    # PyYAML lets the errors of its own conversions through: `!!bool x` is a KeyError, `!!timestamp x` an AttributeError.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        raise SpecError(f"{path}: not valid YAML: {str(error)[:2000] or type(error).__name__}") from None


@lru_cache(maxsize=64)  # one command reads each experiment many times, and PyYAML takes 0.3 s for the numbers of the paper
def _parsed(content: bytes) -> Any:
    return yaml.load(content.decode("utf-8"), Loader=_UniqueKeyLoader)


def read(kind: type[Spec], path: Path) -> Spec:
    """The YAML file at `path` as a checked object of `kind`; raises SpecError naming file, key, found and expected."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise SpecError(f"{path}: found {shown(content)}; expected keys: {', '.join(kind.model_fields)}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise SpecError("\n".join(f"{path}: {fault}" for fault in _faults(error, content, kind))) from None
    except (RecursionError, OverflowError) as error:  # a value that holds itself, a number beyond any float
        raise SpecError(f"{path}: {error}") from None


def _faults(error: ValidationError, content: Any, kind: type[BaseModel]) -> list[str]:
    faults = []
    for fault in error.errors()[:MOST_FAULTS]:
        key = _key(fault["loc"], content, absent=fault["type"] == "missing")
        message = fault["msg"].removeprefix("Value error, ")
        match fault["type"]:
            case "extra_forbidden":
                allowed = _fields_at(kind, fault["loc"][:-1], content)
                close = difflib.get_close_matches(str(fault["loc"][-1]), allowed, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                expected = f"; expected one of: {', '.join(allowed)}" if allowed else ""
                faults.append(f"{key}: unknown key, found {shown(fault['input'])}{hint}{expected}")
            case "missing":
                faults.append(f"{key}: found nothing; expected a value (the key is required)")
            case "value_error":
                faults.append(f"{key}: {message[:2000]}" if key else message[:2000])
            case _:
                faults.append(f"{key}: found {shown(fault['input'])}; expected: {message[:500]}")
    if error.error_count() > MOST_FAULTS:
        faults.append(f"and {error.error_count() - MOST_FAULTS} more faults")
    return faults


def _key(location: tuple[int | str, ...], content: Any, absent: bool = False) -> str:
    """The dotted key of a fault, without the tags that pydantic adds for members of a union; `absent`: it is not there."""
    key, at = "", content
    for position, part in enumerate(location):
        if isinstance(part, int):
            key += f"[{part}]"
            at = at[part] if isinstance(at, list) and part < len(at) else None
        elif (isinstance(at, dict) and part in at) or (absent and position == len(location) - 1):
            name = part if len(part) <= 80 else part[:77] + "..."
            key += f".{name}" if key else name
            at = at.get(part) if isinstance(at, dict) else None
    return key


def _fields_at(kind: type[BaseModel], location: tuple[int | str, ...], content: Any) -> list[str]:
    """The keys that the object at `location` may have, read from the generated JSON Schema."""
    schema = _schema(kind)
    options = [schema]
    for part in location:
        step: list[dict[str, Any]] = []
        for option in _alternatives(options, schema):
            if isinstance(part, int):
                step += [option["items"]] if "items" in option else option.get("prefixItems", [])
            elif part in option.get("properties", {}):
                step.append(option["properties"][part])
            elif isinstance(option.get("additionalProperties"), dict):
                step.append(option["additionalProperties"])
            elif part in (option.get("title"), option.get("properties", {}).get("kind", {}).get("const")):
                step.append(option)  # the tag of a union member, not a key of the file
        options = step
    return sorted({name for option in _alternatives(options, schema) for name in option.get("properties", {})})


@cache
def _schema(kind: type[BaseModel]) -> dict[str, Any]:
    return kind.model_json_schema()


def _alternatives(options: list[dict[str, Any]], schema: dict[str, Any]) -> list[dict[str, Any]]:
    flat = []
    for option in options:
        if "$ref" in option:
            flat += _alternatives([schema["$defs"][option["$ref"].rsplit("/", 1)[1]]], schema)
        elif "anyOf" in option or "oneOf" in option:
            flat += _alternatives(option.get("anyOf") or option["oneOf"], schema)
        else:
            flat.append(option)
    return flat
