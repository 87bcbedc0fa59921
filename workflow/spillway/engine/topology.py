"""How a machine is wired, read from what the kernel and the NVIDIA driver print: pure functions of text.

nvidia-smi runs as a program of its own rather than through NVML in this process: a driver in trouble can hang whoever
calls it, and a program can be given up. Its text is not promised to stay as it is (nvidia-smi(1)), so a value that is not
a number (`N/A`, `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `[GPU requires reset]`) is None, a column that is not
there is absent, and a text that is no table gives no rows. Nothing here raises for odd text.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

GPU_FIELDS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "mig.mode.current",
    "utilization.gpu",
)
QUERY_GPUS = ("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,nounits")
QUERY_PROCESSES = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,nounits")
QUERY_MATRIX = ("nvidia-smi", "topo", "-m")

CROSSES_NODES = ("SYS", "SOC")
"""Relations whose path crosses from one NUMA node to another; drivers before 390 print SOC."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi lists it; None where the driver does not say."""

    index: int
    uuid: str = ""
    name: str = ""
    driver: str = ""
    bus_id: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    mig: bool | None = None
    busy_fraction: float | None = None

    @property
    def link(self) -> str | None:
        """The PCIe link in use, None where it is not told (a card on another kind of link)."""
        return pcie(self.generation, self.width)


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class Matrix:
    """`nvidia-smi topo -m`: how every two devices are connected, and which cores and memory are near to each GPU."""

    relations: dict[tuple[str, str], str] = field(default_factory=dict)
    """(device, device) -> X, NV#, PIX, PXB, PHB, NODE or SYS."""
    cpus: dict[str, frozenset[int]] = field(default_factory=dict)
    nodes: dict[str, frozenset[int]] = field(default_factory=dict)
    """GPU -> NUMA nodes near to it; absent where the driver names none."""


def pcie(generation: int | None, width: int | None) -> str | None:
    """`PCIe 5 x16`; None unless both are known."""
    return f"PCIe {generation} x{width}" if generation and width else None


