"""A client that is killed with SIGKILL takes its helpers with it: the workers and the self-check's server."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from servers import GoldenProcess, golden_process

DELAY_SERVER = """
    import sys, time, urllib.request
    from spillway.load.delay import delay_server
    with delay_server():
        urllib.request.urlopen(sys.argv[1] + "/v1/completions", b'{"prompt": [1], "max_tokens": 1}').read()  # it has started
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


@pytest.mark.parametrize(("script", "children", "requests"), [(DELAY_SERVER, 1, 1), (WORKERS, 2, 4)])
def test_nothing_outlives_a_killed_client(tmp_path, script: str, children: int, requests: int) -> None:
    path = tmp_path / "client.py"
    path.write_text(textwrap.dedent(script))
    with golden_process("--tokens-per-second", "20") as server:
        client = subprocess.Popen([sys.executable, str(path), server.url], stdout=subprocess.DEVNULL)
        try:
            await_requests(server, requests)  # of every stream, so that no worker is still importing: it would end of itself
            started = psutil.Process(client.pid).children(recursive=True)
        finally:
            os.kill(client.pid, signal.SIGKILL)
            client.wait()
        assert len(started) >= children
        _, left = psutil.wait_procs(started, timeout=10)
        for process in left:
            process.kill()
        assert not left


def await_requests(server: GoldenProcess, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(server.log()) < count:
        assert time.monotonic() < deadline, f"the server has seen {len(server.log())} of {count} requests"
        time.sleep(0.05)
