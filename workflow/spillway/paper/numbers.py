"""From `paper/numbers.yaml` and the data files to `numbers.json`: every number with its value, text and origin.

    python -m spillway.paper.numbers --host HOST --out build/HOST/numbers.json

Fails, naming key, file and column or filter, if a file is absent, differs from the manifest or is stale, or if a number
has no rows, is not finite or cannot be converted.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from spillway.paper import statistic
from spillway.paper.content import Content, Value
from spillway.paper.format import LANGUAGES, FormatError, check_unit, convert, quotient, texts
from spillway.paper.statistic import StatisticError
from spillway.record import manifest
from spillway.record.parquet import RecordError, provenance, read
from spillway.spec.experiment import EXPERIMENTS, Experiment, NotRun, Resolved, names, resolve
from spillway.spec.number import NUMBERS, Number, data_file, not_run, read_numbers
from spillway.spec.read import SpecError
from spillway.spec.read import read as read_spec
from spillway.spec.recorded import NOT_MADE, measured_by, why_not

ARM = "arm"


class NumberError(Exception):
    """A number cannot be made; the message names its key, its file and what is wrong there."""


class Sources:
    """The data files of one host, each verified and read once."""

    def __init__(self, root: Path, host: str) -> None:
        self.root, self.host = root, host
        self.manifest = manifest.read_manifest(root / manifest.DATA)
        self._tables: dict[str, pd.DataFrame] = {}
        self._asked: dict[tuple[str, str], Resolved | NotRun] = {}

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
        key = origin["experiment"], origin["host"]
        if key not in self._asked:
            self._asked[key] = resolve(self.root, *key)
        asked = self._asked[key]
        if isinstance(asked, NotRun) or asked.hash != origin["spec_hash"]:
            today = "not run on this host" if isinstance(asked, NotRun) else f"{asked.hash[:12]}..."
            raise NumberError(
                f"{path}: stale: measured for the specification {origin['spec_hash'][:12]}..., which is now {today}; measure "
                f"anew with `snakemake {origin['experiment']} --config host={origin['host']}`, or undo the edit in experiments/"
            )


def evaluate(root: Path, host: str) -> Content:
    """Every number for a host; raises NumberError, RecordError or SpecError at a fault.

    Left out are those whose experiment the host does not run, and ratios of these. One of a table that is not made there has
    no values, as an optional one without rows. A number of a named host that is this host's own number once more is had under
    one key only.
    """
    sources = Sources(root, host)
    defined = read_numbers(root, host)
    same = _same(defined, host)
    numbers = {key: _with_parts(definition, same) for key, definition in defined.items() if key not in same}
    files = {key: source_file(definition, host) for key, definition in numbers.items()}
    absent = not_run(root, filter(None, files.values()), host)
    values: dict[str, list[Value]] = {}
    printed: dict[tuple[object, ...], Value] = {}
    left_out: dict[str, tuple[str, str]] = {}
    for key, definition in sorted(numbers.items(), key=lambda item: item[1].ratio is not None):
        try:
            check_unit(definition.unit)
            lacking = [left_out[part] for part in definition.ratio or () if part in left_out]
            file = files[key]
            not_made = absent.get(file or "") == NOT_MADE
            if file in absent and not not_made and (made := measured_by(root, file or "")):
                lacking.append(made)
            if lacking:
                left_out[key] = lacking[0]
            elif not_made:
                values[key] = []
            else:
                values[key] = (
                    _ratio(key, definition, values) if definition.ratio else _values(key, definition, sources, printed)
                )
        except (FormatError, RecordError, SpecError) as error:
            raise NumberError(f"{NUMBERS}: {key}: {error}") from None
    values = {key: values[key] for key in numbers if key in values}
    _refuse_equal_anchors(values)
    experiments = _experiments(root, host, defined)
    return Content(
        host=host,
        data_hash=data_hash(values),
        numbers=values,
        ratios={key: definition.ratio for key, definition in numbers.items() if definition.ratio},
        only_in={key: definition.only_in for key, definition in numbers.items() if definition.only_in},
        left_out=left_out,
        experiments=experiments,
        same=same,
        elsewhere=_elsewhere(defined, experiments),
    )


def _same(numbers: dict[str, Number], host: str) -> dict[str, str]:
    own = {number.model_dump_json(exclude={"host"}): key for key, number in numbers.items() if number.host is None}
    named = {key: number.model_dump_json(exclude={"host"}) for key, number in numbers.items() if number.host == host}
    return {key: own[made] for key, made in named.items() if made in own}


def _experiments(root: Path, paper_host: str, numbers: dict[str, Number]) -> dict[str, dict[str, str | None]]:
    hosts = [paper_host, *sorted({number.host for number in numbers.values() if number.host} - {paper_host})]
    asked = {name: read_spec(Experiment, root / EXPERIMENTS / f"{name}.yaml").hosts for name in names(root)}
    of_host = {host: [name for name in asked if host in (paper_host, *asked[name])] for host in hosts}
    return {host: {name: why_not(root, name, host, paper_host) for name in known} for host, known in of_host.items()}


def _elsewhere(numbers: dict[str, Number], experiments: dict[str, dict[str, str | None]]) -> dict[str, str]:
    named = [(number.file.split(".")[0], number.otherwise) for number in numbers.values() if number.file and number.otherwise]
    return {experiment: host for experiment, host in named if experiments[host][experiment] is None}


def _with_parts(number: Number, same: dict[str, str]) -> Number:
    return number.model_copy(update={"ratio": number.ratio and tuple(same.get(part, part) for part in number.ratio)})


def _refuse_equal_anchors(numbers: dict[str, list[Value]]) -> None:
    seen: dict[str, Value] = {}
    for value in (value for group in numbers.values() for value in group):
        if (first := seen.setdefault(value.anchor, value)) is not value:
            raise NumberError(f"{NUMBERS}: {first.name} and {value.name} have one anchor, {value.anchor}; rename a key")


def source_file(definition: Number, host: str) -> str | None:
    """The path below data/ of the file that a number comes from; None for a ratio."""
    return data_file(definition.file, definition.host or host) if definition.file else None


def _values(key: str, definition: Number, sources: Sources, printed: dict[tuple[object, ...], Value]) -> list[Value]:
    if definition.provenance is not None:
        return _provenance(key, definition, sources)
    values = []
    for group, rows in parts(key, definition, sources):
        value = _value(key, group, definition, rows, sources)
        # The same statistic of the same rows under another key, such as the longest context beside all contexts.
        made_of = (value.file, value.what, value.unit, definition.scale, rows.index.to_numpy().tobytes())
        if (first := printed.setdefault(made_of, value)).texts != value.texts:
            raise NumberError(
                f"{NUMBERS}: {first.name} and {value.name} are one value of {value.file}, the {value.what} of the same "
                f"{value.rows} rows, printed as {first.texts['en']} and as {value.texts['en']}; give both the same decimals"
            )
        values.append(value)
    return _relative(key, definition, values) if definition.relative_to else values


def parts(key: str, definition: Number, sources: Sources) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """(values of the `by` columns, rows) that each value of a number is made of, in the order of the file.

    Raises NumberError for an unknown column, a filter that leaves nothing unless the number is optional, or a group without
    a name.
    """
    file = source_file(definition, sources.host) or ""
    rows = sources.table(file)
    if ARM in definition.groups and ARM not in rows.columns:  # an experiment without arms has one, without a name
        rows = rows.assign(**{ARM: ""})
    for column in [*definition.where, *filter(None, [definition.column]), *definition.groups]:
        if column not in rows.columns:
            raise NumberError(f"{NUMBERS}: {key}: column {column!r} is not in data/{file}; it has: {', '.join(rows.columns)}")
    try:
        selected = statistic.select(rows, definition.where)
    except StatisticError as error:
        if definition.optional:
            return
        raise NumberError(f"{NUMBERS}: {key}: data/{file}: {error}") from None
    if not definition.groups:
        yield (), selected
        return
    for column in definition.groups:
        _refuse_gaps(f"{NUMBERS}: {key}: data/{file}", selected[column])
    for group, part in selected.groupby(definition.groups, sort=False):
        yield tuple(map(_group_name, group)), part


def _group_name(value: object) -> str:
    """The value of a `by` column as text; without a point if whole, since pandas reads whole numbers beside gaps as floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _value(key: str, group: tuple[str, ...], definition: Number, rows: pd.DataFrame, sources: Sources) -> Value:
    file = source_file(definition, sources.host) or ""
    listed = sources.manifest[file]
    of_group = [f"{column} = {wanted}" for column, wanted in zip(definition.groups, group, strict=True) if wanted]
    named = f" [{', '.join(of_group)}]" if of_group else ""
    origin = f"{NUMBERS}: {key}{named}: data/{file}"
    what = f"{definition.statistic} of {definition.column}" if definition.column else "count"
    if definition.over_boots:
        what = f"{definition.over_boots} end of the 95 % interval over boots of the {what}"
    value, printed = _computed(origin, definition, rows)
    return Value(
        key=key,
        parts=group,
        value=value,
        texts=printed,
        unit="" if isinstance(value, str) else definition.unit,
        file=f"data/{file}",
        sha256=listed["sha256"],
        run=listed["run"],
        where=", ".join([*(f"{column} = {wanted}" for column, wanted in definition.where.items()), *of_group]),
        what=what,
        rows=len(rows),
    )


