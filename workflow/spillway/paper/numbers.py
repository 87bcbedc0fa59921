"""From `paper/numbers.yaml` and the data files to `numbers.json`: every number with its value, text and origin.

    python -m spillway.paper.numbers --host HOST --out build/HOST/numbers.json

Fails, naming key, file and column or filter, if a file is absent, differs from the manifest or is stale, or if a number
has no rows, is not finite or cannot be converted.
"""

import argparse
import hashlib
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from spillway.paper.format import FormatError, convert, number
from spillway.record import manifest
from spillway.record.parquet import RecordError, provenance, read
from spillway.record.samples import samples_needed
from spillway.spec.experiment import NotRun, resolve
from spillway.spec.number import NUMBERS, Number, data_file, read_numbers
from spillway.spec.read import SpecError

# With fewer samples the paper says so in the percentile's place.
FEWEST = {"p5": samples_needed(0.05), "p95": samples_needed(0.95)}
TOO_FEW = "too few samples"
EXTREMES = ("@min", "@max")
KNOWN = "@known"


class NumberError(Exception):
    """A number cannot be made; the message names its key, its file and what is wrong there."""


@dataclass(frozen=True)
class Value:
    """One printed number and where it comes from. `group` is the value of the `by` column, or empty."""

    key: str
    group: str
    value: float | str
    text: str
    unit: str
    file: str
    sha256: str
    run: str
    where: str
    what: str
    rows: int


class Sources:
    """The data files of one host, each verified and read once."""

    def __init__(self, root: Path, host: str) -> None:
        self.root, self.host = root, host
        self.manifest = manifest.read_manifest(root / manifest.DATA)
        self._tables: dict[str, pd.DataFrame] = {}

    def table(self, file: str) -> pd.DataFrame:
        """The rows of a file below data/; raises RecordError, or NumberError if the file is stale."""
        if file not in self._tables:
            path = manifest.verify(self.root / manifest.DATA, file, self.manifest)
            if path.suffix == ".parquet":
                self._refuse_stale(path)
            self._tables[file] = read(path)
        return self._tables[file]

    def _refuse_stale(self, path: Path) -> None:
        origin = provenance(path)
        asked = resolve(self.root, origin["experiment"], origin["host"])
        if isinstance(asked, NotRun) or asked.hash != origin["spec_hash"]:
            today = "not run on this host" if isinstance(asked, NotRun) else f"{asked.hash[:12]}..."
            raise NumberError(
                f"{path}: stale: measured for the specification {origin['spec_hash'][:12]}..., which is now {today}; measure "
                f"anew with `snakemake {origin['experiment']} --config host={origin['host']}`, or undo the edit in experiments/"
            )


def evaluate(root: Path, host: str) -> dict[str, list[Value]]:
    """Every number of the paper for a host: key -> its values, one unless it has `by`; raises NumberError at a fault."""
    sources = Sources(root, host)
    numbers = read_numbers(root)
    values: dict[str, list[Value]] = {}
    for key, definition in sorted(numbers.items(), key=lambda item: item[1].ratio is not None):
        try:
            values[key] = _ratio(key, definition, values) if definition.ratio else _values(key, definition, sources)
        except (FormatError, RecordError, SpecError) as error:
            raise NumberError(f"{NUMBERS}: {key}: {error}") from None
    return {key: values[key] for key in numbers}


def _values(key: str, definition: Number, sources: Sources) -> list[Value]:
    assert definition.file is not None
    file = data_file(definition.file, sources.host)
    rows = sources.table(file)
    if definition.provenance is not None:
        return [_provenance(key, definition, file, sources)]
    for column in [*definition.where, *filter(None, [definition.column, definition.by])]:
        if column not in rows.columns:
            raise NumberError(f"{NUMBERS}: {key}: column {column!r} is not in data/{file}; it has: {', '.join(rows.columns)}")
    selected = select(key, file, rows, definition.where)
    if definition.by is None:
        return [_value(key, "", definition, file, selected, sources)]
    groups = selected.groupby(definition.by, sort=False, dropna=False)  # in the order of the file
    return [_value(key, str(group), definition, file, part, sources) for group, part in groups]


def select(key: str, file: str, rows: pd.DataFrame, where: dict[str, Any]) -> pd.DataFrame:
    """The rows that fulfil all conditions; raises NumberError naming the first condition that none fulfils."""
    selected = rows
    for column, wanted in sorted(where.items(), key=lambda item: item[1] in EXTREMES):
        before = selected
        if wanted == KNOWN:
            selected = before[before[column].notna()]
        else:
            selected = before[before[column] == (before[column].agg(wanted[1:]) if wanted in EXTREMES else wanted)]
        if selected.empty:
            present = ", ".join(str(value) for value in before[column].drop_duplicates().head(12))
            others = " among those that the other conditions leave" if len(where) > 1 else ""
            raise NumberError(
                f"{NUMBERS}: {key}: no row of data/{file} has {column} = {wanted!r}{others}; there: {present or 'nothing'}"
            )
    return selected


