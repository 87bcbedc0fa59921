"""From a folder of logs to calls: files in parallel, line by line, memory in proportion to responses and not to text."""

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, Protocol

from spillway.seats import claude_log, codex_log, otel_log
from spillway.seats.calls import Reading, together
from spillway.seats.errors import SeatsError
from spillway.seats.table_log import read_table

FORMATS = ("claude", "otel", "codex", "csv")
LINE_BYTES = 64 << 20
"""Longest line that is read: tool results hold whole files, images too. One process needs about four times as much."""
PARALLEL_BYTES = 32 << 20
"""Below this a second process costs more than it saves."""


class Reader(Protocol):
    """Takes the records of one file in, in order."""

    def add(self, record: dict[str, Any]) -> None:
        """Take one record in."""

    def close(self) -> None:
        """Hand over what was held back."""


SHAPES: dict[str, Any] = {
    "codex": (codex_log.recognises, codex_log.CodexReader),
    "otel": (otel_log.recognises, otel_log.OtelReader),
    "claude": (claude_log.recognises, claude_log.ClaudeReader),
}


def read_logs(root: Path, only: str | None = None, workers: int = 1) -> Reading:
    """All responses below `root` (a folder or one file), each counted once however often it was written.

    only: one of FORMATS, if the folder holds several logs of the same work. Raises SeatsError if there is no log, if none
    is of a known tool, or if the same work may stand in it twice.
    """
    files = list(log_files(root))
    if not files:
        raise SeatsError(
            f"{root}: found no .jsonl, .json or .csv file; expected agent logs, such as ~/.claude/projects or ~/.codex/sessions"
        )
    read = partial(read_file, secret=secrets.token_bytes(32), only=only)
    if workers > 1 and len(files) > 1 and sum(size for size, _ in files) > PARALLEL_BYTES:
        with ProcessPoolExecutor(min(workers, len(files))) as pool:
            reading = together(pool.map(read, *zip(*files, strict=True)))
    else:
        reading = together(starmap(read, files))
    _check(reading, root, len(files), only)
    return reading


def log_files(root: Path) -> Iterator[tuple[int, Path]]:
    """Size and path of each log below a folder, largest first; a file that is reachable twice (links) comes once."""
    if not root.exists():
        raise SeatsError(f"{root}: found no such file or folder; expected a folder of agent logs")
    found: dict[tuple[int, int], tuple[int, Path]] = {}
    folders: set[tuple[int, int]] = set()
    unreadable: list[tuple[int, Path]] = []
    stack = [root]
    while stack:
        path = stack.pop()
        try:
            status = path.stat()
            identity = (status.st_dev, status.st_ino)
            if path.is_dir():
                if identity not in folders:  # a link may lead back to a folder above
                    folders.add(identity)
                    stack.extend(sorted(path.iterdir()))
            elif path.suffix in (".jsonl", ".json", ".csv") and path.is_file():
                found.setdefault(identity, (status.st_size, path))
        except OSError:
            if path == root:
                raise SeatsError(f"{root}: found a folder that cannot be read; expected permission to read it") from None
            unreadable.append((0, path))
    yield from sorted(found.values(), key=lambda entry: (-entry[0], str(entry[1])))
    yield from unreadable  # reading them fails again and is counted


def read_file(size: int, path: Path, secret: bytes, only: str | None) -> Reading:
    """The responses of one file; what cannot be read is counted, except in a CSV, where it raises SeatsError."""
    if path.suffix == ".csv":
        return read_table(path, secret) if only in (None, "csv") else Reading()
    reading = Reading()
    readers: dict[str, Reader] = {}
    for record in _records(path, reading):
        name = next((name for name, (recognises, _) in SHAPES.items() if recognises(record)), None)
        if name is None:
            reading.flags["unrecognised"] += 1
        elif only in (None, name):
            if name not in readers:
                readers[name] = SHAPES[name][1](reading, secret, str(path))
            readers[name].add(record)
    for name, reader in readers.items():
        reader.close()
        reading.formats[name] += 1
    if not readers and not reading.flags["unreadable_files"]:
        return Reading(flags=Counter(foreign_files=1))  # settings and the like: their lines say nothing about the logs
    return reading


def _records(path: Path, reading: Reading) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one a line; other lines are counted."""
    try:
        with path.open("rb") as file:
            while line := file.readline(LINE_BYTES):
                complete = line.endswith(b"\n")
                if not complete and len(line) == LINE_BYTES:
                    reading.flags["oversized_lines"] += 1
                    while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                        pass
                    continue
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    reading.flags["broken_lines" if complete else "truncated_lines"] += 1
                    continue
                if isinstance(record, dict):
                    yield record
                else:
                    reading.flags["unrecognised"] += 1
    except OSError:
        reading.flags["unreadable_files"] += 1


def _check(reading: Reading, root: Path, files: int, only: str | None) -> None:
    found = sorted(name for name, count in reading.formats.items() if count)
    if not found:
        wanted = only or "Claude Code, Codex, OpenTelemetry (api_request) or CSV"
        raise SeatsError(
            f"{root}: found {files} files, none of them a log of {wanted} ({reading.flags['foreign_files']} of another shape, "
            f"{reading.flags['unreadable_files']} not readable). For another tool, write a CSV with start, end, output_tokens"
        )
    if {"otel", "claude"} <= set(found) or ("csv" in found and len(found) > 1):
        raise SeatsError(
            f"{root}: found logs as {' and '.join(found)}, which may hold the same responses twice; choose one with "
            f"--format ({', '.join(found)})"
        )
    if not reading.calls:
        raise SeatsError(
            f"{root}: found logs as {', '.join(found)}, but no response with a usable time in them "
            f"({', '.join(f'{name} {count}' for name, count in sorted(reading.flags.items()) if count) or 'no flags'})"
        )


def default_workers() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