def _computed(origin: str, definition: Number, rows: pd.DataFrame) -> tuple[float | str, dict[str, str]]:
    """The value of a number over its rows, and how it is printed; `origin` begins the messages of errors."""
    if definition.column is None:
        return len(rows), texts(len(rows), 0)
    column, asked = rows[definition.column], definition.statistic or ""
    _refuse_gaps(origin, column)
    try:
        if definition.text:
            name = statistic.name(asked, column)
            return name, dict.fromkeys(LANGUAGES, name)
        if definition.over_boots and statistic.BOOT not in rows.columns:
            raise NumberError(f"{origin}: over_boots: found no column {statistic.BOOT!r}; expected one")
        if definition.over_boots:
            found = statistic.over_boots(definition.over_boots, asked, rows, definition.column)
        else:
            found = statistic.value(asked, column)
    except statistic.NoValue as none:
        return str(none), none.texts
    except StatisticError as error:
        raise NumberError(f"{origin}: {error}") from None
    own_unit = asked == "distinct" or definition.relative_to  # a count of values, or a ratio, has no unit of the column
    shown = (found if own_unit else convert(found, definition.column, definition.unit)) * definition.scale
    return shown, texts(shown, definition.decimals)


def _refuse_gaps(origin: str, column: pd.Series) -> None:
    if column.isna().any():
        raise NumberError(
            f"{origin}: {int(column.isna().sum())} of {len(column)} rows have no {column.name}; leave them out with "
            f'`where: {{{column.name}: "{statistic.KNOWN}"}}` if that is right'
        )


