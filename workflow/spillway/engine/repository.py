"""A model repository as a stranger's: it may bring Python code, or weights that run code when they are read."""

from pathlib import Path
from typing import Any

from spillway.engine.errors import ServerError
from spillway.spec.json_text import parse_json

CONFIGURATIONS = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
"""Endings of weight files in Python's pickle format, whose reading may run any code."""


class ForeignCode(ServerError):
    """A model repository would bring code of its own to run; the message says in which file, and what to set."""


def refuse_foreign_code(folder: Path, trusted: bool | None, where: str) -> None:
    """Raise ForeignCode if the model in `folder` brings Python code and `trusted` says nothing of it, or pickled weights.

    `trusted` is the key `trust_remote_code` of the file `where`. True: the engine will run the code. False: it will serve
    the model by its own classes, or refuse. A configuration that cannot be read is refused, too.
    """
    for name in CONFIGURATIONS:
        path = folder / name
        if not path.exists():
            continue
        try:
            content = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ForeignCode(f"{path}: {error}; fetch the model again") from None
        if trusted is None and _names_code(content):
            raise ForeignCode(
                f"{path}: auto_map: the repository brings Python code of its own; read it, then set in {where} "
                "`trust_remote_code: true` to run it, or `false` to serve the model by the engine's own classes"
            )
    if not any(folder.glob("*.safetensors")) and (pickled := sorted(_pickled(folder))):
        raise ForeignCode(
            f"{pickled[0]}: found weights in pickle format, which may run code when they are read; expected .safetensors"
        )


def _names_code(content: Any) -> bool:
    """Whether a configuration, or an object inside it, has the key by which transformers finds code to run."""
    ahead = [content]
    while ahead:
        value = ahead.pop()
        if isinstance(value, dict):
            if value.get("auto_map"):
                return True
            ahead += value.values()
        elif isinstance(value, list):
            ahead += value
    return False


def _pickled(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix in PICKLED]
