"""`numbers.json`: what paper, article and audit print, made once from the data."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


class ContentError(Exception):
    """A numbers.json cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True)
class Value:
    """One printed number and where it comes from.

    `parts` are the values of the `by` columns; `texts` holds language -> the number as printed there, without its unit;
    `where` and `what` are the filter and the statistic in words, `rows` how many rows the filter leaves.
    """

    key: str
    parts: tuple[str, ...]
    value: float | str
    texts: dict[str, str]
    unit: str
    file: str
    sha256: str
    run: str
    where: str
    what: str
    rows: int

    @property
    def group(self) -> str:
        """The values of the `by` columns in one text; empty for a number without groups."""
        return " | ".join(filter(None, self.parts))

    @property
    def name(self) -> str:
        """How people tell the number from others: its key, with its group."""
        return self.key + (f" [{self.group}]" if self.group else "")

    @property
    def anchor(self) -> str:
        """Its place in the paper's appendix and in the audit: `number.KEY`, or `number.KEY--GROUP`; unique, as is checked."""
        group = "".join(c if c.isascii() and c.isalnum() else "-" for c in self.group)
        return f"number.{self.key}" + (f"--{group}" if group else "")


@dataclass(frozen=True)
class Content:
    """All numbers of one host.

    `experiments`: host -> experiment -> why it has no data there, or None; `left_out`: key -> (host, experiment) that is not
    run; `only_in`: key -> the one output that prints it; `ratios`: key -> the two numbers that it divides; `same`: key of a
    number of a named host -> the key under which this host, being that one, has the same number as its own; `elsewhere`:
    experiment -> the host whose data stand in, since this host does not run it.
    """

    host: str
    data_hash: str
    numbers: dict[str, list[Value]]
    ratios: dict[str, tuple[str, str]]
    only_in: dict[str, str]
    left_out: dict[str, tuple[str, str]]
    experiments: dict[str, dict[str, str | None]]
    same: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)

    def not_run(self) -> dict[str, str]:
        """Experiment -> reason, of those that the host does not run."""
        return {name: reason for name, reason in self.experiments[self.host].items() if reason is not None}

    def files(self) -> dict[str, Value]:
        """Each data file that numbers come from -> one of these numbers, sorted by name."""
        files = {value.file: value for group in self.numbers.values() for value in group}
        return dict(sorted(files.items()))

    def to_json(self) -> str:
        """The text of numbers.json; `not_run` stands in it for readers."""
        return json.dumps(asdict(self) | {"not_run": self.not_run()}, indent=1, ensure_ascii=False) + "\n"


def from_json(content: dict[str, Any]) -> Content:
    """A Content from the parsed text of numbers.json; raises KeyError or TypeError where it is of another layout."""
    return Content(
        host=content["host"],
        data_hash=content["data_hash"],
        numbers={
            key: [Value(**value | {"parts": tuple(value["parts"])}) for value in group]
            for key, group in content["numbers"].items()
        },
        ratios={key: (above, below) for key, (above, below) in content["ratios"].items()},
        only_in=content["only_in"],
        left_out={key: (host, experiment) for key, (host, experiment) in content["left_out"].items()},
        experiments=content["experiments"],
        same=content["same"],
        elsewhere=content["elsewhere"],
    )


def read_content(path: Path) -> Content:
    """The numbers.json at `path`; raises ContentError if it is absent or of another layout."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ContentError(f"{path}: no such file; `snakemake {path}` makes it") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ContentError(f"{path}: not the layout of this version ({error!r}); `snakemake -f {path}` makes it anew") from None
