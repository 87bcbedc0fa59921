"""A worker of a client that is spread over several processes is killed: no hanging run, no half of the requests as all."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.faults.aftermath import wait_for
from tests.faults.conftest import HERE, Fault

LOAD = "import sys; from spillway.load.load_command import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def server_url() -> Iterator[str]:
    command = [sys.executable, str(HERE / "faulty_server.py"), "--port", "0", "--model", "golden"]
    with subprocess.Popen([*command, "--tokens-per-second", "20"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield next(line.split()[-1] for line in server.stdout if "startup complete" in line)
        server.kill()


def test_a_killed_worker_of_the_client(server_url: str, tmp_path: Path, fault: Fault) -> None:
    workload = json.dumps({"kind": "prompt_sweep", "prompt_tokens": 50, "output_tokens": 200, "requests": 40, "streams": 4})
    command = [sys.executable, "-c", LOAD, server_url, "--model", "golden", "--workload", workload, "--processes", "2"]
    command += ["--token-ids", "10:1999", "--out", str(tmp_path / "out"), "--delay-bound-ms", "1000"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    with fault("kill -9 of a client's worker") as landed:
        client = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        workers: list[psutil.Process] = []

        def started() -> bool:
            workers[:] = [each for each in psutil.Process(client.pid).children() if "spawn_main" in " ".join(each.cmdline())]
            return len(workers) == 2

        assert wait_for(started, 60)
        workers[0].send_signal(signal.SIGKILL)
        landed()
        output, _ = client.communicate(timeout=60)
        assert client.returncode == 1
        assert "a process of the client was ended from outside" in output and "Traceback" not in output
        assert not list(tmp_path.rglob("*.parquet"))
        _, left = psutil.wait_procs(workers, timeout=30)
        assert not left
