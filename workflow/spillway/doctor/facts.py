"""Everything that the checks judge, read from this machine in one go: the only part of the doctor that touches it."""

import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from spillway.engine import host as machine
from spillway.engine.ask import Answer, ask
from spillway.engine.lock import holder, lock_path
from spillway.engine.memory_nodes import Node, nodes
from spillway.engine.processes import LOCK_VARIABLE, RUN_VARIABLE
from spillway.engine.server import server_environment
from spillway.engine.topology import QUERY_GPUS, QUERY_MATRIX, QUERY_PROCESSES
from spillway.placement.host_memory import HostMemory, HostMemoryError, available
from spillway.spec.host import Host

Ask = Callable[[Sequence[str], float, Mapping[str, str] | None], Answer]

NVIDIA_SMI_TIMEOUT_S = 20.0
LINK_TIMEOUT_S = 180.0
NVIDIA_VENDOR = "0x10de"


@dataclass(frozen=True)
class Card:
    """An NVIDIA display controller as the kernel sees it on the PCI bus, whether or not a driver has it."""

    address: str
    driver: str | None
    node: int | None


@dataclass(frozen=True)
class Leftover:
    """A process of a server that some run started: its number, the lock it was started under, the start of its command."""

    pid: int
    lock: str
    command: str


@dataclass(frozen=True)
class Disk:
    """Where a folder lies: bytes free for this user, and whether it may write there."""

    free_bytes: int
    writable: bool


@dataclass(frozen=True)
class EngineFound:
    """The engine's environment: its interpreter, its packages or why they cannot be listed, and its lock's text."""

    name: str
    interpreter: str
    packages: Mapping[str, str] = field(default_factory=dict)
    fault: str | None = None
    lock: str | None = None


@dataclass(frozen=True)
class Facts:
    """What was found on the machine; None where it does not say."""

    gpus: Answer
    gpu_processes: Answer
    matrix: Answer
    cards: Sequence[Card]
    nodes: Sequence[Node]
    cores: frozenset[int]
    load: float
    governors: frozenset[str]
    clock: str | None
    clock_read_s: float
    memory: HostMemory | str
    """What the host can still give, or why that is not known."""
    memlock_bytes: int | None
    """Limit of locked memory; None: no limit."""
    shm_bytes: int | None
    disks: Mapping[str, Disk]
    loopback: str | None
    """Why no port of 127.0.0.1 can be had; None if one can."""
    ports: int | None
    """How many ports the kernel may hand out."""
    marks: str | None
    """Why the marks of own processes in /proc cannot be read; None if they can."""
    leftovers: Sequence[Leftover]
    own_lock: str
    lock_holder: str | None
    engine: EngineFound | None = None
    links: Answer | None = None
    """What engine/gpu_rates.py printed in the engine's environment; None: not run."""


