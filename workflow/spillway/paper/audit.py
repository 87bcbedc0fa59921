"""The audit: everything that can be checked of a build, checked anew, whatever the build believes of its own caches."""

import csv
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from spillway.paper import printed
from spillway.paper.article_language import LanguageError, read_languages
from spillway.paper.content import Content, ContentError, Value, read_content
from spillway.paper.numbers import NumberError, evaluate
from spillway.record import manifest
from spillway.record.parquet import RecordError, provenance, sha256
from spillway.spec.read import SpecError


@dataclass
class Report:
    """What was checked, and each difference that was found."""

    files: int = 0
    numbers: int = 0
    printed: dict[str, int] = field(default_factory=dict)
    """Output -> printed numbers that were compared."""
    notes: list[str] = field(default_factory=list)
    """What could not be compared, and why that is no difference."""
    faults: list[str] = field(default_factory=list)


def audit(root: Path, host: str) -> Report:
    """Check all data files, and the numbers and texts of the build of one host."""
    report = Report()
    check_files(root, report)
    try:
        content = evaluate(root, host)
    except (NumberError, RecordError, SpecError) as error:
        report.faults.append(str(error))
        return report
    report.numbers = sum(len(values) for values in content.numbers.values())
    built = Path("build") / host / "numbers.json"
    if (root / built).is_file():
        check_numbers(built, root, content, report)
    else:
        report.notes.append(f"{built} is not built; the numbers were computed and compared with nothing")
    try:
        outputs = built_outputs(root, host)
    except (LanguageError, SpecError) as error:
        report.faults.append(str(error))
        return report
    if not outputs:
        report.notes.append("neither paper nor article is built; no printed text was compared")
    for output in outputs:
        report.printed[output.file] = sum(len(texts) for texts in output.texts.values())
        report.faults += printed.faults(content, output)
    return report


def built_outputs(root: Path, host: str) -> list[printed.Output]:
    """The pages of a host that are built, with the numbers that stand in them; raises SpecError or LanguageError."""
    build = Path("build") / host
    outputs = []
    if (root / (tex := build / "paper/paper.tex")).is_file():
        outputs.append(printed.paper(tex.as_posix(), (root / tex).read_text(encoding="utf-8")))
    pages = {page.stem: page for page in sorted((root / build / "article").glob("*.html"))}
    for code, language in (read_languages(root) if pages else {}).items():
        if code in pages:
            name = pages[code].relative_to(root).as_posix()
            outputs.append(printed.article(name, pages[code].read_text(encoding="utf-8"), language))
    return outputs


def check_files(root: Path, report: Report) -> None:
    """Every file that the manifest lists: there, of that hash, size and rows, and by its own metadata of that run."""
    data = root / manifest.DATA
    try:
        listed = manifest.read_manifest(data)
    except RecordError as error:
        report.faults.append(str(error))
        return
    for file, row in listed.items():
        report.files += 1
        try:
            path = manifest.verify(data, file, listed)
            report.faults += [f"{path}: {fault}" for fault in _disagreements(path, row)]
        except RecordError as error:
            report.faults.append(str(error))
    there = {path.relative_to(data).as_posix() for path in data.glob("*/*.parquet")}
    report.faults += [f"{data / file}: not listed in {data / manifest.MANIFEST}" for file in sorted(there - set(listed))]


def _disagreements(path: Path, row: dict[str, str]) -> list[str]:
    parquet = path.suffix == ".parquet"
    found = {"bytes": str(path.stat().st_size), "rows": str(_rows(path)), "sha256": sha256(path)}
    if parquet:
        origin = provenance(path)
        found |= {name: str(origin.get(name, "")) for name in manifest.COLUMNS[4:]}
        found["dirty"] = found["dirty"].lower()
        if row["host"] != path.parent.name or row["experiment"] != path.name.split(".")[0]:
            return [f"measured by {row['experiment']} on {row['host']}, as the manifest says; expected the file's own name"]
    return [
        f"{name} is {value}, but {manifest.MANIFEST} lists {row[name]}" for name, value in found.items() if value != row[name]
    ]


def _rows(path: Path) -> int:
    if path.suffix == ".parquet":
        return int(pq.read_metadata(path).num_rows)
    with path.open(newline="", encoding="utf-8") as file:
        return sum(1 for _ in csv.DictReader(file))


def check_numbers(built: Path, root: Path, content: Content, report: Report) -> None:
    """Compare numbers.json with the numbers as computed just now, key by key and field by field."""
    try:
        there = read_content(root / built)
    except ContentError as error:
        report.faults.append(str(error))
        return
    if there.host != content.host:
        report.faults.append(f"{built}: is of host {there.host}; expected {content.host}")
    for key in sorted({*there.numbers, *content.numbers}):
        if key not in content.numbers:
            report.faults.append(f"{built}: holds {key}, which paper/numbers.yaml does not give; build it anew")
        elif key not in there.numbers:
            report.faults.append(f"{built}: lacks {key}; build it anew")
        else:
            report.faults += [f"{built}: {fault}" for fault in _differences(there.numbers[key], content.numbers[key])]
    if there.experiments != content.experiments:
        report.faults.append(f"{built}: which experiments are not run differs from experiments/; build it anew")


def _differences(built: list[Value], computed: list[Value]) -> list[str]:
    before, now = ({value.parts: value for value in values} for values in (built, computed))
    faults = []
    for group in {**now, **before}:
        if group not in now or group not in before:
            value = now.get(group) or before[group]
            faults.append(f"{value.name}: a group that {'is not built' if group in now else 'the data do not give'}")
            continue
        for name in now[group].__dataclass_fields__:
            old, new = getattr(before[group], name), getattr(now[group], name)
            if old != new:
                faults.append(f"{now[group].name}: {name} is {old!r}; computed from the data: {new!r}")
    return faults
