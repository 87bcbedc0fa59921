"""How an engine finds the plugin although Spillway is not installed in the engine's environment.

vLLM finds plugins by the entry points of distributions on the path. A distribution is only a folder `*.dist-info` with
two small files, so writing one into a folder on PYTHONPATH is enough. Nothing is installed, the engine's environment
stays as its lock says, and it works where there is no network, no pip and a read-only engine.
"""

from pathlib import Path

ENTRY_POINT_GROUP = "vllm.general_plugins"
ENTRY_POINT = "spillway_placement = spillway.placement.plugin:register"


def write_discovery(folder: Path) -> tuple[Path, Path]:
    """Write the distribution's folder into `folder`; returns the two entries that PYTHONPATH needs, in order."""
    info = folder / "spillway_placement-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spillway-placement\nVersion: 0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{ENTRY_POINT}\n", encoding="utf-8")
    return folder, Path(__file__).resolve().parents[2]