def gather(project: Path, host: Host | None, root: Path = Path("/"), asking: Ask = ask, links: bool = True) -> Facts:
    """Read the machine; `host` is the host file in question. `links`: copy for a moment to see the GPUs' links under load.

    Takes a few seconds, with `links` on a GPU host up to a minute; never hangs, since what may hang is given up.
    """
    gpus = asking(QUERY_GPUS, NVIDIA_SMI_TIMEOUT_S, None)
    answers = gpus.fault is None  # a driver in trouble is not asked again: each question may take its whole time
    nothing = Answer("", status=None, trouble=gpus.fault)
    engine = None if host is None else _engine(project, host)
    link = None
    if links and answers and host is not None and host.gpus is not None and engine is not None and engine.fault is None:
        link = _links(project, host, engine, asking)
    return Facts(
        gpus=gpus,
        gpu_processes=asking(QUERY_PROCESSES, NVIDIA_SMI_TIMEOUT_S, None) if answers else nothing,
        matrix=asking(QUERY_MATRIX, NVIDIA_SMI_TIMEOUT_S, None) if answers else nothing,
        cards=cards(root),
        nodes=nodes(root),
        cores=frozenset(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        governors=governors(root),
        clock=text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        clock_read_s=clock_read_s(),
        memory=_memory(root),
        memlock_bytes=_limit(resource.RLIMIT_MEMLOCK),
        shm_bytes=_free(root / "dev/shm"),
        disks={name: _disk(project / name) for name in ("runs", "build")},
        loopback=_loopback(),
        ports=_ports(root),
        marks=_marks(),
        leftovers=_leftovers(),
        own_lock=str(lock_path()),
        lock_holder=holder(),
        engine=engine,
        links=link,
    )


def text(path: Path) -> str | None:
    """A file of /proc or /sys without the blanks around it; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def cards(root: Path) -> list[Card]:
    """NVIDIA display controllers (PCI class 03) in sysfs; what lspci would list, without needing it."""
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if text(device / "vendor") != NVIDIA_VENDOR or not (text(device / "class") or "").startswith("0x03"):
            continue
        driver = device / "driver"
        node = text(device / "numa_node")
        known = node is not None and node.isdigit()  # -1: the firmware does not say
        found.append(Card(device.name, driver.resolve().name if driver.exists() else None, int(node or 0) if known else None))
    return found


def governors(root: Path) -> frozenset[str]:
    """Frequency governors in force over all cores; empty where the kernel leaves the frequency to others."""
    found = (text(path) for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return frozenset(name for name in found if name)


def clock_read_s(reads: int = 20_000) -> float:
    """What one reading of the monotonic clock costs here, Python's part included."""
    start = time.perf_counter()
    for _ in range(reads):
        time.monotonic_ns()
    return (time.perf_counter() - start) / reads


def _memory(root: Path) -> HostMemory | str:
    try:
        return available(root)
    except HostMemoryError as error:
        return str(error)
    except (OSError, KeyError, ValueError) as error:
        return f"what {root / 'proc/meminfo'} and the control groups say cannot be read: {error!r}"


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _disk(folder: Path) -> Disk:
    while not folder.exists():
        folder = folder.parent
    return Disk(shutil.disk_usage(folder).free, os.access(folder, os.W_OK))


def _loopback() -> str | None:
    try:
        with socket.socket() as asked:
            asked.bind(("127.0.0.1", 0))
            asked.listen()
    except OSError as error:
        return str(error)
    return None


def _ports(root: Path) -> int | None:
    bounds = (text(root / "proc/sys/net/ipv4/ip_local_port_range") or "").split()
    return int(bounds[1]) - int(bounds[0]) + 1 if len(bounds) == 2 and all(bound.isdigit() for bound in bounds) else None


def _marks() -> str | None:
    try:
        psutil.Process().environ()
    except (psutil.Error, OSError) as error:
        return str(error) or repr(error)
    return None


def _leftovers() -> list[Leftover]:
    found = []
    for process in psutil.process_iter(["environ", "cmdline", "status"]):
        environment = process.info["environ"] or {}
        if RUN_VARIABLE in environment and process.info["status"] != psutil.STATUS_ZOMBIE:
            command = " ".join(process.info["cmdline"] or [])[:100]
            found.append(Leftover(process.pid, environment.get(LOCK_VARIABLE, ""), command))
    return found


def _engine(project: Path, host: Host) -> EngineFound:
    name = host.engine.environment
    interpreter = project / ".envs" / name / "bin" / "python"
    lock = text(project / "envs" / f"{name}.txt")
    try:
        packages = dict(machine.packages(str(interpreter), server_environment(dict(host.engine.variables))))
    except machine.EnvironmentNotRead as error:
        return EngineFound(name, str(interpreter), fault=str(error), lock=lock)
    return EngineFound(name, str(interpreter), packages, None, lock)


def _links(project: Path, host: Host, engine: EngineFound, asking: Ask) -> Answer:
    environment = server_environment(dict(host.engine.variables))
    environment |= {"PYTHONPATH": str((project / "workflow").resolve()), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    command = [engine.interpreter, "-m", "spillway.engine.gpu_rates", "--buffer-mib", "512", "--repeats", "3"]
    return asking(command, LINK_TIMEOUT_S, environment)
