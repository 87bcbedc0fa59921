"""Numbers and figures of the paper: for each, the file, rows, column and statistic that it comes from."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, RootModel, model_validator

from spillway.spec.read import Strict, read

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
    where: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="column -> the value that its rows have; @known: any value; @min and @max: the smallest and largest "
        "among the rows that the other conditions leave",
    )
    column: str | None = Field(default=None, description="absent: for the statistic `count`")
    statistic: Statistic | None = Field(default=None, description="only: all rows have the same value, which is printed")
    by: str | None = Field(default=None, description="column whose every value gets a number of its own")
    provenance: str | None = Field(default=None, description="name in the file's metadata, instead of column and statistic")
    ratio: tuple[str, str] | None = Field(default=None, description="two numbers; the first is divided by the second")
    text: bool = Field(default=False, description="the value is a name, printed as it is")
    unit: str = Field(default="", description="unit that is printed; the column's own unit is converted to it")
    scale: PositiveFloat = Field(
        default=1.0, description="multiplies the value, for units that no column has: 1e-9 for billions"
    )
    decimals: int = Field(default=0, ge=0, le=6, description="digits after the decimal point")

    @model_validator(mode="before")
    @classmethod
    def _ratio_list(cls, content: Any) -> Any:
        if isinstance(content, dict) and isinstance(content.get("ratio"), list):
            return content | {"ratio": tuple(content["ratio"])}
        return content

    @model_validator(mode="after")
    def _check(self) -> "Number":
        if self.ratio is not None:
            if self.file or self.where or self.column or self.statistic or self.by or self.provenance or self.text:
                raise ValueError("ratio: found beside other sources; expected only unit and decimals with it")
            return self
        if self.file is None:
            raise ValueError("file: found nothing; expected a data file, or `ratio`")
        if self.provenance is not None:
            if self.where or self.column or self.statistic or self.by:
                raise ValueError("provenance: found beside column, statistic, where or by; expected it alone with `file`")
            return self
        if self.statistic is None:
            raise ValueError("statistic: found nothing; expected one, or `provenance`, or `ratio`")
        if (self.column is None) != (self.statistic == "count"):
            raise ValueError("column: expected for every statistic but `count`, and not for that")
        if self.text and self.statistic != "only":
            raise ValueError(f"statistic: found {self.statistic!r} of a text; expected `only`")
        return self


class Numbers(RootModel[dict[str, Number]]):
    """paper/numbers.yaml: key -> number."""

    @model_validator(mode="after")
    def _check(self) -> "Numbers":
        for key, number in self.root.items():
            if not KEY.fullmatch(key):
                raise ValueError(f"{key}: found a key with other characters; expected lower case, digits, dots, underscores")
            for part in number.ratio or ():
                other = self.root.get(part)
                if other is None or other.ratio or other.text or other.by:
                    raise ValueError(f"{key}.ratio: found {part!r}; expected the key of a plain number")
        return self


class Figure(Strict):
    """One figure: the tables that it draws."""

    files: list[str] = Field(min_length=1, description="<experiment>.<table>, or a path in data/")
    in_paper: bool = Field(default=True, description="false: made only when asked for by name, since its data may be absent")


class Figures(RootModel[dict[str, Figure]]):
    """paper/figures.yaml: name of a function in spillway.paper.figures -> its tables."""


def data_file(file: str, host: str) -> str:
    """The path below data/ of a `file` of a number or figure."""
    return file if "/" in file else f"{host}/{file}.parquet"


def read_numbers(root: Path) -> dict[str, Number]:
    """The numbers of the project by key; raises SpecError."""
    return read(Numbers, root / NUMBERS).root


def read_figures(root: Path) -> dict[str, Figure]:
    """The figures of the project by name; raises SpecError."""
    return read(Figures, root / FIGURES).root


def data_files(root: Path, host: str) -> list[str]:
    """All files below data/ that the paper needs for a host, sorted."""
    wanted = [number.file for number in read_numbers(root).values() if number.file]
    wanted += [file for figure in read_figures(root).values() if figure.in_paper for file in figure.files]
    return sorted({data_file(file, host) for file in wanted})
