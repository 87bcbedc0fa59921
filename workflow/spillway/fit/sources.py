"""Where a model is described: a folder, a URL, a file of experiments/models/, or what is published here."""

from dataclasses import dataclass
from os.path import expandvars
from pathlib import Path
from typing import Any

from spillway.engine.tinymodel import configuration
from spillway.fit.checkpoint import INDEX, SINGLE, Files, Folder, Stored, stored_tensors
from spillway.fit.config import parse_config, read_config
from spillway.fit.hub import HubFiles
from spillway.fit.published import PublishedModel, published_model, published_models
from spillway.fit.weights import FitError
from spillway.spec.host import Model as ModelFile
from spillway.spec.read import read

CONFIG_LIMIT_BYTES = 16 << 20


@dataclass(frozen=True)
class Description:
    """A model as found: its configuration, its checkpoint's tensors if there is one, and what is published of it."""

    name: str
    where: str
    config: dict[str, Any]
    tensors: tuple[Stored, ...] | None
    published: PublishedModel | None


def find_model(name: str, root: Path, headers: bool) -> Description:
    """The model called `name`: a URL, a folder, else a file of experiments/models/ or a published name.

    With `headers` a URL's checkpoint is asked for its headers too (a folder's always is). Raises FitError, and SpecError
    for a wrong file of experiments/models/.
    """
    if name.startswith(("http://", "https://")):
        with HubFiles(name) as files:
            text = files.read("config.json", 0, min(files.size("config.json"), CONFIG_LIMIT_BYTES))
            config = parse_config(text, files.where("config.json"))
            return Description(name, files.base, config, _tensors(files) if headers else None, None)
    if Path(name).is_dir():
        return _folder(Path(name).resolve().name, Path(name))
    path = root / "experiments" / "models" / f"{name}.yaml"
    if path.is_file():
        source = read(ModelFile, path).source
        if source.kind == "folder":
            return _folder(name, Path(expandvars(source.path)).expanduser())
        if source.kind == "converted":
            return _folder(name, root / ".envs" / source.setup / "model")
        if source.kind == "shape":
            return Description(name, str(path), dict(source.config), None, None)
        return Description(name, str(path), configuration(source.shape, source.format), None, None)
    if name in published_models():
        published = published_model(name)
        return Description(name, published.source, dict(published.config), None, published)
    files_there = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml"))) or "none"
    raise FitError(
        f"model {name!r}: found neither a folder nor a file {path}; expected a folder with config.json, a URL, "
        f"one of experiments/models/ ({files_there}) or one of: {', '.join(published_models())}"
    )


def _folder(name: str, path: Path) -> Description:
    return Description(name, str(path), read_config(path), _tensors(Folder(path)), None)


def _tensors(files: Files) -> tuple[Stored, ...] | None:
    """The checkpoint's tensors, None if there is no checkpoint beside the configuration."""
    if not files.exists(INDEX) and not files.exists(SINGLE):
        return None
    return tuple(stored_tensors(files))
