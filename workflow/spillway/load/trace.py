"""Recorded agent sessions out of a Parquet file: lengths, reuse and pauses, no text."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import NamedTuple

from spillway.record.parquet import RecordError

BLOCK_TOKENS = 64  # of a block in `common_blocks`
COLUMNS = ("session", "request", "input_tokens", "output_tokens", "think_time", "common_blocks")


class Request(NamedTuple):
    """One recorded request; `shared_tokens` lead its prompt as they led the session's previous one."""

    input_tokens: int
    output_tokens: int
    think_s: float
    shared_tokens: int


Session = Sequence[Request]


def read_sessions(path: Path) -> list[Session]:
    """The sessions in the order of their names, each in the order of its requests.

    Requests without counts are left out, and a pause that was not recorded counts as none. Raises FileNotFoundError or
    ValueError naming the file and what it lacks.
    """
    from spillway.record.columns import read_columns  # with pandas, for which other workloads do not wait

    if not path.exists():
        raise FileNotFoundError(f"{path}: no such trace; set `path` of the workload to a Parquet file")
    try:
        rows = read_columns(path, "session", COLUMNS[1:])
    except RecordError as error:
        raise ValueError(str(error)) from None
    rows = rows[rows.session.notna() & rows.input_tokens.notna() & rows.output_tokens.notna()]
    rows = rows.sort_values(["session", "request"], kind="stable")
    if rows.empty:
        raise ValueError(f"{path}: no request with token counts")
    sessions: dict[str, list[Request]] = {}
    columns = (rows[name].tolist() for name in ("session", "input_tokens", "output_tokens", "think_time", "common_blocks"))
    for name, input_tokens, output_tokens, think_s, blocks in zip(*columns, strict=True):
        think_s = 0.0 if isnan(think_s) else think_s
        request = Request(int(input_tokens), int(output_tokens), think_s, 0 if isnan(blocks) else BLOCK_TOKENS * int(blocks))
        sessions.setdefault(name, []).append(request)
    return list(sessions.values())
