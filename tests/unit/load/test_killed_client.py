"""A client that is killed with SIGKILL takes its helpers with it: the workers and the self-check's server."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from servers import golden_process

DELAY_SERVER = """
    import time
    from spillway.load.delay import delay_server
    with delay_server():
        print("ready", flush=True)
        time.sleep(60)
"""
WORKERS = """
    import asyncio, sys
    from spillway.load.run import Endpoint, run_cell
    from spillway.spec.workload import PromptSweep
    if __name__ == "__main__":
        workload = PromptSweep(kind="prompt_sweep", prompt_tokens=50, output_tokens=500, requests=40, streams=4)
        endpoint = Endpoint(sys.argv[1], "golden", vocabulary=range(10, 2000))
        asyncio.run(run_cell(endpoint, workload, cell="c", seed=1, nonce="n", alive=lambda: None, processes=2))
"""


@pytest.mark.parametrize(("script", "children"), [(DELAY_SERVER, 1), (WORKERS, 2)])
def test_nothing_outlives_a_killed_client(tmp_path, script: str, children: int) -> None:
    path = tmp_path / "client.py"
    path.write_text(textwrap.dedent(script))
    with golden_process("--tokens-per-second", "20") as server:
        client = subprocess.Popen([sys.executable, str(path), server.url], stdout=subprocess.DEVNULL)
        try:
            started = await_children(client.pid, children)
        finally:
            os.kill(client.pid, signal.SIGKILL)
            client.wait()
        _, left = psutil.wait_procs(started, timeout=10)
        for process in left:
            process.kill()
        assert not left


def await_children(pid: int, count: int) -> list[psutil.Process]:
    """All descendants of a process once it has at least `count` that have settled down to their work."""
    deadline = time.monotonic() + 20
    found: list[psutil.Process] = []
    while len(found) < count and time.monotonic() < deadline:
        time.sleep(0.1)
        found = psutil.Process(pid).children(recursive=True)
    time.sleep(1.5)  # a worker that is still importing would end of itself
    found = psutil.Process(pid).children(recursive=True)
    assert len(found) >= count
    return found
