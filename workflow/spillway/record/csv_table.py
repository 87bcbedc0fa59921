"""Small tables in CSV, as people keep them beside the Parquet files of runs."""

import io
from pathlib import Path

import pandas as pd

MOST_BYTES, MOST_COLUMNS = 16 << 20, 1000
"""What is read of a CSV: pandas takes time with the square of the columns, a minute for 100,000 commas."""


def read_csv(path: Path, comment: str | None = None) -> pd.DataFrame:
    """The rows of a CSV file in UTF-8, without lines that begin with `comment`; raises OSError, and ValueError saying why."""
    content = path.read_bytes()
    if len(content) > MOST_BYTES:
        raise ValueError(f"found {len(content):,} bytes; expected a table of at most {MOST_BYTES:,}")
    if max(line.count(b",") for line in content.split(b"\n")) >= MOST_COLUMNS:
        raise ValueError(f"found a line with more than {MOST_COLUMNS} values; expected a table of fewer columns")
    return pd.read_csv(io.BytesIO(content), comment=comment)
