"""Connections: kept and closed ones, retries, TLS, and stamps that belong to their read."""

import asyncio
import itertools
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpcore
import httpx
import pytest
from golden_server import GoldenServer, Settings
from scenarios import PLAIN, joined, script

from spillway.load import client as client_module
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


def test_what_follows_an_answer_is_not_the_answer_to_the_next_request() -> None:
    body = joined(PLAIN)
    stale = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body.replace('Hello', 'Stale')}"
    twice = script({"text": body + stale}, length=len(body))
    replies, connections = ask_twice(Settings(), [twice, script(*PLAIN)], 0.05)
    assert [(reply.ok, reply.retried, reply.content[0]) for reply in replies] == [(True, False, "Hello")] * 2
    assert replies[1].sent_s < replies[1].first_byte_s  # type: ignore[operator]
    assert len(set(connections)) == len(connections) == 2


def ask_raw(answers: list[bytes | float], count: int) -> tuple[list[Reply], list[bytes]]:
    """Replies to `count` requests and the heads that the server saw; a number is a wait, after which it hangs up."""

    async def main() -> tuple[list[Reply], list[bytes]]:
        heads = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while answers:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readuntil(b"}]}")
                answer = answers.pop(0)
                if isinstance(answer, float):
                    await asyncio.sleep(answer)
                    break
                writer.write(answer)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            replies = [Reply() for _ in range(count)]
            async with Client(Endpoint(url, "golden", api="chat")) as client:
                for reply in replies:
                    await client.send(b'"Hi"', 5, reply)
        return replies, heads

    return asyncio.run(main())


def whole(*headers: str) -> bytes:
    body = joined(PLAIN).encode()
    return "\r\n".join(["HTTP/1.1 200 OK", f"content-length: {len(body)}", *headers, "", ""]).encode() + body


def test_a_kept_connection_that_breaks_long_after_sending_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RETRY_WITHIN_S", 0.1)
    replies, heads = ask_raw([whole(), 0.3, whole()], 2)
    assert [(reply.error, reply.retried) for reply in replies] == [(None, False), ("transport", False)]
    assert len(heads) == 2


def test_no_cookie_is_sent_back() -> None:
    replies, heads = ask_raw([whole("set-cookie: replica=1; path=/"), whole()], 2)
    assert [reply.ok for reply in replies] == [True, True]
    assert not any(b"cookie" in head.lower() for head in heads)


def test_an_address_of_a_family_that_the_kernel_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int, *rest: int, **named: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError("Address family not supported by protocol")
        return real(family, *rest, **named)

    async def main() -> Reply:
        async with GoldenServer(scripts=[script(*PLAIN)]) as server:
            addresses = [(socket.AF_INET6, ("::1", server.port, 0, 0)), (socket.AF_INET, ("127.0.0.1", server.port))]
            found = [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for family, address in addresses]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            monkeypatch.setattr(socket, "socket", without_ipv6)
            async with Client(Endpoint(f"http://localhost:{server.port}", "golden", api="chat")) as client:
                reply = Reply()
                await client.send(b'"Hi"', 5, reply)
            monkeypatch.undo()
            return reply

    reply = asyncio.run(main())
    assert reply.ok, reply.message


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


def test_a_clock_that_is_set_between_arrival_and_read_makes_no_answer_older_than_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall_ns = time.time_ns
    step_ns = itertools.cycle([0, 3_600_000_000_000, -3_600_000_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + next(step_ns))

    async def main() -> tuple[Reply, list[float]]:
        async with GoldenServer(scripts=[script(*PLAIN)]) as server, Client(Endpoint(server.url, "m", api="chat")) as client:
            reply = Reply()
            await client.send(b'"Hi"', 5, reply)
            return reply, [at_s for at_s, _ in server.records[0].writes]

    reply, writes = asyncio.run(main())
    assert reply.ok and reply.sent_s is not None
    for chunk, write in zip(reply.chunks, writes, strict=False):  # [DONE] is no chunk
        assert 0 <= chunk.at_s - write < 0.15 and chunk.at_s > reply.sent_s


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
