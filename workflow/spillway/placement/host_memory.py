"""How much host memory there is, so that a placement too large for it fails before any weight is loaded.

The whole host is looked at, not the GPU's NUMA node: on a virtual machine whose memory grows with use, sysfs may say less of
its one node than half of what /proc/meminfo says, so that a check of the node would refuse what fits.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SPILLWAY_HOST_MEMORY_BYTES"

# Where each version of control groups is mounted; its files of limit and use; and of memory.stat, what can be reclaimed.
_VERSIONS = {
    2: ("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file")),
    1: (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
}


class HostMemoryError(RuntimeError):
    """The host has less memory than the plan needs."""


@dataclass(frozen=True)
class HostMemory:
    """Bytes that the host can still give, and the limit that says so: the least of all."""

    bytes: int
    limit: str


def available(root: Path = Path("/")) -> HostMemory:
    """Memory that this process can still get: the kernel's estimate, or what a control group leaves if that is less.

    The process's own group counts and every group above it; page cache counts as available. SPILLWAY_HOST_MEMORY_BYTES
    replaces all that on machines whose memory grows with use and which report too little at first; raises HostMemoryError
    where it is no number.
    """
    stated = os.environ.get(VARIABLE)
    if stated is not None:
        if not stated.isdecimal():
            raise HostMemoryError(f"{VARIABLE}={stated!r}: expected a number of bytes")
        return HostMemory(int(stated), VARIABLE)
    meminfo = root / "proc/meminfo"
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    kernel = HostMemory(int(fields["MemAvailable"].split()[0]) * 1024, f"MemAvailable in {meminfo}")
    return min([kernel, *_left_by_groups(root)], key=lambda memory: memory.bytes)


def available_bytes(root: Path = Path("/")) -> int:
    """The bytes of `available`."""
    return available(root).bytes


def _left_by_groups(root: Path) -> Iterator[HostMemory]:
    """What each control group leaves to this process, from its own to the uppermost that is mounted here."""
    own = root / "proc/self/cgroup"
    for line in own.read_text().splitlines() if own.exists() else []:
        number, controllers, path = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        mount, limit, use, reclaimable = _VERSIONS[2 if number == "0" else 1]
        top = root / mount
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            # A group above a container is not mounted in it; the uppermost has no limit and no such file.
            if not folder.is_relative_to(top) or not (folder / limit).exists():
                continue
            allowed = (folder / limit).read_text().strip()
            if allowed != "max":
                taken = int((folder / use).read_text())
                stat = folder / "memory.stat"
                if stat.exists():  # sandboxes that imitate a kernel may not have it
                    parts = dict(line.split() for line in stat.read_text().splitlines())
                    taken -= sum(int(parts[name]) for name in reclaimable)
                yield HostMemory(max(0, int(allowed) - taken), str(folder / limit))


def require_host_memory(needed_bytes: int, ranks: int, placed_bytes: int = 0, root: Path = Path("/")) -> None:
    """Raise HostMemoryError unless `ranks` processes of this host can each pin `needed_bytes`.

    `placed_bytes` each has placed before: they count towards a stated memory, but are no longer in what the kernel estimates.
    """
    memory = available(root)
    before = placed_bytes if memory.limit == VARIABLE else 0
    if (needed_bytes + before) * ranks > memory.bytes:
        placed = f" beside {before / 2**30:.1f} placed already" if before else ""
        raise HostMemoryError(
            f"the plan needs {needed_bytes * ranks / 2**30:.1f} GiB of host memory ({ranks} x {needed_bytes / 2**30:.1f}"
            f"{placed}), {memory.limit} leaves {memory.bytes / 2**30:.1f} GiB. "
            f"Put fewer experts on the host, or set {VARIABLE} if the host's memory grows with use"
        )
