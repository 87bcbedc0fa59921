"""The program that measures a GPU's links, run to its end with the engine's torch on stand-ins for CUDA: what it asks for
and prints is tested, its rates are a CPU's and mean nothing. It has not run on a GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from spillway.engine.topology import read_matrix
from spillway.measure.topology import gpu_rows
from tests.conftest import ROOT
from tests.unit.nvidia_smi import MATRIX_TWO_SOCKETS

PYTHON = Path(os.environ.get("SPILLWAY_ENGINE_PYTHON", ROOT / ".envs" / "engine-cpu" / "bin" / "python"))
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no engine at {PYTHON}: scripts/setup engine-cpu"),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHON), str(ROOT / "tests/engine/stand_in/rates.py"), "--buffer-mib", "4", "--repeats", "3", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_every_link_of_two_gpus_and_two_nodes_is_measured_and_becomes_a_row():
    done = run("--nodes", "0-1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert [(gpu["index"], gpu["uuid"], gpu["node"]) for gpu in answer["gpus"]] == [(0, "GPU-0", 0), (1, "GPU-1", 0)]
    assert answer["buffer_bytes"] == 4 << 20
    rows = gpu_rows(answer, read_matrix(MATRIX_TWO_SOCKETS))
    found = sorted((row["link"], row["source"], row["target"] or "", row["at_once"]) for row in rows)
    expected = [("gpu memory", f"gpu{gpu}", "", 1) for gpu in (0, 1)]
    for node in ("node0", "node1"):
        for gpu in ("gpu0", "gpu1"):
            expected += [("host to gpu", node, gpu, 1), ("gpu to host", gpu, node, 1), ("in place", node, "", 1)]
    expected += [("host to gpu", "node0", gpu, 2) for gpu in ("gpu0", "gpu1")]
    expected += [("gpu to gpu", "gpu0", "gpu1", 1), ("gpu to gpu", "gpu1", "gpu0", 1)]
    assert found == sorted(expected)
    assert all(row["repeats"] == 3 and row["rate_bytes_per_s"] > 0 for row in rows)
    assert {row["crosses_nodes"] for row in rows if "node1" in (row["source"], row["target"])} == {True}
