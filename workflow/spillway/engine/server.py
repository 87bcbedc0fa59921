"""Start one vLLM server, prove it ready, watch it, and stop all of it whatever happens.

    with serve(launch, folder, ready_timeout_s=300) as server:
        ...                      # server.base_url, server.alive()

Between this process (the launcher) and the server stands a supervisor, see supervisor.py: nothing of the server
outlives the `with` block, an exception, SIGINT, SIGTERM or even SIGKILL of the launcher.
"""

import contextlib
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx

from spillway.engine import supervisor
from spillway.engine.errors import LeftoverServer, ServerDied, ServerNotReady, ServerWouldNotStop
from spillway.engine.lock import lock_path
from spillway.engine.processes import LOCK_VARIABLE, RUN_VARIABLE, describe, listens, marked_processes
from spillway.engine.readiness import Unanswered, await_health, engine_version, prove_decode, prove_prefill
from spillway.spec.shown import printable

DROPPED_VARIABLES = ("VLLM_", "PYTHON", "OMP_", "KMP_", "MKL_", "TORCH", "PYTORCH_", "SPILLWAY_", "EXL3_", "DSV41_", "XMOE_")
"""Beginnings of variable names that a server never inherits: what changes the engine stands in the host's file."""
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Number the GPUs as NVML and nvidia-smi do, so that CUDA_VISIBLE_DEVICES names the ones whose memory is read."""
LOOPBACK_VARIABLES = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Keep the ranks' own ports off the network: without them Gloo listens on the address that the host's name stands for,
seen with vLLM 0.32 on the CPU. A host whose file says otherwise in engine.variables, as several machines need it, gets that."""
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 64 * 1024
DEATH_NOTICE_S = 2.0
"""How long after a broken connection the server may take to be seen as dead."""


@dataclass(frozen=True)
class Launch:
    """What to start and what it must prove.

    `command` lacks host and port, which are appended as `--host 127.0.0.1 --port N`. `environment` is added to the
    launcher's own, less DROPPED_VARIABLES. `vocabulary` holds the token ids that prompts may be made of.
    """

    command: list[str]
    environment: dict[str, str]
    model: str
    """Served model name, as requests give it."""
    vocabulary: range
    full_batch: int
    """Streams that decode at the same time before the server counts as ready: the most that the experiment uses."""
    long_prefill_tokens: int
    """Prompt that must be answered before the server counts as ready: the longest that the experiment uses."""
    progress_timeout_s: float = 120.0
    """Silence on a request after which the server is said to hang; above the time of the longest prefill."""
    stop_grace_s: float = 20.0
    """Time between SIGTERM and SIGKILL."""


