"""Bytes per component as a checkpoint stores them, from the safetensors headers alone: no tensor is read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spillway.fit.weights import Component, FitError
from spillway.spec.json_text import parse_json
from spillway.spec.names import NAME_RULE, is_name
from spillway.spec.shown import shown

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEADER_LIMIT_BYTES = 100_000_000  # the limit of the safetensors library itself

# First match wins; names as in the checkpoints of Qwen3-MoE, Mixtral, DeepSeek-V3 and DeepSeek-V4.1, and in vLLM.
COMPONENTS: tuple[tuple[str, Component], ...] = (
    (r"(^|\.)(vision|visual|vision_tower|aligner)\.|(^|\.)image_(start|end|newline)$", "vision"),
    (r"(^|\.)mtp\.", "draft layers"),
    (r"\.engram\..*(table|embed)", "engram tables"),
    (r"\.engram\.", "engram projections"),
    (r"(^|\.)hc_|\.hc_", "residual mixing"),
    (r"\.shared_experts?\.", "shared experts"),
    (r"\.experts\.", "routed experts"),
    (r"\.(mlp|ffn|block_sparse_moe)\.gate\.", "router"),
    (r"embed_tokens\.|(^|\.)embed\.", "embedding"),
    (r"lm_head\.|(^|\.)head\.", "head"),
    (r"norm\.|norm\.weight$|_norm\.", "norms"),
    (r"\.(self_attn|attn)\.", "attention"),
    (r"\.(mlp|ffn)\.", "dense MLP"),
)


class Files(Protocol):
    """A model's files, on disk or behind a URL."""

    def exists(self, name: str) -> bool: ...

    def read(self, name: str, start: int, length: int) -> bytes: ...

    def size(self, name: str) -> int: ...

    def where(self, name: str) -> str: ...


@dataclass(frozen=True)
class Folder:
    """A model's files in a local folder."""

    path: Path

    def exists(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str, start: int, length: int) -> bytes:
        with (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def where(self, name: str) -> str:
        return str(self.path / name)


@dataclass(frozen=True)
class Stored:
    """One tensor of a checkpoint: shape and bytes as its file's header states them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


def stored_tensors(files: Files) -> list[Stored]:
    """Every tensor of a checkpoint, from the headers of its safetensors files.

    Raises FitError naming the file if there is neither an index nor a single file, if a file of the index is absent or
    cut short, or if a header is damaged.
    """
    if files.exists(INDEX):
        text = files.read(INDEX, 0, min(files.size(INDEX), HEADER_LIMIT_BYTES))
        placed = _weight_map(text)
        if placed is None:
            raise FitError(f"{files.where(INDEX)}: no weight_map in it; expected the index of a sharded checkpoint")
        names = sorted(set(placed.values()))
        if foreign := [name for name in names if not is_name(name)]:
            raise FitError(f"{files.where(INDEX)}: names {shown(foreign[0])}; expected files beside it: {NAME_RULE}")
        absent = [name for name in names if not files.exists(name)]
        if absent:
            raise FitError(
                f"{files.where(absent[0])}: absent, but {INDEX} names it "
                f"({len(absent)} of {len(names)} files absent); fetch it, or name a folder with config.json alone"
            )
    elif files.exists(SINGLE):
        names, placed = [SINGLE], None
    else:
        raise FitError(f"{files.where(INDEX)}: neither it nor {SINGLE} is there; the prediction needs config.json alone")
    tensors = [tensor for name in names for tensor in read_header(files, name)]
    if placed is not None and (missing := sorted(set(placed) - {tensor.name for tensor in tensors})):
        raise FitError(f"{files.where(INDEX)}: names {shown(missing[0])}, which no file holds ({len(missing)} such tensors)")
    return tensors


def _weight_map(text: bytes) -> dict[str, str] | None:
    """Tensor -> file of an index, None if the text is no index."""
    try:
        content = parse_json(text)
    except ValueError:
        return None
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        return None
    return places


def read_header(files: Files, name: str) -> list[Stored]:
    """The tensors of one safetensors file, reading its header only; raises FitError if it is damaged or cut short.

    Format: 8 bytes header length (little endian), JSON header, tensors (https://github.com/huggingface/safetensors).
    """
    where = files.where(name)
    length = int.from_bytes(files.read(name, 0, 8), "little")
    if not 2 <= length <= HEADER_LIMIT_BYTES:
        raise FitError(f"{where}: not a safetensors file: its header would be {length} bytes long")
    try:
        header = parse_json(files.read(name, 8, min(length, files.size(name))))
    except ValueError as error:
        raise FitError(f"{where}: its header of {length} bytes: {error}; the file is damaged or cut short") from None
    if not isinstance(header, dict):
        raise FitError(f"{where}: its header is {type(header).__name__}; expected an object of tensors")
    tensors = [_tensor(where, key, entry) for key, entry in header.items() if key != "__metadata__"]
    expected = 8 + length + sum(tensor.bytes for tensor in tensors)
    if files.size(name) != expected:
        raise FitError(f"{where}: {files.size(name)} bytes long; its header accounts for {expected}: the file is cut short")
    return tensors


def _tensor(where: str, name: str, entry: Any) -> Stored:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(first), int(last)]} if 0 <= first <= last:
            if all(type(size) is int and size >= 0 for size in shape):
                return Stored(name, dtype, tuple(shape), last - first)
    raise FitError(f"{where}: {name[:200]}: found {shown(entry)}; expected dtype, shape and data_offsets")


def component_of(tensor: str, backbone_layers: int | None = None) -> Component:
    """The component that a tensor's name belongs to; layers from `backbone_layers` on are draft layers."""
    layer = re.search(r"(?:^|\.)layers\.(\d+)\.", tensor)
    if backbone_layers is not None and layer and int(layer[1]) >= backbone_layers:
        return "draft layers"
    for pattern, component in COMPONENTS:
        if re.search(pattern, tensor):
            return component
    return "other"


def stored_bytes_by_component(tensors: Iterable[Stored], backbone_layers: int | None = None) -> dict[Component, int]:
    """Component -> bytes of a checkpoint's tensors."""
    total: dict[Component, int] = {}
    for tensor in tensors:
        component = component_of(tensor.name, backbone_layers)
        total[component] = total.get(component, 0) + tensor.bytes
    return total
