"""Connections: kept and closed ones, retries, TLS, and stamps that belong to their read."""

import asyncio
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpcore
import httpx
import pytest
from golden_server import GoldenServer, Settings
from scenarios import PLAIN, script

from spillway.load.client import Client, Endpoint, Reply
from spillway.load.transport import StampedTransport


def ask_twice(settings: Settings, scripts: list[dict[str, object]], pause_s: float) -> tuple[list[Reply], list[int]]:
    async def main() -> tuple[list[Reply], list[int]]:
        async with GoldenServer(settings, scripts) as server, Client(Endpoint(server.url, "golden", api="chat")) as client:
            replies = [Reply(), Reply()]
            for reply in replies:
                await client.send(b'"Hi"', 5, reply)
                await asyncio.sleep(pause_s)
            return replies, [record.connection for record in server.records]

    return asyncio.run(main())


def test_connections_are_kept() -> None:
    replies, connections = ask_twice(Settings(), [script(*PLAIN)] * 2, 0.05)
    assert [reply.ok for reply in replies] == [True, True] and len(set(connections)) == 1


def test_a_pause_longer_than_the_server_keeps_connections() -> None:  # S13
    replies, connections = ask_twice(Settings(keep_alive_s=0.2), [script(*PLAIN)] * 2, 0.4)
    assert [(reply.ok, reply.retried) for reply in replies] == [(True, False)] * 2
    assert len(set(connections)) == 2


def test_a_kept_connection_that_closes_under_a_request_is_retried_once_and_flagged() -> None:  # S13
    replies, _ = ask_twice(Settings(), [script(*PLAIN), {"silent": True, "steps": []}, script(*PLAIN)], 0.0)
    assert [(reply.ok, reply.retried) for reply in replies] == [(True, False), (True, True)]
    silent = {"silent": True, "steps": []}
    replies, _ = ask_twice(Settings(), [script(*PLAIN), silent, silent], 0.0)
    assert (replies[1].error, replies[1].retried) == ("transport", True)


def test_a_fresh_connection_that_closes_is_no_retry() -> None:
    silent = {"silent": True, "steps": []}
    replies, connections = ask_twice(Settings(), [silent, script(*PLAIN)], 0.0)
    assert (replies[0].error, replies[0].retried, replies[1].ok) == ("transport", False, True)
    assert len(connections) == 2


def test_an_answer_that_began_is_never_sent_again() -> None:
    broken = script(*PLAIN[:3], {"end": "reset", "wait_s": 0.05})
    replies, connections = ask_twice(Settings(), [script(*PLAIN), broken, script(*PLAIN)], 0.0)
    assert (replies[1].error, replies[1].retried, len(connections)) == ("transport", False, 2)


def test_every_read_keeps_its_time_while_the_task_is_late() -> None:
    async def main() -> tuple[list[float], list[float]]:
        steps = [{"text": f"data: {n}\n\n", "wait_s": 0.05, "tokens": n + 1} for n in range(5)]
        async with GoldenServer(scripts=[script(*steps)]) as server:
            stamps = []
            async with (
                httpx.AsyncClient(transport=StampedTransport(), trust_env=False) as http,
                http.stream("POST", server.url + "/v1/completions", json={"prompt": [1]}) as response,
            ):
                connection = response.extensions["network_stream"]
                async for _ in response.aiter_raw():
                    stamps.append(connection.get_extra_info("read_s"))
                    await asyncio.sleep(0.3 if len(stamps) == 1 else 0)  # the other four arrive meanwhile
            return stamps, [at_s for at_s, _ in server.records[0].writes]

    stamps, writes = asyncio.run(main())
    assert len(stamps) == 5
    for stamp, write in zip(stamps, writes, strict=True):
        assert 0 <= stamp - write < 0.04


def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        capture_output=True,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip(f"openssl cannot make a certificate: {made.stderr[-200:]!r}")

    async def main() -> tuple[bytes, str]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
            await writer.drain()

        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_side.load_cert_chain(certificate, key)
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_side) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            trusting = ssl.create_default_context(cafile=str(certificate))
            async with httpx.AsyncClient(transport=StampedTransport(ssl_context=trusting), trust_env=False) as http:
                body = (await http.get(url)).content
            # Unless told to trust it, the client must not.
            async with httpx.AsyncClient(transport=StampedTransport(), trust_env=False) as http:
                with pytest.raises(httpcore.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                    await http.get(url)
            return body, url

    assert asyncio.run(main())[0] == b"hello"


def test_no_answer_to_a_connect_ends_after_its_timeout() -> None:
    async def main() -> tuple[Reply, float]:
        listener = socket.socket()  # whose queue is full, and accepts nobody
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        await asyncio.sleep(0.05)
        endpoint = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", "golden", api="chat", connect_timeout_s=0.3)
        reply, begin_s = Reply(), time.monotonic()
        async with Client(endpoint) as client:
            await client.send(b'"Hi"', 5, reply)
        for each in (*fillers, listener):
            each.close()
        return reply, time.monotonic() - begin_s

    reply, took_s = asyncio.run(main())
    assert (reply.error, "within 0.3 s" in (reply.message or "")) == ("connect", True)
    assert took_s < 1.5
