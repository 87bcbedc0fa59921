"""From a printed number down to its rows and its run: the chain that the audit page and `spillway explain` show."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from spillway.paper.content import Content, Value
from spillway.paper.numbers import Sources, parts, source_file
from spillway.record import manifest
from spillway.record.parquet import provenance, read
from spillway.spec.number import Number, read_numbers

ROWS_SHOWN = 5
IDENTITY = ("arm", "boot", "cell", "request")  # columns that tell rows apart, where a table has them
OWN_ROUTING = "the model's own"


@dataclass(frozen=True)
class Chain:
    """One number with what it was made of.

    `columns` and `shown` are the first rows that its filter leaves, each (row of the file from 0, its values as text);
    empty for a ratio and for a value of a file's provenance.
    """

    value: Value
    definition: Number
    columns: list[str]
    shown: list[tuple[int, list[str]]]


@dataclass(frozen=True)
class Origin:
    """A data file: its row of the manifest, and what its own metadata say of the run; `run` is empty for published figures."""

    file: str
    listed: dict[str, str]
    run: dict[str, Any]
    routing: str


def chains(root: Path, content: Content) -> Iterator[Chain]:
    """The chain of every value of a host's numbers, in the order of paper/numbers.yaml."""
    sources = Sources(root, content.host)
    for key, definition in read_numbers(root, content.host).items():
        values = content.numbers.get(key, [])
        if not values or definition.provenance is not None or definition.file is None:
            yield from (Chain(value, definition, [], []) for value in values)
            continue
        table = sources.table(source_file(definition, content.host) or "")
        columns = _columns(definition, table)
        cells = [table[column].tolist() for column in columns]
        first = {group: rows.index[:ROWS_SHOWN].tolist() for group, rows in parts(key, definition, sources)}
        for value in values:
            shown = [(row, [_cell(column[row]) for column in cells]) for row in first[value.parts]]
            yield Chain(value, definition, columns, shown)


def origins(root: Path, content: Content) -> dict[str, Origin]:
    """Each data file that numbers come from -> where it comes from itself."""
    listed = manifest.read_manifest(root / manifest.DATA)
    found = {}
    for file in content.files():
        path = root / file
        run = provenance(path) if path.suffix == ".parquet" else {}
        found[file] = Origin(file, listed[file.removeprefix(f"{manifest.DATA}/")], run, _routing(path, run))
    return found


def _columns(definition: Number, table: pd.DataFrame) -> list[str]:
    asked = [*IDENTITY, *definition.where, *definition.groups, *filter(None, [definition.column])]
    return [name for name in dict.fromkeys(asked) if name in table.columns]


def _cell(value: Any) -> str:
    return "" if value is None or value != value else str(value)  # NaN, which stands for null here, is unlike itself


def _routing(path: Path, run: dict[str, Any]) -> str:
    """Which experts the router picked in a run: by the model itself, or by a stated rule; empty where nothing was served."""
    if run.get("model", "none") == "none":
        return ""
    arms = path.with_name(f"{path.name.split('.')[0]}.arms.parquet")
    if not arms.is_file():
        return OWN_ROUTING
    table = read(arms)[["arm", "routing"]].drop_duplicates()
    said = [(arm, OWN_ROUTING if pd.isna(routing) else routing) for arm, routing in table.itertuples(index=False)]
    each = {routing for _, routing in said}
    return each.pop() if len(each) == 1 else "; ".join(f"{arm}: {routing}" for arm, routing in said)