class Server:
    """A running server. `startup_s` and `health_s` count from launch and are set once it is ready."""

    def __init__(
        self, launch: Launch, command: list[str], run: str, port: int, log: Path, process: subprocess.Popen[bytes]
    ) -> None:
        self.launch = launch
        self.command = command
        self.run = run
        self.port = port
        self.base_url = f"http://127.0.0.1:{port}"
        self.log = log
        self.health_s: float | None = None
        self.startup_s: float | None = None
        self.engine_version: str | None = None
        self._supervisor = process
        self._notices = b""
        self.pid = self._started_pid()

    def _started_pid(self) -> int:
        while b"\n" not in self._notices:
            self._read_notices()
            if self._supervisor.poll() is not None and b"\n" not in self._notices:
                raise ServerDied(f"the server's supervisor ended with {self._supervisor.returncode}\n{self.log_tail()}")
        word, _, number = self._notices.split(b"\n")[0].partition(b" ")
        if word != b"started":
            raise ServerDied(f"the server could not be started: {self.command[0]}\n{self.log_tail()}")
        return int(number)

    def _read_notices(self, timeout_s: float = 1.0) -> None:
        assert self._supervisor.stdout is not None
        if self._supervisor.stdout.closed:
            return
        if select.select([self._supervisor.stdout], [], [], timeout_s)[0]:
            self._notices += os.read(self._supervisor.stdout.fileno(), 4096)

    def alive(self) -> str | None:
        """None while the server runs; else how it ended, with its last log lines. Cheap: ask as often as you like."""
        self._read_notices(timeout_s=0)
        ended = re.search(rb"exit (-?\d+)\n", self._notices)
        if ended:
            code = int(ended[1])
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
            return f"the server (pid {self.pid}) {how}\n{self.log_tail()}"
        if self._supervisor.poll() is not None:
            return f"the server's supervisor (pid {self._supervisor.pid}) was ended from outside\n{self.log_tail()}"
        return None

    def check_alive(self) -> None:
        """Raise ServerDied if the server has ended."""
        death = self.alive()
        if death is not None:
            raise ServerDied(death)

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the server's log, headed by its path."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
            tail = printable(file.read().decode(errors="replace").replace("\r", "\n")).splitlines()[-lines:]
        return "\n".join([f"last lines of {self.log}:", *(f"  | {line}" for line in tail)])

    @property
    def weights_bytes(self) -> int | None:
        """Bytes of weights on the fullest device as vLLM's log says, to 0.01 GiB; None if not said (the CPU worker)."""
        found = re.findall(r"Model loading took ([0-9]{1,9}(?:\.[0-9]{1,9})?) GiB", self.log.read_text(errors="replace"))
        return round(max(map(float, found)) * 2**30) if found else None

    @property
    def kv_cache_tokens(self) -> int | None:
        """Tokens that the KV cache holds as vLLM's log says, None if not said."""
        found = re.findall(r"KV cache size: ([0-9][0-9,]{0,20}) tokens", self.log.read_text(errors="replace"))
        return int(found[-1].replace(",", "")) if found else None

    def stop(self) -> None:
        """End every process of the server and verify that none is left; safe to repeat; raises ServerWouldNotStop.

        If a signal interrupts the waiting, the supervisor still finishes the work.
        """
        if self._supervisor.poll() is None:
            self._supervisor.terminate()
        patience_s = self.launch.stop_grace_s + supervisor.REST_GRACE_S + supervisor.KILL_PATIENCE_S + 5
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(patience_s)
            self._read_notices(timeout_s=0)
            assert self._supervisor.stdout is not None
            self._supervisor.stdout.close()
        _kill_marked(self.run)
        if self._supervisor.poll() != 0:
            raise ServerWouldNotStop(
                f"the server's supervisor ended with {self._supervisor.returncode}, so a process of the server may be left "
                f"that nobody can tell from others; look with `ps -eo pid,lstart,args`\n{self.log_tail()}"
            )


@contextlib.contextmanager
def serve(launch: Launch, folder: Path, *, ready_timeout_s: float) -> Iterator[Server]:
    """Run a server for the time of a `with` block, which starts when the server has proved that it is ready.

    Its log is `folder`/server.log; each start needs a folder of its own. Ready means: /health is ok within
    `ready_timeout_s`, then a prompt of `long_prefill_tokens` has been answered, then `full_batch` streams have decoded
    at the same time. Raises LeftoverServer, ServerDied, ServerNotReady, and ServerWouldNotStop at the end.
    SIGTERM raises SystemExit inside the block (main thread only), so it unwinds as SIGINT does.
    """
    refuse_leftovers(launch.stop_grace_s)
    with _sigterm_unwinds(), _free_port() as port:
        started = time.monotonic()
        server = _start(launch, folder, port)
        try:
            _prove_ready(server, started, ready_timeout_s)
            yield server
        finally:
            server.stop()


def refuse_leftovers(patience_s: float) -> None:
    """Raise LeftoverServer if a server of this host's runs is up, after `patience_s` in which it may be ending."""
    deadline = time.monotonic() + patience_s
    while left := marked_processes(LOCK_VARIABLE, str(lock_path())):
        if time.monotonic() > deadline:
            pids = " ".join(str(process.pid) for process in left)
            raise LeftoverServer(
                f"a server of an earlier run is still up:\n{describe(left)}\n"
                f"stop it with `kill {pids}`, after a minute with `kill -9 {pids}`, then start again"
            )
        time.sleep(0.2)


