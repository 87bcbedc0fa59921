"""The client's own delay: how late it stamps events, measured against a server that writes its send time into each.

CLOCK_MONOTONIC is one clock for all processes of a machine. The requests go through the client that the cell used, so that
all it does to an event before the stamp of the next is in the delay: read, HTTP, SSE, JSON.
"""

import asyncio
import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator

from spillway.load.client import Client, Endpoint, Reply

FEWEST_EVENTS = 320  # over all streams, for a 99th percentile
MOST_EVENTS = 100_000  # over all streams, a few seconds of this server
SHORTEST_S, LONGEST_S = 0.5, 2.0


def schedule(streams: int, rate_per_s: float) -> tuple[int, float]:
    """Events per stream and gap between them: the cell's rate, until there are FEWEST_EVENTS, within the bounds in time.

    A rate below what gives FEWEST_EVENTS in LONGEST_S is raised to it, which asks more of the client than the cell did. At a
    rate that gives more than MOST_EVENTS, as of answers that a proxy held back and wrote at once, the time is shorter.
    """
    rate_per_s = max(rate_per_s, FEWEST_EVENTS / LONGEST_S / streams)
    seconds = max(SHORTEST_S, FEWEST_EVENTS / rate_per_s / streams)
    return max(2, min(math.ceil(rate_per_s * seconds), MOST_EVENTS // streams)), 1 / rate_per_s


async def receive_delays_s(port: int, streams: int, events: int, gap_s: float) -> list[float]:
    """Receive delay of every event of `streams` streams at once, in seconds."""
    endpoint = Endpoint(f"http://127.0.0.1:{port}", "delay", api="chat", options={"gap_s": gap_s})
    async with Client(endpoint) as client:
        await client.warm()
        replies = [Reply() for _ in range(streams)]
        await asyncio.gather(*(client.send(b'""', events, reply) for reply in replies))
    for reply in replies:
        if not reply.ok:
            raise ConnectionError(f"the client's self-check failed: {reply.error}: {reply.message}")
    return [chunk.at_s - float(sent) for reply in replies for chunk, sent in zip(reply.chunks, reply.content, strict=True)]


@contextlib.contextmanager
def delay_server() -> Iterator[int]:
    """Start the server and yield its port."""
    command = [sys.executable, "-m", "spillway.load.delay_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise ConnectionError(f"the self-check's server ended with status {process.wait()}")
            yield int(line)
        finally:
            process.terminate()
