"""Tables to and from Parquet, with the provenance of their rows in the file's metadata."""

import hashlib
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from spillway.record import tables
from spillway.spec.json_text import parse_json
from spillway.spec.shown import shown

if TYPE_CHECKING:
    import pandas as pd

METADATA_KEY = b"spillway"


class RecordError(Exception):
    """A data file is absent, damaged, or not what the manifest says; the message names the file and the remedy."""


def write(path: Path, table: str, rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]) -> None:
    """Write rows as zstd-compressed Parquet; the same rows and provenance give the same bytes.

    Raises RecordError if a row has an unknown column, lacks a required one, or holds a value of another type.
    """
    schema = tables.schema(table, {column for row in rows for column in row})
    known = set(schema.names)
    for number, row in enumerate(rows):
        if unknown := sorted(set(row) - known):
            raise RecordError(f"{path}: row {number}: unknown column {unknown[0]!r}; table {table!r} has {schema.names}")
        for field in schema:
            value = row.get(field.name)
            if value is None and not field.nullable:
                raise RecordError(f"{path}: row {number}: no value for the required column {field.name!r}")
            if value is not None and not _fits(value, field.type):
                raise RecordError(f"{path}: row {number}: {field.name}: {value!r} does not fit; expected {field.type}")
    metadata = {METADATA_KEY: json.dumps(provenance, sort_keys=True).encode()}
    content = pa.Table.from_pylist([dict(row) for row in rows], schema=schema.with_metadata(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, path, compression="zstd", write_page_checksum=True)


def _fits(value: Any, type_: pa.DataType) -> bool:
    """Arrow itself would cut 1.5 to 1 in an integer column, and NaN would pass for a measurement."""
    if pa.types.is_boolean(type_):
        return isinstance(value, bool)
    if pa.types.is_integer(type_):
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if pa.types.is_floating(type_):
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, str)


def provenance(path: Path) -> dict[str, Any]:
    """What stands in a file's metadata about the run that measured it; raises RecordError if there is nothing."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException, ValueError) as error:  # ValueError: a name in it is no UTF-8
        raise RecordError(f"{path}: cannot be read as Parquet: {str(error)[:300]}") from None
    if METADATA_KEY not in metadata:
        raise RecordError(f"{path}: carries no provenance; expected a file written by Spillway")
    try:
        found = parse_json(metadata[METADATA_KEY])
    except ValueError as error:
        raise RecordError(f"{path}: its provenance is damaged: {error}") from None
    if not isinstance(found, dict):
        raise RecordError(f"{path}: its provenance is damaged: found {shown(found)}; expected an object")
    return found


def read(path: Path) -> "pd.DataFrame":
    """The rows of a Parquet or CSV file; raises RecordError if it is absent or damaged."""
    from spillway.record.csv_table import read_csv  # whoever only writes or publishes does not wait for pandas

    try:
        return read_csv(path) if path.suffix == ".csv" else pq.read_table(path, page_checksum_verification=True).to_pandas()
    except FileNotFoundError:
        raise RecordError(f"{path}: no such data file") from None
    except (OSError, pa.ArrowException, ValueError) as error:  # ValueError: also pandas' and Unicode's
        raise RecordError(f"{path}: cannot be read: {str(error)[:300]}") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file as `write` took them; raises RecordError if it is absent or damaged."""
    try:
        found: list[dict[str, Any]] = pq.read_table(path, page_checksum_verification=True).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None
    return found


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
