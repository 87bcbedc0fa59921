"""A run's journal: what happened to it, one line of JSON each, so that whoever finds the folder knows how it ended.

    started, begins (a step), stopped (why), resumed (where, why), measured (all tables are written), published

A run that was killed has no last word: its journal ends with the step that was under way.
"""

import datetime
import json
import os
from pathlib import Path
from typing import Any

FILE = "journal.jsonl"
Event = dict[str, Any]


def note(folder: Path, event: str, **what: Any) -> None:
    """Append an event to the journal in `folder`; it outlives a power cut once this returns."""
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    line = json.dumps({"event": event, "at": at} | what).encode() + b"\n"
    with (folder / FILE).open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the writer of the last line was killed in the middle of it
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def events(folder: Path) -> list[Event]:
    """The journal of a run, oldest first; empty if there is none. A line that was cut off by a kill is left out."""
    try:
        lines = (folder / FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            found.append(event)
    return found


def has(folder: Path, event: str) -> bool:
    """Whether the journal in `folder` holds such an event."""
    return any(each["event"] == event for each in events(folder))