def _value(key: str, group: str, definition: Number, file: str, rows: pd.DataFrame, sources: Sources) -> Value:
    origin = f"{NUMBERS}: {key}{f' [{definition.by} = {group}]' if group else ''}: data/{file}"
    listed = sources.manifest[file]
    conditions = [f"{column} = {wanted}" for column, wanted in definition.where.items()]
    conditions += [f"{definition.by} = {group}"] if group else []
    common: dict[str, Any] = {
        "key": key,
        "group": group,
        "file": f"data/{file}",
        "sha256": listed["sha256"],
        "run": listed["run"],
        "where": ", ".join(conditions),
        "rows": len(rows),
    }
    if definition.column is None:
        return Value(value=len(rows), text=number(len(rows), 0), unit=definition.unit, what="count", **common)
    column = rows[definition.column]
    if column.isna().any():
        raise NumberError(
            f"{origin}: {int(column.isna().sum())} of {len(rows)} rows have no {definition.column}; leave them out with "
            f'`where: {{{definition.column}: "{KNOWN}"}}` if that is right'
        )
    what = f"{definition.statistic} of {definition.column}"
    if definition.text:
        return Value(value=_only(origin, column), text=str(_only(origin, column)), unit="", what=what, **common)
    if len(column) < FEWEST.get(definition.statistic or "", 1):
        return Value(value=TOO_FEW, text=f"{TOO_FEW} ({len(column)})", unit="", what=what, **common)
    raw = _statistic(origin, definition.statistic or "", column)
    if not math.isfinite(raw):
        raise NumberError(f"{origin}: the {what} is {raw}; expected a finite number")
    shown = convert(raw, definition.column, definition.unit) if definition.statistic != "distinct" else raw
    shown *= definition.scale
    return Value(value=shown, text=number(shown, definition.decimals), unit=definition.unit, what=what, **common)


def _only(origin: str, column: pd.Series) -> Any:
    distinct = column.drop_duplicates()
    if len(distinct) != 1:
        raise NumberError(
            f"{origin}: `only` expects one value in {column.name}; found {len(distinct)}: {', '.join(map(str, distinct[:6]))}"
        )
    return distinct.iloc[0]


def _statistic(origin: str, statistic: str, column: pd.Series) -> float:
    try:
        match statistic:
            case "only":
                return float(_only(origin, column))
            case "distinct":
                return float(column.nunique())
            case "p5" | "p95":
                return float(column.quantile(int(statistic[1:]) / 100))
            case _:
                return float(getattr(column, statistic)())
    except (TypeError, ValueError):
        raise NumberError(f"{origin}: {column.name} is not a number, but {column.iloc[0]!r}; set `text: true`") from None


def _provenance(key: str, definition: Number, file: str, sources: Sources) -> Value:
    found = provenance(sources.root / manifest.DATA / file)
    name = definition.provenance or ""
    if found.get(name) in (None, ""):
        raise NumberError(f"{NUMBERS}: {key}: data/{file}: its provenance has no {name!r}; it has: {', '.join(found)}")
    listed, value = sources.manifest[file], found[name]
    shown: float | str = str(value)
    if not definition.text and not isinstance(value, str):
        shown = convert(float(value), name, definition.unit)
    text = shown if isinstance(shown, str) else number(shown, definition.decimals)
    where_from = f"data/{file}", listed["sha256"], listed["run"]
    return Value(key, "", shown, text, definition.unit, *where_from, "", f"provenance: {name}", 0)


def _ratio(key: str, definition: Number, values: dict[str, list[Value]]) -> list[Value]:
    assert definition.ratio is not None
    (above,), (below,) = (values[part] for part in definition.ratio)
    if not float(below.value):
        raise NumberError(f"{NUMBERS}: {key}: {below.key} is 0; nothing can be divided by it")
    if above.unit != below.unit:
        raise NumberError(
            f"{NUMBERS}: {key}: {above.key} is in {above.unit!r}, {below.key} in {below.unit!r}; expected one unit"
        )
    quotient = float(above.value) / float(below.value) * (100 if definition.unit == "%" else 1)
    return [
        Value(key, "", quotient, number(quotient, definition.decimals), definition.unit, above.file, above.sha256, above.run,
              "", f"{above.key} / {below.key}", above.rows)
    ]  # fmt: skip


def data_hash(values: dict[str, list[Value]]) -> str:
    """SHA-256 over the names and hashes of all files that the numbers come from."""
    files = sorted({(value.file, value.sha256) for group in values.values() for value in group})
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Path("."))
    parser.add_argument("--host", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        values = evaluate(options.root, options.host)
    except (NumberError, RecordError, SpecError) as error:
        sys.exit(f"spillway: {error}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "host": options.host,
        "data_hash": data_hash(values),
        "ratios": {key: number.ratio for key, number in read_numbers(options.root).items() if number.ratio},
        "numbers": {key: [asdict(value) for value in group] for key, group in values.items()},
    }
    options.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
