"""Columns out of a Parquet file that somebody else wrote: only those that are wanted, numbers as numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spillway.record.parquet import RecordError
from spillway.spec.shown import shown

MOST = 2.0**53
"""Numbers from here on are not counted one by one any more, so no recording has them."""


def read_columns(path: Path, label: str, numbers: Sequence[str], optional: Sequence[str] = ()) -> pd.DataFrame:
    """The column `label` as it is and the others as float64, NaN where nothing is recorded.

    Raises RecordError naming the file and what is wrong: no such file, damaged, a column missing or not of numbers, and with
    the row a number that is negative, not finite or beyond MOST.
    """
    try:
        there = pq.read_schema(path).names
        wanted = [label, *numbers, *(name for name in optional if name in there)]
        if missing := [name for name in wanted if name not in there]:
            raise RecordError(f"{path}: found the columns {', '.join(there)[:400]}; missing {', '.join(missing)}")
        table = pq.read_table(path, columns=wanted)
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; expected a Parquet table of requests") from None
    except (OSError, pa.ArrowException, ValueError) as error:  # ValueError: a name in it is no UTF-8
        raise RecordError(f"{path}: cannot be read as Parquet: {str(error)[:300]}") from None
    if len(set(table.column_names)) != len(wanted) or pa.types.is_nested(table.schema.field(label).type):
        raise RecordError(f"{path}: {label}: found several columns or a nested one; expected one with a name in each row")
    frame = pd.DataFrame({label: table[label].to_pandas(ignore_metadata=True).astype(object)})
    return frame.assign(**{name: _numbers(path, name, table[name]) for name in wanted[1:]})


def _numbers(path: Path, name: str, column: pa.ChunkedArray) -> np.typing.NDArray[np.float64]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise RecordError(f"{path}: {name}: found a column of type {str(kind)[:100]}; expected numbers")
    values = np.array(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    wrong = np.flatnonzero(~np.isnan(values) & ~((values >= 0) & (values < MOST)))
    if len(wrong):
        found = shown(float(values[wrong[0]]))
        raise RecordError(f"{path}: row {wrong[0]}: {name}: found {found}; expected a number of 0 or more")
    return values
