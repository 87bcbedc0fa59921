"""The golden server with faults that a real engine has: memory that runs out, a worker process, a port that is taken.

    python faulty_server.py [--fault NAME] ARGUMENTS OF THE GOLDEN SERVER

Runs in vLLM's place, and writes into its log what vLLM 0.32 writes when the same happens to it.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import golden_server
from golden_server import GoldenServer

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139 GiB"
FAULTS = ("out-of-memory-at-load", "out-of-memory-at-first-request", "worker", "port-taken")


def die(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)
    os._exit(1)


def start_worker() -> None:
    """A worker process beside the server, as vLLM's engine core: each of the two ends with the other."""
    program = "import sys; sys.stdin.buffer.read()  # until the server ends"
    worker = subprocess.Popen([sys.executable, "-S", "-c", program, "faulty-worker"], stdin=subprocess.PIPE)

    def end_with_it() -> None:
        status = worker.wait()
        die(f"ERROR 01-01 00:00:00 [core.py:1] Worker proc died unexpectedly with {status}", "EngineDeadError: EngineCore died")

    threading.Thread(target=end_with_it, daemon=True).start()


def take_port(port: int) -> socket.socket:
    """Listen on the port as a stranger would that was quicker than the server."""
    stranger = socket.socket()
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stranger.bind(("127.0.0.1", port))
    stranger.listen()
    return stranger


async def die_in_request(*_: Any) -> None:
    die(OUT_OF_MEMORY, "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--port", type=int)
    ours, others = parser.parse_known_args(arguments)
    with contextlib.ExitStack() as held:
        match ours.fault:
            case "out-of-memory-at-load":
                die(OUT_OF_MEMORY, "RuntimeError: Engine core initialization failed. See root cause above.")
            case "out-of-memory-at-first-request":
                GoldenServer._completion = die_in_request  # type: ignore[method-assign]
            case "worker":
                start_worker()
            case "port-taken":
                held.enter_context(take_port(ours.port))
        asyncio.run(golden_server.serve(golden_server.parse_arguments([*others, "--port", str(ours.port)])))


if __name__ == "__main__":
    main(sys.argv[1:])
