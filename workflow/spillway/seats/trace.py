"""Recorded agent sessions with relative times: what one stream does, request by request, without a calendar.

A Parquet table with one row for each request: session, t (s since the session's first request), api_time (s, null if not
recorded), input_tokens, output_tokens, and if known common_blocks (leading 64-token blocks shared with the session's
previous request). The public traces of kv-cache-tester (Apache-2.0) have these fields.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from spillway.record.columns import read_columns
from spillway.record.parquet import RecordError
from spillway.seats.errors import SeatsError
from spillway.seats.spans import union

REQUIRED = ("session", "t", "api_time", "input_tokens", "output_tokens")
BLOCK_TOKENS = 64


def read_trace(path: Path) -> pd.DataFrame:
    """The requests of a trace, sorted: session (number), start_s, end_s, context_tokens, output_tokens, reused_tokens.

    end_s is NaN where api_time was not recorded; rows without token counts (nested runs) are left out. Without
    common_blocks, reused_tokens is the context of the session's previous request, as far as it fits. Raises SeatsError
    naming file, column and row.
    """
    try:
        table = read_columns(path, "session", REQUIRED[1:], optional=("common_blocks",))
    except RecordError as error:
        raise SeatsError(str(error)) from None
    counted = table[table["t"].notna() & table["input_tokens"].notna() & table["output_tokens"].notna()]
    if not (counted["api_time"] > 0).any():
        raise SeatsError(f"{path}: found {len(table)} requests, none with t, tokens and an api_time above 0; expected some")
    frame = pd.DataFrame(
        {
            "session": pd.factorize(counted["session"])[0],
            "start_s": counted["t"].to_numpy(float),
            "end_s": (counted["t"] + counted["api_time"]).to_numpy(float),
            "context_tokens": counted["input_tokens"].to_numpy(np.int64),
            "output_tokens": counted["output_tokens"].to_numpy(np.int64),
        }
    )
    if "common_blocks" in counted:
        shared = counted["common_blocks"].fillna(0).to_numpy(np.int64) * BLOCK_TOKENS
        frame["reused_tokens"] = np.minimum(shared, frame["context_tokens"])
    frame = frame.sort_values(["session", "start_s"], kind="stable", ignore_index=True)
    if "reused_tokens" not in frame:
        previous = frame.groupby("session")["context_tokens"].shift(fill_value=0)
        frame["reused_tokens"] = np.minimum(previous, frame["context_tokens"])
    return frame


def busy_shares(frame: pd.DataFrame, idle_cap_s: float = np.inf) -> pd.DataFrame:
    """For each session, from its timed requests: stream_s, union_s, and span_s with an idle gap counted as at most the cap."""
    rows = []
    for session, part in frame[frame["end_s"].notna()].groupby("session"):
        start_s, end_s = part["start_s"].to_numpy(), part["end_s"].to_numpy()
        starts, ends = union(start_s, end_s)
        union_s = float((ends - starts).sum())
        idle_s = float(np.minimum(starts[1:] - ends[:-1], idle_cap_s).sum())
        stream_s = float((end_s - start_s).sum())
        rows.append({"session": session, "stream_s": stream_s, "union_s": union_s, "span_s": union_s + idle_s})
    return pd.DataFrame(rows)
