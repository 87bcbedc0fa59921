"""A program in the engine's interpreter, for what only its torch and its vLLM can show."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".envs/engine-cpu/bin/python"


def run_in_engine(program: str, timeout_s: float) -> None:
    """Run the program's text; its assertions are the test's. Skips where the environment is not made."""
    if not PYTHON.exists():
        pytest.skip("no .envs/engine-cpu: make it with `scripts/setup engine-cpu`")
    environment = {"PYTHONPATH": str(ROOT / "workflow"), "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    done = subprocess.run([PYTHON, "-c", program], env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-3000:]
