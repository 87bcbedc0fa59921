"""How much host memory there is, so that a placement too large for it fails before any weight is loaded."""

import os
from pathlib import Path

VARIABLE = "SPILLWAY_HOST_MEMORY_BYTES"


class HostMemoryError(RuntimeError):
    """The host has less memory than the plan needs."""


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that the host can still give, bytes: the kernel's estimate, or the control group's limit if smaller.

    SPILLWAY_HOST_MEMORY_BYTES replaces it on machines whose memory grows with use and which report too little at first.
    """
    stated = os.environ.get(VARIABLE)
    if stated is not None:
        if not stated.isdigit():
            raise HostMemoryError(f"{VARIABLE}={stated!r}: expected a number of bytes")
        return int(stated)
    fields = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines() if ":" in line)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    group = root / "sys/fs/cgroup"
    limit = group / "memory.max"
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, int(text) - int((group / "memory.current").read_text()))
    return available


def require_host_memory(needed_bytes: int, ranks: int, root: Path = Path("/")) -> None:
    """Raise HostMemoryError unless `ranks` processes of this host can each pin `needed_bytes`."""
    available = available_bytes(root)
    if needed_bytes * ranks > available:
        raise HostMemoryError(
            f"the plan needs {needed_bytes * ranks / 2**30:.1f} GiB of host memory ({ranks} x "
            f"{needed_bytes / 2**30:.1f}), this host has {available / 2**30:.1f} GiB available. "
            f"Put fewer experts on the host, or set {VARIABLE} if the host's memory grows with use"
        )
