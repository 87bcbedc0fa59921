"""The golden server as a process of its own, and cells run against one."""

import asyncio
import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden_server import GoldenServer, Settings
from pydantic import TypeAdapter

from spillway.load.run import CellResult, Endpoint, run_cell
from spillway.spec.workload import Workload

GOLDEN = Path(__file__).resolve().parents[2] / "golden_server.py"
CHECK: TypeAdapter[Workload] = TypeAdapter(Workload)
VOCABULARY = range(10, 2000)
SWEEP = {"kind": "prompt_sweep", "prompt_tokens": 100, "output_tokens": 10, "requests": 6, "streams": 2}


class GoldenProcess:
    """A golden server that can die without taking the test with it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url

    def alive(self) -> str | None:
        code = self.process.poll()
        return None if code is None else f"golden server ended with {code}"

    def log(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self.url + "/golden/log", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["requests"]
        return found


@contextlib.contextmanager
def golden_process(*flags: str) -> Iterator[GoldenProcess]:
    command = [sys.executable, str(GOLDEN), "--port", "0", "--enable-prompt-tokens-details", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "startup complete" in line:
                    yield GoldenProcess(process, line.split()[-1])
                    break
        finally:
            process.kill()


async def cell_at(url: str, workload: dict[str, Any], *, nonce: str = "run", **options: Any) -> CellResult:
    endpoint = Endpoint(url, "golden", **{"vocabulary": VOCABULARY} | options.pop("endpoint", {}))
    alive = options.pop("alive", lambda: None)
    name = options.pop("cell", "cell")
    # The tests share two cores: the bound on the client's delay is tested where it is the subject.
    options = {"seed": 1, "client_delay_bound_s": 30.0} | options
    return await run_cell(endpoint, CHECK.validate_python(workload), cell=name, nonce=nonce, alive=alive, **options)


def run(workload: dict[str, Any], settings: Settings | None = None, **options: Any) -> tuple[CellResult, GoldenServer]:
    """One cell against a golden server of its own, in this process."""

    async def main() -> tuple[CellResult, GoldenServer]:
        async with GoldenServer(settings or Settings(tokens_per_second=500, prompt_tokens_details=True)) as server:
            return await cell_at(server.url, workload, **options), server

    return asyncio.run(main())
