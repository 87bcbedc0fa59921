"""HTTP for measuring: httpx over network streams that know when each read arrived.

httpx has its own network code underneath (anyio), which wakes a task before anybody can look at the clock, and costs more
than twice the processor time per event. The HTTP/1.1 connections of httpcore, the layer below, take any network stream
instead. This one asks the Linux kernel to stamp what arrives, so that the time of an event does not depend on how busy the
client is, as long as it reads more often than the server writes. Where the kernel gives no stamp, and under TLS, where a
read is not an arrival, the event loop's own read is stamped.
"""

import asyncio
import collections
import socket
import ssl
import struct
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpcore
import httpx

# Below the 5 s after which vLLM closes an idle connection, so that an agent's pause never meets a closed one.
KEEP_ALIVE_S = 2.0

_READ_BYTES = 65536
_SO_TIMESTAMPNS = 35  # <asm-generic/socket.h>; the socket module has no name for it
_TIMESPEC = struct.Struct("qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


def arrival_s(ancillary: list[tuple[int, int, bytes]]) -> float:
    """When a read arrived, on time.monotonic(): the kernel's stamp if there is one, else now.

    The stamp is of the wall clock, so only its age is used: a step of that clock can only matter between arrival and
    read, where _Stream notices it. If a read holds several packets, the stamp is that of the last. The wall clock is read
    first: an interruption between the two readings then makes an arrival later, as any delay does, and never earlier than
    it was.
    """
    wall_ns, now_s = time.time_ns(), time.monotonic()
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            age_ns: int = wall_ns - seconds * 1_000_000_000 - nanoseconds
            return now_s - max(0, age_ns) * 1e-9
    return now_s


class _Reads:
    """What arrived and when, until it is read. Each read keeps its own time however late its task runs."""

    def __init__(self) -> None:
        self._reads: collections.deque[tuple[float, bytes]] = collections.deque()
        self._waiting: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._ended = False
        self.read_s: float | None = None  # when the bytes that were read last arrived

    def add(self, at_s: float, data: bytes) -> None:
        self._reads.append((at_s, data))
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        self._ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    @property
    def readable(self) -> bool:
        return self._ended or bool(self._reads)

    async def read(self, max_bytes: int) -> bytes:
        """The bytes of one arrival, never of two; b"" at the end. The client's own time-outs cancel this."""
        while not self._reads:
            if self._error is not None:
                raise httpcore.ReadError(f"{type(self._error).__name__}: {self._error}") from self._error
            if self._ended:
                return b""
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self.read_s, data = self._reads.popleft()
        if len(data) > max_bytes:
            self._reads.appendleft((self.read_s, data[max_bytes:]))
            data = data[:max_bytes]
        return data


class _Stream(httpcore.AsyncNetworkStream):
    """One TCP connection. `get_extra_info("read_s")` is when the bytes last read arrived, on time.monotonic()."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._reads = _Reads()
        self._latest_s = time.monotonic()  # of what was sent and has arrived; nothing that arrives is older
        self._loop.add_reader(connection, self._readable)

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._loop.remove_reader(self._socket)
            self._reads.end(error)
            return
        if data:
            at_s = arrival_s(ancillary)
            if at_s < self._latest_s:  # the wall clock was set forward since it arrived
                at_s = time.monotonic()
            self._latest_s = at_s
            self._reads.add(at_s, data)
        else:
            self._loop.remove_reader(self._socket)
            self._reads.end()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._reads.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._latest_s = time.monotonic()
        try:
            await self._loop.sock_sendall(self._socket, buffer)
        except OSError as error:
            raise httpcore.WriteError(f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        self._loop.remove_reader(self._socket)
        transport, protocol = await self._loop.create_connection(
            _TlsReads, sock=self._socket, ssl=ssl_context, server_hostname=server_hostname
        )
        return _TlsStream(transport, protocol.reads)

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "read_s":
                return self._reads.read_s
            case "is_readable":  # httpcore asks before it uses an idle connection again: readable means ended
                return self._reads.readable
            case _:
                return None


class _TlsReads(asyncio.Protocol):
    def __init__(self) -> None:
        self.reads = _Reads()

    def data_received(self, data: bytes) -> None:
        self.reads.add(time.monotonic(), data)

    def eof_received(self) -> None:
        self.reads.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reads.end(exc)


class _TlsStream(httpcore.AsyncNetworkStream):
    """One TLS connection; offers what _Stream offers."""

    def __init__(self, transport: asyncio.Transport, reads: _Reads) -> None:
        self._transport = transport
        self._reads = reads

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._reads.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._transport.is_closing():
            raise httpcore.WriteError("the connection is closed")
        self._transport.write(buffer)

    async def aclose(self) -> None:
        self._transport.abort()  # whatever is still unsent belongs to a request that is given up

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "read_s":
                return self._reads.read_s
            case "is_readable":
                return self._reads.readable
            case _:
                return self._transport.get_extra_info(info)


async def _connect(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket to the first of the host's addresses that answers; raises the last one's OSError."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    try:  # a numeric address needs no thread
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in addresses:
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as error:  # a kernel without IPv6 has no such sockets, while "localhost" is ::1 first
            failure = error
            continue
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.platform == "linux":
                connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            await loop.sock_connect(connection, address)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            failure = error
        else:
            return connection
    raise failure or OSError(f"{host} has no address")


class _Body(httpx.AsyncByteStream):
    """The body of one answer; hands its connection back once it is over and the connection is fit for another.

    It is not if more than the answer has arrived, which would be taken for the answer to the next request.
    """

    def __init__(
        self,
        answer: httpcore.Response,
        connection: httpcore.AsyncHTTP11Connection,
        idle: list[httpcore.AsyncHTTP11Connection],
    ) -> None:
        self._answer, self._connection, self._idle = answer, connection, idle

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._answer.aiter_stream()

    async def aclose(self) -> None:
        await self._answer.aclose()
        if self._connection.is_idle():
            unread, _ = self._connection._h11_state.trailing_data
            if unread:
                await self._connection.aclose()
            else:
                self._idle.append(self._connection)


class StampedTransport(httpx.AsyncBaseTransport):
    """An httpx transport to one server: a connection for each request in flight, kept for the next; errors are httpcore's.

    httpcore's pool is left out: it looks at every connection for every request, which at 100 streams holds up the event
    loop for milliseconds each.
    """

    def __init__(self, keep_alive_s: float = KEEP_ALIVE_S, ssl_context: ssl.SSLContext | None = None) -> None:
        self._keep_alive_s = keep_alive_s
        self._ssl_context = ssl_context
        self._idle: list[httpcore.AsyncHTTP11Connection] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        connection = await self._kept(url.origin) or await self._fresh(url.origin, request.extensions)
        response = await connection.handle_async_request(
            httpcore.Request(
                request.method, url, headers=request.headers.raw, content=request.stream, extensions=request.extensions
            )
        )
        body = _Body(response, connection, self._idle)
        return httpx.Response(response.status, headers=response.headers, stream=body, extensions=response.extensions)

    async def _kept(self, origin: httpcore.Origin) -> httpcore.AsyncHTTP11Connection | None:
        """An idle connection that both sides still hold open; the others are closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.can_handle_request(origin) and not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    async def _fresh(self, origin: httpcore.Origin, extensions: Mapping[str, Any]) -> httpcore.AsyncHTTP11Connection:
        host, port = origin.host.decode("ascii"), origin.port
        timeout_s = extensions.get("timeout", {}).get("connect")
        if (trace := extensions.get("trace")) is not None:
            await trace("connection.connect_tcp.started", {"host": host, "port": port})
        try:
            async with asyncio.timeout(timeout_s):
                stream: httpcore.AsyncNetworkStream = _Stream(await _connect(host, port))
                if origin.scheme == b"https":
                    stream = await stream.start_tls(self._tls(), server_hostname=host)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no connection to {host}:{port} within {timeout_s:g} s") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return httpcore.AsyncHTTP11Connection(origin, stream, keepalive_expiry=self._keep_alive_s)

    def _tls(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()
        return self._ssl_context

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()
