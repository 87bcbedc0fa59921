"""Rows go in and come out unchanged, the same rows give the same bytes, and wrong rows are refused by name."""

from pathlib import Path

import pytest

from spillway.record import parquet
from spillway.record.parquet import RecordError

ROW = {"run": "r", "boot": 0, "startup_s": 1.5, "health_s": 1.0, "process_memory_bytes": 5}


def test_round_trip_keeps_values_nulls_and_provenance(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write(path, "boots", [ROW], {"run": "r"})
    row = parquet.read(path).iloc[0]
    assert row["startup_s"] == 1.5
    assert row.isna()["weights_bytes"], "a lacking value is null, not 0"
    assert parquet.provenance(path) == {"run": "r"}


def test_same_rows_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        parquet.write(tmp_path / name, "boots", [ROW], {"x": 1, "a": 2} if name == "a" else {"a": 2, "x": 1})
    assert parquet.sha256(tmp_path / "a") == parquet.sha256(tmp_path / "b")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"start_s": 1.0}, "unknown column 'start_s'"),
        (ROW | {"health_s": None}, "no value for the required column 'health_s'"),
        (ROW | {"startup_s": "fast"}, "does not fit"),
        (ROW | {"boot": 1.5}, "does not fit"),
    ],
)
def test_wrong_rows_are_refused(tmp_path: Path, row: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        parquet.write(tmp_path / "x.parquet", "boots", [row], {})


def test_a_foreign_parquet_file_has_no_provenance(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(RecordError, match="carries no provenance"):
        parquet.provenance(tmp_path / "x.parquet")