def whole(text: str | None) -> int | None:
    """A number in nvidia-smi's text, None for whatever else stands there."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text.strip()) else None


def read_gpus(text: str) -> list[Gpu]:
    """The rows of QUERY_GPUS."""
    gpus = []
    for row in _table(text, first="index"):
        index = whole(row.get("index"))
        if index is None:
            continue
        busy = whole(row.get("utilization.gpu"))
        gpus.append(
            Gpu(
                index=index,
                uuid=row.get("uuid", ""),
                name=row.get("name", ""),
                driver=row.get("driver_version", ""),
                bus_id=row.get("pci.bus_id", ""),
                memory_total_bytes=_mib(row.get("memory.total")),
                memory_used_bytes=_mib(row.get("memory.used")),
                generation=whole(row.get("pcie.link.gen.current")),
                generation_max=whole(row.get("pcie.link.gen.max")),
                width=whole(row.get("pcie.link.width.current")),
                width_max=whole(row.get("pcie.link.width.max")),
                mig={"Enabled": True, "Disabled": False}.get(row.get("mig.mode.current", "")),
                busy_fraction=None if busy is None else busy / 100,
            )
        )
    return gpus


def gpu_of(listed: Sequence[Gpu], uuid: str, index: int) -> Gpu | None:
    """The listed GPU that a CUDA program calls `uuid` and `index`: by the first, since CUDA may number them otherwise."""
    by_uuid = {gpu.uuid.removeprefix("GPU-"): gpu for gpu in listed if gpu.uuid}
    return by_uuid.get(uuid.removeprefix("GPU-")) or {gpu.index: gpu for gpu in listed}.get(index)


def read_gpu_processes(text: str) -> list[GpuProcess]:
    """The rows of QUERY_PROCESSES; none where the machine does not tell them (containers often do not)."""
    rows = ((whole(row.get("pid")), row) for row in _table(text, first="pid"))
    return [
        # Asked for as used_memory, headed used_gpu_memory.
        GpuProcess(pid, row.get("process_name", ""), _mib(row.get("used_gpu_memory", row.get("used_memory"))))
        for pid, row in rows
        if pid is not None
    ]


def _table(text: str, first: str) -> list[dict[str, str]]:
    """Rows of a CSV with a header that starts with `first`; lines before it (warnings) and broken rows are left out."""
    lines = [line for line in text.splitlines() if line.strip()]
    start = next((number for number, line in enumerate(lines) if line.split(",")[0].strip() == first), len(lines))
    try:
        rows = list(csv.reader(lines[start:], skipinitialspace=True, strict=False))
    except csv.Error:  # a field of more than 128 KiB is no table either
        return []
    if not rows:
        return []
    # `memory.total [MiB]`: the unit stands in the header, also where the values are asked for without.
    header = [name.split(" [")[0].strip() for name in rows[0]]
    return [dict(zip(header, (cell.strip() for cell in row), strict=True)) for row in rows[1:] if len(row) == len(header)]


def _mib(text: str | None) -> int | None:
    size = whole(text)
    return None if size is None else size * 2**20


def read_matrix(text: str) -> Matrix:
    """The matrix of QUERY_MATRIX; empty where the text holds none."""
    # On a terminal the header is underlined; copies of it often have blanks in place of tabs.
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in text.splitlines()]
    start = next((number for number, line in enumerate(lines) if re.match(r"\s*GPU0\s", f"{line} ")), None)
    if start is None:
        return Matrix()
    devices = re.split(r"\s+CPU Affinity", lines[start])[0].split()
    tail = [name for name in ("CPU Affinity", "NUMA Affinity") if name in lines[start]]
    matrix = Matrix()
    for line in lines[start + 1 :]:
        cells = line.split()
        if not cells or cells[0] not in devices or len(cells) <= len(devices):
            continue
        name, relations, rest = cells[0], cells[1 : len(devices) + 1], cells[len(devices) + 1 :]
        matrix.relations.update({(name, other): relation for other, relation in zip(devices, relations, strict=True)})
        for into, title in ((matrix.cpus, "CPU Affinity"), (matrix.nodes, "NUMA Affinity")):
            if title in tail and len(rest) > tail.index(title) and (numbers := read_list(rest[tail.index(title)])):
                into[name] = numbers
    return matrix


def read_list(text: str) -> frozenset[int]:
    """`0-3,8` as a set, the kernel's and the driver's way to write cores and nodes; empty for what is no list."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part.strip())
        if match is None:
            return frozenset()
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(numbers)


def show_list(numbers: Iterable[int]) -> str:
    """The shortest text that `read_list` reads as these numbers."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def read_numa_maps(text: str, address: int) -> tuple[int, dict[int, int]]:
    """Where the mapping that holds an address lies: its start, and NUMA node -> bytes, from /proc/PID/numa_maps.

    The mapping is the last one that starts at or before the address. (-1, {}) if there is none.
    """
    start, found = -1, ""
    for line in text.splitlines():
        match = re.match(r"([0-9a-f]{4,16}) ", line)
        if match and start < int(match[1], 16) <= address:
            start, found = int(match[1], 16), line
    page = re.search(r"kernelpagesize_kB=([0-9]{1,18})", found)
    pages = {int(node): int(count) for node, count in re.findall(r"\bN([0-9]{1,6})=([0-9]{1,18})", found)}
    return start, {node: count * 1024 * int(page[1]) for node, count in pages.items()} if page else {}


def cache_bytes(text: str) -> int | None:
    """A size as /sys/devices/system/cpu/cpu*/cache/index*/size writes it: `48K`, `491520K`, `32M`."""
    match = re.fullmatch(r"([0-9]{1,18})([KMG]?)", text.strip())
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]] if match else None
