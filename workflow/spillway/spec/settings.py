"""The settings of the workflow, `workflow/config.yaml`, which are also those of commands that name nothing else."""

from pathlib import Path

from pydantic import Field

from spillway.spec.experiment import names
from spillway.spec.read import SpecError, Strict, read

SETTINGS = Path("workflow/config.yaml")


class Settings(Strict):
    """workflow/config.yaml."""

    host: str = Field(description="file in experiments/hosts/, without .yaml: whose data the paper is built from")


def chosen_host(root: Path, named: str | None) -> str:
    """The host that a command names, or else that of the settings; raises SpecError if there is none of that name."""
    host = named or read(Settings, root / SETTINGS).host
    if host not in (known := names(root, "hosts")):
        raise SpecError(f"--host {host}: no such host; there are: {', '.join(known)}")
    return host
