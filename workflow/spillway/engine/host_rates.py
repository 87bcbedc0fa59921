"""How fast this machine's cores copy and read memory, by NUMA node and number of threads.

A rate counts each byte of the source once: a copy at 10 GB/s reads 10 GB and writes 10 GB in a second. Source and target
are buffers of anonymous memory, put on a node by the first touch of a thread that runs there, and timed after one pass
that is not. The kernel says afterwards where they lie.
"""

import itertools
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spillway.engine.memory_nodes import Node
from spillway.engine.topology import read_numa_maps

Words = np.ndarray[tuple[int], np.dtype[np.uint64]]


class MisplacedMemory(RuntimeError):
    """Memory that was to lie on one NUMA node lies on another."""


@dataclass(frozen=True)
class HostRate:
    """One copy or read: `work` is `copy` or `read`, done by `threads` threads on the cores of node `by`.

    `source` and `target` are the nodes of the memory; a read has no target. `rates` are those of the repeats, in bytes/s.
    `proved` tells whether the kernel confirmed the nodes.
    """

    work: str
    by: int
    source: int
    target: int | None
    threads: int
    rates: tuple[float, ...]
    proved: bool


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4, ... and all cores."""
    counts = [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == cores else [*counts, cores]


def host_rates(nodes: Sequence[Node], buffer_bytes: int, repeats: int) -> Iterator[HostRate]:
    """Every copy and read between nodes that have memory, by the cores of every node that has some.

    `buffer_bytes` is a multiple of 8. Raises MisplacedMemory. Copies to and from the cores' own node are made with all
    numbers of threads; across nodes with all cores only.
    """
    placing = [node for node in nodes if node.has_memory and node.cores]
    for source in placing:
        for target in placing:
            yield from _between(source, target, placing, buffer_bytes, repeats, one_node=len(nodes) == 1)


def _between(
    source: Node, target: Node, workers: Sequence[Node], buffer_bytes: int, repeats: int, *, one_node: bool
) -> Iterator[HostRate]:
    read_from, write_to = _buffer(source, buffer_bytes), _buffer(target, buffer_bytes)
    proved = one_node or _proved([(source.number, read_from), (target.number, write_to)])
    for by in workers:
        near = source is target is by
        for threads in thread_counts(len(by.cores)) if near else [len(by.cores)]:
            copied = _timed(by, threads, repeats, read_from, write_to, np.copyto)
            yield HostRate("copy", by.number, source.number, target.number, threads, copied, proved)
            if source is target:
                reduced = _timed(by, threads, repeats, read_from, write_to, _read)
                yield HostRate("read", by.number, source.number, None, threads, reduced, proved)


def _read(_target: Words, source: Words) -> None:
    np.bitwise_xor.reduce(source)


def _timed(
    by: Node, threads: int, repeats: int, source: Words, target: Words, work: Callable[[Words, Words], None]
) -> tuple[float, ...]:
    bounds = [len(source) * part // threads for part in range(threads + 1)]
    slices = [slice(low, high) for low, high in itertools.pairwise(bounds)]
    rates = []
    with ThreadPoolExecutor(threads, initializer=os.sched_setaffinity, initargs=(0, by.cores)) as pool:
        for _ in range(repeats + 1):
            start = time.perf_counter()
            # A reduction of numpy and a copy of it leave Python's lock to the other threads.
            list(pool.map(lambda part: work(target[part], source[part]), slices))
            rates.append(source.nbytes / (time.perf_counter() - start))
    return tuple(rates[1:])


def _buffer(node: Node, size: int) -> Words:
    """Memory on a node, given back with the last reference to it."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    words: Words = np.frombuffer(memory, dtype=np.uint64)
    with ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, node.cores)) as pool:
        pool.submit(words.fill, 0x0123456789ABCDEF).result()
    return words


def _proved(placed: Sequence[tuple[int, Words]]) -> bool:
    """Whether the kernel says that each buffer lies on its node; raises MisplacedMemory if it says otherwise."""
    try:
        text = Path("/proc/self/numa_maps").read_text()
    except OSError:
        return False
    wanted: dict[int, int] = {}
    for node, words in placed:
        wanted[node] = wanted.get(node, 0) + words.nbytes
    # Two buffers that lie side by side can be one mapping to the kernel, so what counts is the sum over the mappings.
    mappings = dict(read_numa_maps(text, words.ctypes.data) for _, words in placed)
    found: dict[int, int] = {}
    for nodes in mappings.values():
        for node, size in nodes.items():
            found[node] = found.get(node, 0) + size
    if not found:
        return False
    if any(found.get(node, 0) < 0.99 * size for node, size in wanted.items()):
        raise MisplacedMemory(
            f"buffers of {wanted} bytes by NUMA node were asked for and lie on {found}: is a node full, or does numactl bind "
            "this process elsewhere?"
        )
    return True
