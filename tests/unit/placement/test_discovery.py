"""An engine finds the plugin through two path entries, although nothing is installed in its environment."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from spillway.placement.discovery import ENTRY_POINT, ENTRY_POINT_GROUP, write_discovery

ROOT = Path(__file__).parents[3]
# What the plugin imports when it registers. Only these are on the path, without site-packages (-S), so that an installed
# spillway cannot be what is found.
NEEDED = (
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
    "psutil",
    "numpy",
    "numpy.libs",
)
FIND = """
import importlib.metadata as m, os
(found,) = [p for p in m.entry_points(group="vllm.general_plugins") if p.name == "spillway_placement"]
register = found.load()
register()
print(register.__module__)
"""


def test_the_entry_point_is_found_and_does_nothing_without_being_asked(tmp_path):
    path = os.pathsep.join(map(str, write_discovery(tmp_path / "discovery")))
    site = Path(next(p for p in sys.path if p.endswith("site-packages")))
    needed = tmp_path / "needed"
    needed.mkdir()
    for name in NEEDED:
        for found in (site / name, site / f"{name}.py"):
            if found.exists():
                (needed / found.name).symlink_to(found)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPILLWAY_", "VLLM_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-S", "-c", FIND], env=environment | {"PYTHONPATH": os.pathsep.join([path, str(needed)])},
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.strip() == "spillway.placement.plugin", done.stderr


def test_the_written_entry_point_is_the_one_that_the_project_declares():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][ENTRY_POINT_GROUP]
    assert [f"{name} = {target}" for name, target in declared.items()] == [ENTRY_POINT]
