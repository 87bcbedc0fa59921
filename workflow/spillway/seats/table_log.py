"""A plain CSV of responses, for any other tool: columns start, end, output_tokens; optional context_tokens, stream.

Times are ISO 8601 with a zone, or seconds since 1970. Rows of one `stream` belong to one conversation; without the column
the whole file is one.
"""

import csv
import math
from pathlib import Path

from spillway.seats.calls import Call, Reading, digest, epoch_s
from spillway.seats.errors import SeatsError
from spillway.spec.shown import shown

REQUIRED, OPTIONAL = ("start", "end", "output_tokens"), ("context_tokens", "stream")


def read_table(path: Path, secret: bytes) -> Reading:
    """The responses of a CSV file; raises SeatsError naming file, line and column of the first fault."""
    reading = Reading()
    reading.formats["csv"] += 1
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            found = rows.fieldnames or []
            if missing := [name for name in REQUIRED if name not in found]:
                raise SeatsError(
                    f"{path}: found the columns {', '.join(found)[:400] or 'none'}; missing {', '.join(missing)}. "
                    f"Expected {', '.join(REQUIRED)}, and if known {', '.join(OPTIONAL)}"
                )
            for row in rows:
                _add_row(reading, row, path, rows.line_num, secret)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SeatsError(f"{path}: cannot be read as CSV in UTF-8: {error}") from None
    return reading


def _add_row(reading: Reading, row: dict[str, str | None], path: Path, line: int, secret: bytes) -> None:
    start_s, end_s = (_time_s(row[name], f"{path}: line {line}: {name}") for name in ("start", "end"))
    output = _count(row["output_tokens"], f"{path}: line {line}: output_tokens")
    context = _count(row["context_tokens"], f"{path}: line {line}: context_tokens") if row.get("context_tokens") else 0
    if end_s < start_s:
        reading.flags["negative_duration"] += 1
        end_s = start_s
    reading.saw(start_s)
    reading.saw(end_s)
    stream = digest(secret, str(path), row.get("stream") or "")
    reading.add(digest(secret, str(path), str(line)), Call(stream, stream, start_s, end_s, context, output))


def _time_s(text: str | None, where: str) -> float:
    try:
        seconds = float(text or "")
    except ValueError:
        time_s = epoch_s(text, Reading().flags)
        if time_s is None:
            raise SeatsError(
                f"{where}: found {shown(text)}; expected ISO 8601 with a zone, as 2026-03-02T09:00:00+01:00, or seconds "
                "since 1970"
            ) from None
        return time_s
    if not math.isfinite(seconds):
        raise SeatsError(f"{where}: found {shown(text)}; expected a finite number of seconds since 1970")
    return seconds


def _count(text: str | None, where: str) -> int:
    try:
        count = int(text or "")
    except ValueError:
        raise SeatsError(f"{where}: found {shown(text)}; expected a whole number of tokens") from None
    if count < 0:
        raise SeatsError(f"{where}: found {shown(count)}; expected 0 tokens or more")
    return count
