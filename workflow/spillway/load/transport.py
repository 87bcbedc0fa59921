"""HTTP for measuring: httpx over a network stream that stamps every read as the event loop hands it over.

httpx has its own network code underneath (anyio), which wakes a task before anybody can look at the clock, and costs more
than twice the processor time per event (benchmarks/README.md). httpcore, the transport below httpx, takes any network
backend instead; this one is an asyncio protocol. Each read keeps its own stamp however late its task runs.
"""

import asyncio
import collections
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpcore
import httpx

# Below the 5 s after which vLLM closes an idle connection, so that an agent's pause never meets a closed one.
KEEP_ALIVE_S = 2.0


class _Reads(asyncio.Protocol):
    """What arrived and when, until it is read."""

    def __init__(self) -> None:
        self.waiting: asyncio.Future[None] | None = None
        self.reads: collections.deque[tuple[float, bytes]] = collections.deque()
        self.error: Exception | None = None
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.monotonic(), data))
        self._wake()

    def eof_received(self) -> None:
        self.ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended, self.error = True, exc
        self._wake()

    def _wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)


class _Stream(httpcore.AsyncNetworkStream):
    """One connection. `get_extra_info("read_s")` is when the bytes last read arrived, on time.monotonic()."""

    def __init__(self, transport: asyncio.Transport, protocol: _Reads) -> None:
        self._transport = transport
        self._protocol = protocol
        self._read_s: float | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The bytes of one arrival, never of two, so that each keeps its time; b"" at the end."""
        protocol = self._protocol
        while not protocol.reads:
            if protocol.error is not None:
                raise httpcore.ReadError(f"{type(protocol.error).__name__}: {protocol.error}") from protocol.error
            if protocol.ended:
                return b""
            protocol.waiting = asyncio.get_running_loop().create_future()
            await protocol.waiting  # the client's own time-outs cancel this
        self._read_s, data = protocol.reads.popleft()
        if len(data) > max_bytes:
            protocol.reads.appendleft((self._read_s, data[max_bytes:]))
            data = data[:max_bytes]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._transport.is_closing():
            raise httpcore.WriteError("the connection is closed")
        self._transport.write(buffer)

    async def aclose(self) -> None:
        self._transport.abort()  # whatever is still unsent belongs to a request that is given up

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                transport = await asyncio.get_running_loop().start_tls(
                    self._transport, self._protocol, ssl_context, server_hostname=server_hostname
                )
        except (OSError, TimeoutError) as error:
            raise httpcore.ConnectError(f"TLS: {error}") from error
        if transport is None:
            raise httpcore.ConnectError("TLS: the server closed the connection")
        return _Stream(transport, self._protocol)

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "read_s":
                return self._read_s
            case "is_readable":  # httpcore asks before it uses an idle connection again: readable means ended
                return self._protocol.ended or bool(self._protocol.reads)
            case _:
                return self._transport.get_extra_info(info)


class _Backend(httpcore.AsyncNetworkBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                transport, protocol = await asyncio.get_running_loop().create_connection(_Reads, host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no connection to {host}:{port} within {timeout:g} s") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        with contextlib.suppress(OSError):  # not every kind of socket knows it
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Stream(transport, protocol)


class _Body(httpx.AsyncByteStream):
    def __init__(self, parts: Any) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._parts:
            yield part

    async def aclose(self) -> None:
        await self._parts.aclose()


class StampedTransport(httpx.AsyncBaseTransport):
    """An httpx transport without connection limit; errors are httpcore's. Pass it to httpx.AsyncClient(transport=...)."""

    def __init__(self, keep_alive_s: float = KEEP_ALIVE_S, ssl_context: ssl.SSLContext | None = None) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None, keepalive_expiry=keep_alive_s, network_backend=_Backend(), ssl_context=ssl_context
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        response = await self._pool.handle_async_request(
            httpcore.Request(
                request.method, url, headers=request.headers.raw, content=request.stream, extensions=request.extensions
            )
        )
        return httpx.Response(
            response.status, headers=response.headers, stream=_Body(response.stream), extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()
