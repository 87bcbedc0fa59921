"""A server that writes its send time into each event, for the client's self-check (delay.py).

    python -m spillway.load.delay_server        serves on a free loopback port, prints it, and ends with its standard input

A process of its own, so that it never shares an event loop with the client that it measures.
"""

import asyncio
import json
import os
import socket
import sys
import time


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request: as many events as it asks for tokens, of the size and shape of vLLM's, each at its time."""
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        length = next(line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        asked = json.loads(await reader.readexactly(int(length)))
        events, gap_s = asked["max_tokens"], asked["gap_s"]
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        start_s = time.monotonic()
        for event in range(events):
            await asyncio.sleep(start_s + (event + 1) * gap_s - time.monotonic())
            usage = {"prompt_tokens": 1, "total_tokens": event + 2, "completion_tokens": event + 1}
            choice = {"index": 0, "delta": {"content": f"{time.monotonic():.9f}"}, "logprobs": None, "finish_reason": None}
            message = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 0, "model": "delay"}
            writer.write(_chunk(json.dumps(message | {"choices": [choice], "usage": usage})))
            await writer.drain()
        writer.write(_chunk("[DONE]") + b"0\r\n\r\n")
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client left
    finally:
        writer.close()


def _chunk(data: str) -> bytes:
    payload = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(payload), payload)


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    # The client holds the other end: it closes when the client ends, even by SIGKILL.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve())
