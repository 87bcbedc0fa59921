"""The audit page: one row for each number, from what is printed down to rows, file, run and commit.

    python -m spillway.paper.audit_page --numbers build/HOST/numbers.json --out build/HOST/audit.html

Where paper and article of that host are rendered, the page says how and where they print each number. It holds all that it
shows: it works from a file, without a server, and asks nothing of the network. Fails if the paper or an article prints
something else than the numbers.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from spillway.paper import printed
from spillway.paper.article_language import LanguageError
from spillway.paper.audit import built_outputs
from spillway.paper.chain import ROWS_SHOWN, Chain, chains, origins
from spillway.paper.content import Content, ContentError, Value, read_content
from spillway.paper.format import LANGUAGES, SYMBOLS, with_unit
from spillway.paper.numbers import NumberError
from spillway.paper.printed import Output
from spillway.paper.render import project, without_defaults
from spillway.record.parquet import RecordError
from spillway.spec.experiment import EXPERIMENTS, Experiment
from spillway.spec.read import SpecError, read

TEMPLATE = Path("paper/audit.html.j2")
PAGES = {"paper": "paper.pdf"}  # as they lie beside the audit page; articles are article/<language>.html


class AuditError(Exception):
    """The audit page cannot be made; the message has one line for each fault."""


@dataclass(frozen=True)
class Place:
    """Where an output prints a number."""

    output: str
    link: str


@dataclass(frozen=True)
class Row:
    """One number of the page; `places` is text as printed -> where it stands so, `part_of` the ratios that it is part of."""

    chain: Chain
    places: dict[str, list[Place]]
    part_of: list[Value]

    @property
    def value(self) -> Value:
        return self.chain.value

    @property
    def outputs(self) -> str:
        """The outputs that print it, for the page's filter."""
        return " ".join(dict.fromkeys(place.output.replace(" ", "-") for places in self.places.values() for place in places))


def page(root: Path, content: Content, outputs: Sequence[Output]) -> str:
    """The HTML of the audit page; raises AuditError, or what reading the data raises."""
    if wrong := [fault for output in outputs for fault in printed.faults(content, output)]:
        raise AuditError("\n".join(wrong))
    part_of: dict[tuple[str, tuple[str, ...]], list[Value]] = {}
    for key, divided in content.ratios.items():
        for ratio in content.numbers.get(key, []):
            for part in divided:
                part_of.setdefault((part, ratio.parts), []).append(ratio)
    rows = [
        Row(chain, _places(chain.value, outputs), part_of.get((chain.value.key, chain.value.parts), []))
        for chain in chains(root, content)
    ]
    files = origins(root, content)
    asked = {origin.run["experiment"] for origin in files.values() if origin.run} | set(content.not_run())
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    without_defaults(environment)
    return environment.from_string((root / TEMPLATE).read_text(encoding="utf-8")).render(
        rows=rows,
        files=list(files.values()),
        files_by_name=files,
        file_ids={file: f"file-{position}" for position, file in enumerate(files)},
        questions={name: read(Experiment, root / EXPERIMENTS / f"{name}.yaml").question for name in sorted(asked)},
        not_run=content.not_run(),
        outputs=[(output.name, _link(output)) for output in outputs],
        texts=_texts,
        symbols=SYMBOLS,
        shown=ROWS_SHOWN,
        counts=Counter(row.value.file for row in rows),
        **project(content, root),
    )


def _link(output: Output) -> str:
    return PAGES.get(output.name, f"article/{output.language}.html")


def _places(value: Value, outputs: Sequence[Output]) -> dict[str, list[Place]]:
    places: dict[str, list[Place]] = {}
    for output in outputs:
        fragment = ""
        if value.anchor in output.places:
            fragment = f"#nameddest={value.anchor}" if output.name == "paper" else f"#{value.anchor}"
        for text in printed.read_in(value, output):
            places.setdefault(text, []).append(Place(output.name, _link(output) + fragment))
    return places


def _texts(value: Value) -> list[str]:
    """A number as it would be printed, in every language that differs."""
    return list(dict.fromkeys(with_unit(value.texts[language], value.unit, language) for language in LANGUAGES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--numbers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        content = read_content(options.numbers)
        html = page(Path("."), content, built_outputs(Path("."), content.host))
    except (
        AuditError,
        ContentError,
        LanguageError,
        NumberError,
        RecordError,
        SpecError,
        OSError,
        jinja2.TemplateError,
    ) as error:
        sys.exit(f"spillway: audit: {error}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(html, encoding="utf-8")


if __name__ == "__main__":
    main()