def _relative(key: str, definition: Number, values: list[Value]) -> list[Value]:
    """Each value divided by that of the group to which it is relative; groups without one there are left out."""
    base = {value.parts[1:]: value for value in values if value.parts[0] == definition.relative_to}
    if not base and definition.optional:
        return []
    if not base:
        there = ", ".join(dict.fromkeys(value.parts[0] for value in values))
        raise NumberError(f"{NUMBERS}: {key}: relative_to: no group {definition.relative_to!r}; there: {there}")
    factor = 100 if definition.unit == "%" else 1
    relative = []
    for value in (value for value in values if value.parts[1:] in base):
        below = base[value.parts[1:]]
        what = f"{value.what} / that of {definition.relative_to}"
        if isinstance(value.value, str) or isinstance(below.value, str):
            relative.append(replace(below if isinstance(below.value, str) else value, parts=value.parts, what=what))
        elif not below.value:
            raise NumberError(f"{NUMBERS}: {key}: relative_to: {below.name} is 0; nothing can be divided by it")
        else:
            quotient = value.value / below.value * factor
            relative.append(replace(value, value=quotient, texts=texts(quotient, definition.decimals), what=what))
    return relative


def _provenance(key: str, definition: Number, sources: Sources) -> list[Value]:
    file = source_file(definition, sources.host) or ""
    sources.table(file)
    found = provenance(sources.root / manifest.DATA / file)
    name = definition.provenance or ""
    if found.get(name) in (None, "") and definition.optional:
        return []
    if found.get(name) in (None, ""):
        raise NumberError(f"{NUMBERS}: {key}: data/{file}: its provenance has no {name!r}; it has: {', '.join(found)}")
    listed, value = sources.manifest[file], found[name]
    shown: float | str = str(value)
    if not definition.text and not isinstance(value, str):
        shown = convert(float(value), name, definition.unit)
    printed = dict.fromkeys(LANGUAGES, shown) if isinstance(shown, str) else texts(shown, definition.decimals)
    where_from = f"data/{file}", listed["sha256"], listed["run"]
    return [Value(key, (), shown, printed, definition.unit, *where_from, "", f"provenance: {name}", 0)]


def _ratio(key: str, definition: Number, values: dict[str, list[Value]]) -> list[Value]:
    assert definition.ratio is not None
    if not all(values[part] for part in definition.ratio):  # of an optional number that has no row
        return []
    above, below = ({value.parts: value for value in values[part]} for part in definition.ratio)
    return [_quotient(key, definition, above[parts], below[parts]) for parts in above if parts in below]


def _quotient(key: str, definition: Number, above: Value, below: Value) -> Value:
    for part in (above, below):
        if isinstance(part.value, str):
            raise NumberError(f"{NUMBERS}: {key}: {part.name} is {part.texts['en']!r}; expected a number")
    if not float(below.value):
        raise NumberError(f"{NUMBERS}: {key}: {below.name} is 0; nothing can be divided by it")
    found = quotient(float(above.value), above.unit, float(below.value), below.unit, definition.unit)
    return Value(key, above.parts, found, texts(found, definition.decimals), definition.unit, above.file, above.sha256,
                 above.run, "", f"{above.key} / {below.key}", above.rows)  # fmt: skip


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
        content = evaluate(options.root, options.host)
    except (NumberError, RecordError, SpecError) as error:
        sys.exit(f"spillway: {error}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(content.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
