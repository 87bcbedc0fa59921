"""Numbers and figures of the paper: for each, the file, rows, column and statistic that it comes from."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, PositiveFloat, RootModel, model_validator

from spillway.spec.names import NAME_RULE, is_name
from spillway.spec.read import Strict, read
from spillway.spec.recorded import NOT_MADE, measured_by, tables_not_made, why_not

NUMBERS = Path("paper/numbers.yaml")
FIGURES = Path("paper/figures.yaml")

Statistic = Literal["only", "count", "distinct", "min", "p5", "median", "mean", "p95", "max", "sum"]
KEY = re.compile(r"[a-z0-9]+([._][a-z0-9]+)*")


class Number(Strict):
    """One number, or with `by` one for each value of a column.

    It is a `statistic` of a `column` over the rows `where`, or the `ratio` of two other numbers, or a value of the
    `provenance` of a file.
    """

    file: str | None = Field(
        default=None,
        description="<experiment>.<table> of the host in question, or a path in data/ such as published/figures.csv",
    )
    host: str | None = Field(default=None, description="another host than the one in question, for a comparison beside it")
    otherwise: str | None = Field(default=None, description="the host to take where the one in question does not run it")
    where: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="column -> the value that its rows have; @known: any value; @min and @max: the smallest and largest "
        "among the rows that the other conditions leave",
    )
    column: str | None = Field(default=None, description="absent: for the statistic `count`")
    statistic: Statistic | None = Field(default=None, description="only: all rows have the same value, which is printed")
    by: str | list[str] | None = Field(
        default=None,
        description="column, or several, whose every value gets a number of its own; `arm` is empty in tables without arms",
    )
    over_boots: Literal["low", "high"] | None = Field(
        default=None, description="that end of the 95 % interval over boots of the statistic, instead of the statistic itself"
    )
    relative_to: str | None = Field(
        default=None, description="value of the first `by` column; each number is divided by the one of that group"
    )
    provenance: str | None = Field(default=None, description="name in the file's metadata, instead of column and statistic")
    ratio: tuple[str, str] | None = Field(
        default=None,
        description="two numbers, also of two hosts; the first is divided by the second. With the same `by` in both: group by "
        "group, for the groups that both have",
    )
    optional: bool = Field(
        default=False, description="true: without a row that fulfils `where` there is no number; templates ask `has` before"
    )
    text: bool = Field(default=False, description="the value is a name, printed as it is")
    unit: str = Field(default="", description="unit that is printed; the column's own unit is converted to it")
    scale: PositiveFloat = Field(
        default=1.0, description="multiplies the value, for units that no column has: 1e-9 for billions"
    )
    decimals: int = Field(default=0, ge=0, le=6, description="digits after the decimal point")
    only_in: Literal["article"] | None = Field(
        default=None, description="absent: the paper prints it, and the article may; article: only the article does"
    )

    @model_validator(mode="before")
    @classmethod
    def _ratio_list(cls, content: Any) -> Any:
        if isinstance(content, dict) and isinstance(content.get("ratio"), list):
            return content | {"ratio": tuple(content["ratio"])}
        return content

    @model_validator(mode="after")
    def _check(self) -> "Number":
        if self.ratio is not None:
            if set(self.model_dump(exclude_defaults=True)) - {"ratio", "unit", "decimals", "only_in"}:
                raise ValueError("ratio: found beside other sources; expected only unit and decimals with it")
            return self
        if self.file is None:
            raise ValueError("file: found nothing; expected a data file, or `ratio`")
        if (self.host or self.otherwise) and "/" in self.file:
            key = "host" if self.host else "otherwise"
            raise ValueError(f"{key}: found beside the path {self.file!r}; expected it beside <experiment>.<table>")
        if self.host and self.otherwise:
            raise ValueError("otherwise: found beside host; expected one of them")
        if self.provenance is not None:
            if self.where or self.column or self.statistic or self.by:
                raise ValueError("provenance: found beside column, statistic, where or by; expected it alone with `file`")
            return self
        if self.statistic is None:
            raise ValueError("statistic: found nothing; expected one, or `provenance`, or `ratio`")
        if (self.column is None) != (self.statistic == "count"):
            raise ValueError("column: expected for every statistic but `count`, and not for that")
        if self.text and self.statistic not in ("only", "distinct"):
            raise ValueError(
                f"statistic: found {self.statistic!r} of a text; expected `only`, or `distinct` for all its values"
            )
        if self.over_boots and (self.column is None or self.text):
            raise ValueError("over_boots: found beside a count or a text; expected it with the statistic of a column")
        if self.relative_to and (not self.by or self.text or self.unit not in ("x", "%")):
            raise ValueError("relative_to: expected it with `by`, and with `unit: x` or `%`")
        return self

    @property
    def groups(self) -> list[str]:
        """The columns of `by`."""
        return [self.by] if isinstance(self.by, str) else self.by or []


class Numbers(RootModel[dict[str, Number]]):
    """paper/numbers.yaml: key -> number."""

    @model_validator(mode="after")
    def _check(self) -> "Numbers":
        seen: dict[str, str] = {}
        for key, number in self.root.items():
            same = number.model_dump_json(exclude={"decimals", "only_in"})
            if (first := seen.setdefault(same, key)) != key:
                decimals = {self.root[first].decimals, number.decimals}
                raise ValueError(
                    f"{first} and {key}: found one definition under two keys"
                    + (f", printed with {min(decimals)} and with {max(decimals)} decimals" if len(decimals) > 1 else "")
                    + "; expected one key, used in both places"
                )
            if not KEY.fullmatch(key):
                raise ValueError(f"{key}: found a key with other characters; expected lower case, digits, dots, underscores")
            for part in number.ratio or ():
                other = self.root.get(part)
                if other is None or other.ratio or other.text:
                    raise ValueError(f"{key}.ratio: found {part!r}; expected the key of a plain number")
            if number.ratio and len({tuple(self.root[part].groups) for part in number.ratio}) > 1:
                above, below = (" and ".join(self.root[part].groups) or "nothing" for part in number.ratio)
                raise ValueError(f"{key}.ratio: found numbers by {above} and by {below}; expected the same `by` in both")
        return self


class Figure(Strict):
    """One figure: the tables that it draws."""

    files: list[str] = Field(min_length=1, description="<experiment>.<table>, or a path in data/")
    host: str | None = Field(default=None, description="another host than the one in question, whose data it draws")
    otherwise: str | None = Field(default=None, description="the host to draw where the one in question does not run it")
    in_paper: bool = Field(default=True, description="false: made only when asked for by name, since its data may be absent")


class Figures(RootModel[dict[str, Figure]]):
    """paper/figures.yaml: name of a function in spillway.paper.figures -> its tables."""

    @model_validator(mode="after")
    def _check(self) -> "Figures":
        for name in self.root:
            if not is_name(name):
                raise ValueError(f"{name!r}: found a name with other characters; expected {NAME_RULE}")
        return self


Source = TypeVar("Source", Number, Figure)


def data_file(file: str, host: str) -> str:
    """The path below data/ of a `file` of a number or figure: `<experiment>.<table>` of a host, or a path already."""
    return file if "/" in file else f"{host}/{file}.parquet"


def files_drawn(figure: Figure, host: str) -> list[str]:
    """The paths below data/ of the tables that a figure draws in the edition of a host."""
    return [data_file(file, figure.host or host) for file in figure.files]


def read_numbers(root: Path, host: str) -> dict[str, Number]:
    """The numbers of the project by key, each with the host that it comes from in the edition of `host`; raises SpecError."""
    return _decided(root, read(Numbers, root / NUMBERS).root, host)


def read_figures(root: Path, host: str) -> dict[str, Figure]:
    """The figures of the project by name, each with the host that it draws in the edition of `host`; raises SpecError."""
    return _decided(root, read(Figures, root / FIGURES).root, host)


def _decided(root: Path, sources: dict[str, Source], host: str) -> dict[str, Source]:
    """Numbers or figures whose `otherwise` has become their `host`, too, or has been dropped, since `host` has their data."""
    files = {key: [data_file(file, host) for file in _files(source)] for key, source in sources.items() if source.otherwise}
    absent = not_run(root, {file for each in files.values() for file in each}, host)
    decided = {
        key: {"host": sources[key].otherwise} if any(file in absent for file in each) else {"otherwise": None}
        for key, each in files.items()
    }
    return {key: source.model_copy(update=decided.get(key, {})) for key, source in sources.items()}


def _files(source: Number | Figure) -> list[str]:
    return source.files if isinstance(source, Figure) else [source.file or ""]


def not_run(root: Path, files: Iterable[str], paper_host: str) -> dict[str, str]:
    """Those of some files below data/ that have no rows to give -> why.

    Their host does not run the experiment, or (NOT_MADE) what it does there makes no such table.
    """
    made = {file: measured_by(root, file) for file in files}
    origins = {origin for origin in made.values() if origin}
    reasons = {origin: why_not(root, origin[1], origin[0], paper_host) for origin in origins}
    lacking = {origin: tables_not_made(root, origin[1], origin[0]) for origin in origins}
    found = {
        file: reasons[origin] or (NOT_MADE if file.split(".")[-2] in lacking[origin] else None)
        for file, origin in made.items()
        if origin
    }
    return {file: reason for file, reason in found.items() if reason is not None}


def figures_drawn(root: Path, host: str) -> list[str]:
    """The figures of the paper whose data the host has or must have, sorted; raises SpecError."""
    drawn = {name: files_drawn(figure, host) for name, figure in read_figures(root, host).items() if figure.in_paper}
    absent = not_run(root, {file for files in drawn.values() for file in files}, host)
    return sorted(name for name, files in drawn.items() if not any(file in absent for file in files))


def data_files(root: Path, host: str) -> list[str]:
    """All files below data/ that the paper and the article need for a host, sorted; raises SpecError."""
    wanted = {data_file(number.file, number.host or host) for number in read_numbers(root, host).values() if number.file}
    figures = read_figures(root, host)
    wanted |= {file for name in figures_drawn(root, host) for file in files_drawn(figures[name], host)}
    return sorted(wanted - set(not_run(root, wanted, host)))
