"""The description of a release obeys RO-Crate 1.1: one flat graph, a root with what it must have, every file with its hash."""

import datetime
import json
from typing import Any

from spillway.paper.crate import Crate, Packed, describe

CRATE = Crate("A title", "What it is.", "0.1.0", "The developers", datetime.datetime(2026, 3, 4, tzinfo=datetime.UTC), "c" * 40)
FILES = [
    Packed("LICENSE", 3, "1" * 64, "about"),
    Packed("data/cpu/e1 here.cells.parquet", 5, "2" * 64, "data"),
    Packed("experiments/e1 here.yaml", 4, "3" * 64, "asked"),
]
ROW = {
    "run": "20260101T000000Z-ab", "experiment": "e1 here", "host": "cpu", "model": "tiny", "commit": "d" * 40, "dirty": "true",
    "engine": "vLLM 0.32.0", "measured_at": "2026-01-01T00:00:00+00:00",
}  # fmt: skip
LISTED = {"cpu/e1 here.cells.parquet": ROW, "published/figures.csv": dict.fromkeys(ROW, ""), "h200/e1 here.cells.parquet": ROW}


def graph() -> dict[str, dict[str, Any]]:
    described = json.loads(describe(CRATE, FILES, LISTED))
    assert described["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
    entities = {entity["@id"]: entity for entity in described["@graph"]}
    assert len(entities) == len(described["@graph"])  # each described once
    assert all("@type" in entity for entity in entities.values())
    return entities


def test_descriptor_and_root() -> None:
    entities = graph()
    descriptor, root = entities["ro-crate-metadata.json"], entities["./"]
    assert descriptor["about"] == {"@id": "./"} and descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    assert (root["@type"], root["name"], root["datePublished"]) == ("Dataset", "A title", "2026-03-04")
    assert entities[root["license"]["@id"]]["name"] == "Apache License 2.0"


def test_each_file_is_part_of_the_root_with_size_type_and_hash() -> None:
    entities = graph()
    parts = [part["@id"] for part in entities["./"]["hasPart"]]
    assert parts == ["LICENSE", "data/cpu/e1%20here.cells.parquet", "experiments/e1%20here.yaml"]  # names are addresses
    data = entities[parts[1]]
    assert (data["@type"], data["contentSize"], data["sha256"]) == ("File", "5", "2" * 64)
    assert data["encodingFormat"] == "application/vnd.apache.parquet"


def test_a_run_says_what_it_made_with_what() -> None:
    entities = graph()
    (run,) = [entity for entity in entities.values() if entity["@type"] == "CreateAction"]
    assert run["result"] == [{"@id": "data/cpu/e1%20here.cells.parquet"}]  # the file that is not packed is no result
    assert run["object"] == {"@id": "experiments/e1%20here.yaml"}
    assert run["description"].endswith("with changes that are in no commit")
    assert entities[run["instrument"]["@id"]]["name"] == "vLLM 0.32.0"


def test_nothing_refers_to_what_is_not_described() -> None:
    entities = graph()

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["@id"]] if set(value) == {"@id"} else []
            return own + [found for item in value.values() for found in references(item)]
        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    outside = {reference for reference in references(list(entities.values())) if reference not in entities}
    assert outside == {"https://w3id.org/ro/crate/1.1"}
