"""The committed data: each file is what the manifest says, has the columns of the dictionary, and the dictionary is current."""

import pyarrow.parquet as pq
import pytest

from spillway.fit import predicted
from spillway.record import dictionary, manifest, parquet, tables
from spillway.spec.experiment import Resolved, resolve
from tests.conftest import ROOT

DATA = ROOT / manifest.DATA
LISTED = manifest.read_manifest(DATA)
MEASURED = sorted(file for file in LISTED if file.endswith(".parquet"))


def test_every_file_is_listed_and_every_listed_file_is_there() -> None:
    present = {path.relative_to(DATA).as_posix() for path in DATA.rglob("*.parquet")}
    assert set(LISTED) == present | {"published/figures.csv", predicted.FILE}


@pytest.mark.parametrize("file", sorted(LISTED))
def test_bytes_are_those_of_the_manifest(file: str) -> None:
    manifest.verify(DATA, file, LISTED)


@pytest.mark.parametrize("file", MEASURED)
def test_columns_are_those_of_the_dictionary(file: str) -> None:
    table = file.split(".")[-2]
    found = pq.read_schema(DATA / file)
    assert found.remove_metadata().equals(tables.schema(table, found.names))


@pytest.mark.parametrize("file", MEASURED)
def test_manifest_and_metadata_agree(file: str) -> None:
    origin, row = parquet.provenance(DATA / file), LISTED[file]
    for name in set(manifest.COLUMNS) & set(origin):
        assert str(origin[name]).lower() == row[name].lower(), name
    assert int(row["rows"]) == pq.read_metadata(DATA / file).num_rows
    assert file == f"{origin['host']}/{origin['experiment']}.{file.split('.')[-2]}.parquet"


@pytest.mark.parametrize("file", MEASURED)
def test_data_are_of_todays_experiments(file: str) -> None:
    asked = resolve(ROOT, LISTED[file]["experiment"], LISTED[file]["host"])
    assert isinstance(asked, Resolved)
    assert asked.hash == LISTED[file]["spec_hash"]


@pytest.mark.parametrize("file", MEASURED)
def test_recorded_data_were_measured_by_committed_code(file: str) -> None:
    assert LISTED[file]["dirty"] == "false"


def test_predictions_are_those_of_todays_fit_and_specifications() -> None:
    assert (DATA / predicted.FILE).read_text(encoding="utf-8") == predicted.text(ROOT)


def test_dictionary_is_current() -> None:
    assert (ROOT / dictionary.FILE).read_text(encoding="utf-8") == dictionary.markdown()
