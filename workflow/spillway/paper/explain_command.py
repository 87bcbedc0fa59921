"""`spillway explain KEY`: from a printed number down to the rows that it was made of."""

import argparse
import difflib
from pathlib import Path

import pandas as pd

from spillway.paper import numbers
from spillway.paper.numbers import NumberError, Sources, Value, evaluate
from spillway.record import manifest
from spillway.record.parquet import RecordError, provenance
from spillway.spec.experiment import names
from spillway.spec.number import NUMBERS, Number, data_file, read_numbers
from spillway.spec.read import SpecError

ROWS_SHOWN = 8
PROVENANCE_SHOWN = [
    "experiment",
    "run",
    "measured_at",
    "commit",
    "dirty",
    "engine",
    "environment_hash",
    "model",
    "weights",
    "spec_hash",
]


def main(argv: list[str]) -> int | str:
    """Explain numbers; returns 0, or a message naming an unknown key or what is wrong with the data."""
    parser = argparse.ArgumentParser(prog="spillway explain", description="Show where a number of the paper comes from.")
    parser.add_argument("key", nargs="+", help=f"key in {NUMBERS}")
    parser.add_argument("--host", default="cpu")
    options = parser.parse_args(argv)
    root = Path(".")
    try:
        if options.host not in names(root, "hosts"):
            return f"spillway: --host {options.host}: no such host; there are: {', '.join(names(root, 'hosts'))}"
        definitions = read_numbers(root)
        for key in options.key:
            if key not in definitions:
                close = difflib.get_close_matches(key, definitions, n=3) or sorted(definitions)[:12]
                return f"spillway: no number {key!r} in {NUMBERS}; there are, for example: {', '.join(close)}"
        values = evaluate(root, options.host)
        for key in options.key:
            print(explain(root, options.host, definitions[key], values[key]))
    except (NumberError, RecordError, SpecError) as error:
        return f"spillway: {error}"
    return 0


def explain(root: Path, host: str, definition: Number, values: list[Value]) -> str:
    """The chain of one number as text: printed, computed, rows, file, run."""
    lines = []
    for value in values:
        name = f"{value.key} [{definition.by} = {value.group}]" if value.group else value.key
        lines += [f"{name}: {value.text}{' ' + value.unit if value.unit else ''}", f"  exactly   {value.value!r}",
                  f"  computed  {value.what}" + (f" over {value.rows} rows where {value.where or 'all'}" if value.rows else ""),
                  f"  file      {value.file}  sha256 {value.sha256}"]  # fmt: skip
    if definition.file and definition.provenance is None:
        file = data_file(definition.file, host)
        rows = numbers.select(values[0].key, file, Sources(root, host).table(file), definition.where)
        shown = [*dict.fromkeys([*definition.where, *filter(None, [definition.by, definition.column])])]
        with pd.option_context("display.width", 120):
            table = rows[shown or list(rows.columns)[:6]].head(ROWS_SHOWN).to_string()
        lines += ["  rows", *(f"    {line}" for line in table.splitlines())]
        lines += [f"    ... and {len(rows) - ROWS_SHOWN} more"] if len(rows) > ROWS_SHOWN else []
    path = root / values[0].file
    if path.suffix == ".parquet":
        origin = provenance(path)
        lines += [f"  {name:<17}{origin[name]}" for name in PROVENANCE_SHOWN]
    lines.append(f"  defined in {NUMBERS}; the file's hash is listed in {manifest.DATA / manifest.MANIFEST}")
    return "\n".join(lines) + "\n"
