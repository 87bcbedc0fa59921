"""The NUMA nodes of this machine, their cores and memory, and the size of the last-level cache, from sysfs."""

import os
from dataclasses import dataclass
from pathlib import Path

from spillway.engine.topology import cache_bytes, read_list


@dataclass(frozen=True)
class Node:
    """A NUMA node: its number, those of its cores that this process may use, and whether it has memory."""

    number: int
    cores: frozenset[int]
    has_memory: bool


def nodes(root: Path = Path("/")) -> list[Node]:
    """The machine's NUMA nodes; a kernel without NUMA counts as one node with all cores."""
    usable = frozenset(os.sched_getaffinity(0))
    folder = root / "sys/devices/system/node"
    found = []
    for path in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        number = int(path.name[4:])
        with_memory = _text(folder / "has_memory")
        found.append(
            Node(
                number,
                read_list(_text(path / "cpulist") or "") & usable,
                with_memory is None or number in read_list(with_memory),
            )
        )
    return found or [Node(0, usable, True)]


def last_level_cache_bytes(root: Path = Path("/")) -> int | None:
    """Size of the largest cache that core 0 sees, None where the kernel does not say."""
    folder = root / "sys/devices/system/cpu/cpu0/cache"
    sizes = [cache_bytes(_text(path / "size") or "") for path in folder.glob("index[0-9]*")]
    return max((size for size in sizes if size is not None), default=None)


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