def server_environment(added: dict[str, str]) -> dict[str, str]:
    """This process's environment less DROPPED_VARIABLES, ORDER, LOOPBACK_VARIABLES, and what is `added` to it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED_VARIABLES)}
    return own | ORDER | LOOPBACK_VARIABLES | added


def _start(launch: Launch, folder: Path, port: int) -> Server:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    run = secrets.token_hex(8)
    command = [*launch.command, "--host", "127.0.0.1", "--port", str(port)]
    environment = server_environment(launch.environment)
    environment |= {RUN_VARIABLE: run, LOCK_VARIABLE: str(lock_path())}
    environment["SPT_NOENV"] = "1"  # vLLM renames its processes with setproctitle, which else overwrites the mark
    with log.open("xb") as file:
        process = subprocess.Popen(
            # -I -S: no site packages, nothing of PYTHONPATH; the standard library starts in milliseconds.
            [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(launch.stop_grace_s), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            # A process group of its own, so that Ctrl-C does not reach it before the launcher, but not a session of its own:
            # Linux schedules sessions against each other (autogroup), and an engine that spins in sched_yield then keeps
            # the client off a core for 140 ms at a time, so that a whole answer arrives in one read. Measured on two cores.
            process_group=0,
        )
    try:
        return Server(launch, command, run, port, log, process)
    except BaseException:
        process.terminate()  # the supervisor stops what it started, if anything
        process.wait()
        _kill_marked(run)  # and if it was killed itself before it had told what it started, nobody else does
        raise


def _kill_marked(run: str) -> None:
    """SIGKILL every process of a server until none is left: normally none is, unless its supervisor was killed.

    Raises ServerWouldNotStop.
    """
    deadline = time.monotonic() + supervisor.KILL_PATIENCE_S
    unseen = 0
    while unseen < 2:  # one that is just becoming another program shows no environment for a moment
        left = marked_processes(RUN_VARIABLE, run)
        unseen = 0 if left else unseen + 1
        if left and time.monotonic() > deadline:
            raise ServerWouldNotStop(f"SIGKILL did not end these processes of the server:\n{describe(left)}")
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        if unseen < 2:
            time.sleep(supervisor.POLL_S)


def _prove_ready(server: Server, started: float, ready_timeout_s: float) -> None:
    launch = server.launch
    deadline = started + ready_timeout_s
    salt = f"spillway-readiness-{server.run}"
    silence_s = launch.progress_timeout_s
    with _stage(server, "health"):
        await_health(server.base_url, server.check_alive, deadline)
        if not listens(server.pid, server.port):
            raise Unanswered(f"port {server.port} is answered by a process that is not part of the server")
        server.health_s = time.monotonic() - started
        server.engine_version = engine_version(server.base_url)
    with _stage(server, "prefill"):
        prove_prefill(server.base_url, launch.model, launch.vocabulary, launch.long_prefill_tokens, salt, silence_s)
    with _stage(server, "decode"):
        prove_decode(server.base_url, launch.model, launch.vocabulary, launch.full_batch, salt, silence_s)
    server.startup_s = time.monotonic() - started


@contextlib.contextmanager
def _stage(server: Server, stage: str) -> Iterator[None]:
    """Turn a failed request into ServerDied if the server has ended, else into ServerNotReady."""
    try:
        yield
    except (Unanswered, httpx.TransportError) as error:
        noticed_by = time.monotonic() + DEATH_NOTICE_S
        while server.alive() is None and time.monotonic() < noticed_by:
            time.sleep(supervisor.POLL_S)
        death = server.alive()
        if death is not None:
            raise ServerDied(f"during {stage}: {death}") from error
        raise ServerNotReady(stage, str(error), server.log_tail()) from error


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM raise SystemExit(143) instead of ending this process on the spot."""

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield  # only the main thread may set handlers, and a caller's own handler is the caller's decision
        return
    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    """A loopback port that nobody else is given as long as the block runs.

    The socket stays bound but never listens; with SO_REUSEADDR on both, as vLLM sets it, Linux lets the server listen
    on the same port, while the kernel gives the port to no other process that asks for a free one.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]
