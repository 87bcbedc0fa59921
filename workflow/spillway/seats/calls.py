"""One model response, as logs of any tool give it, and what was found wrong on the way. No text of a log is kept."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

FLAGS = {
    "duplicates": "further copies of a response, counted once",
    "unkeyed": "responses without an id of their own; a copy of one would count twice",
    "synthetic": "messages that the client wrote itself, such as API errors; no generation",
    "api_errors": "failed requests; no generation counted",
    "null_counts": "token counts that were absent, null or not a number; taken as 0",
    "under_recorded": "responses whose text is far longer than their recorded output tokens",
    "no_start": "responses without a record before them; only their visible part is counted as time",
    "capped": "responses longer than the longest that is believed, cut to it (sleep, retries, a closed lid)",
    "clock_back": "records dated before the one that they follow: a clock was set, or two machines wrote",
    "negative_duration": "responses that end before they start; their tokens count, their time does not",
    "untimed": "responses without a usable time; left out",
    "zoneless": "times without a zone; left out, since their hour is a guess",
    "orphan_forks": "sessions forked from one whose log is gone; the copied part may count again",
    "truncated_lines": "last lines cut short: the file was being written",
    "broken_lines": "lines that are not JSON; left out",
    "oversized_lines": "lines longer than is read into memory; left out",
    "unrecognised": "records of a shape that no known tool writes",
    "foreign_files": "files without a record of a known tool; left out",
    "unreadable_files": "files or folders that could not be opened; left out",
}
"""What a log may have wrong: name of the counter -> what it counts."""

CHARACTERS_PER_TOKEN = 4
"""Rule of thumb for English and code; only used to notice output counts that cannot be true."""


@dataclass(slots=True)
class Call:
    """One response. Times are seconds since 1970 in UTC; ids are digests under a key that is drawn anew for each reading.

    rank: 0 where it was made, 1 in a subagent's log, 2 as a progress report; of several copies the lowest gives the time.
    """

    session: bytes
    stream: bytes
    start_s: float
    end_s: float
    context_tokens: int
    output_tokens: int
    estimated_output_tokens: int = 0
    rank: int = 0
    lineage: bytes = b""

    def merged(self, other: "Call") -> "Call":
        """One call of two copies: tokens of the more complete copy, time and place of the more original one."""
        origin, copy = (self, other) if (self.rank, self.start_s) <= (other.rank, other.start_s) else (other, self)
        fuller = origin if origin.output_tokens >= copy.output_tokens else copy
        return Call(
            origin.session, origin.stream, origin.start_s, origin.end_s, fuller.context_tokens, fuller.output_tokens,
            max(self.estimated_output_tokens, other.estimated_output_tokens), origin.rank, origin.lineage,
        )  # fmt: skip


@dataclass
class Reading:
    """What one or more files gave: calls by id, counters of FLAGS, links between forked sessions, span of all records."""

    calls: dict[tuple[bytes, bytes], Call] = field(default_factory=dict)
    flags: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    forks: list[tuple[bytes, bytes]] = field(default_factory=list)
    first_record_s: float = math.inf
    last_record_s: float = -math.inf

    def add(self, key: bytes, call: Call) -> None:
        """Take a call in; a copy of one that is there is merged and counted."""
        place = (call.lineage, key)
        known = self.calls.get(place)
        if known is not None:
            self.flags["duplicates"] += 1
            call = known.merged(call)
        self.calls[place] = call

    def saw(self, time_s: float) -> None:
        """Take note of the time of any record, call or not."""
        self.first_record_s = min(self.first_record_s, time_s)
        self.last_record_s = max(self.last_record_s, time_s)


def together(readings: Iterable[Reading]) -> Reading:
    """The readings of several files as one, every copy of a call counted once, forked sessions joined to their origin."""
    parts = list(readings)
    origin: dict[bytes, bytes] = {}

    def root(session: bytes) -> bytes:
        while session in origin:
            session = origin[session]
        return session

    total = Reading()
    present = {call.lineage for part in parts for call in part.calls.values()}
    for part in parts:
        for child, parent in part.forks:
            total.flags["orphan_forks"] += parent not in present
            if root(child) != root(parent):
                origin[root(child)] = root(parent)
    for part in parts:
        total.flags.update(part.flags)
        total.formats.update(part.formats)
        total.first_record_s = min(total.first_record_s, part.first_record_s)
        total.last_record_s = max(total.last_record_s, part.last_record_s)
        for (_, key), call in part.calls.items():
            call.lineage = root(call.lineage)
            total.add(key, call)
    return total


def digest(secret: bytes, *parts: str) -> bytes:
    """A name for an id of the log that cannot be traced back to it without the secret."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, key=secret, digest_size=16).digest()


def tokens(value: Any, flags: Counter[str]) -> int:
    """A token count as it stands in a log; anything but a number of 0 or more gives 0 and a flag."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)  # OpenTelemetry's JSON writes 64-bit integers as text
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53:
        return int(value)
    flags["null_counts"] += 1
    return 0


def epoch_s(value: Any, flags: Counter[str]) -> float | None:
    """An ISO 8601 time with zone as seconds since 1970; None, and a flag if the zone is missing, for anything else."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    if time.tzinfo is None:
        flags["zoneless"] += 1
        return None
    try:
        return time.timestamp()
    except (OverflowError, ValueError):
        return None  # year 1 or 9999 with an offset beyond what a calendar holds
