"""From a template and `numbers.json` to LaTeX: the template gets numbers by key and nothing else.

    python -m spillway.paper.render --numbers build/HOST/numbers.json --template paper/paper.en.tex.j2 --out FILE.tex

Fails if the template uses an undefined number, if a defined number is used nowhere, or if a number is typed into the text.
"""

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import Any

import jinja2

from spillway.paper import typed
from spillway.paper.format import unit as unit_text
from spillway.paper.numbers import Value
from spillway.record.provenance import commit
from spillway.spec.number import NUMBERS
from spillway.spec.read import SpecError

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "µ": r"\textmu{}",
    "×": r"\texttimes{}", "−": r"\textminus{}", "@": "@",
}  # fmt: skip


class RenderError(Exception):
    """The template and the numbers do not agree; the message names the key and the file."""


class Latex(str):
    """Text that is LaTeX already; everything else that a template prints is escaped."""


def escape(text: object) -> Latex:
    """A value as LaTeX prints it literally."""
    if isinstance(text, Latex):
        return text
    return Latex("".join(_ESCAPES.get(character, character) for character in str(text)))


class Numbers:
    """What a template may call. Remembers each use, so that undefined and unused numbers are found."""

    def __init__(self, numbers: dict[str, list[Value]], ratios: dict[str, list[str]]) -> None:
        self.numbers = numbers
        self.ratios = ratios
        self.used: set[str] = set()

    def unused(self) -> list[str]:
        """Numbers that neither the template nor a ratio in it uses."""
        parts = {part for key in self.used for part in self.ratios.get(key, [])}
        return sorted(set(self.numbers) - self.used - parts)

    def n(self, key: str, group: str = "") -> Latex:
        """The number alone, as a link to its line in the provenance appendix."""
        return self._linked(self._find(key, group), with_unit=False)

    def u(self, key: str, group: str = "") -> Latex:
        """The number with its unit."""
        return self._linked(self._find(key, group), with_unit=True)

    def raw(self, key: str) -> float | str:
        """The bare value of a number without groups, for conditions in the template."""
        return self._find(key, "").value

    def groups(self, key: str) -> list[str]:
        """The values of the `by` column of a number, in order."""
        self.used.add(self._known(key))
        return [value.group for value in self.numbers[key]]

    def files(self) -> list[dict[str, str]]:
        """Every data file that numbers come from, for the provenance appendix."""
        files = {value.file: value for group in self.numbers.values() for value in group}
        return [{"name": file, "sha256": value.sha256[:16], "run": value.run} for file, value in sorted(files.items())]

    def ledger(self, file: str) -> list[dict[str, str]]:
        """Every number of a file, for the provenance appendix; does not count as a use."""
        return [
            {
                "anchor": _anchor(value),
                "key": value.key + (f" [{value.group}]" if value.group else ""),
                "text": self._printed(value, with_unit=True),
                "where": (value.where or "all rows") if value.rows else "",
                "what": value.what,
                "rows": str(value.rows) if value.rows else "",
            }
            for group in self.numbers.values()
            for value in group
            if value.file == file
        ]

    def _known(self, key: str) -> str:
        if key not in self.numbers:
            close = difflib.get_close_matches(key, self.numbers, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise RenderError(f"undefined number {key!r}: not in {NUMBERS}{hint}")
        return key

    def _find(self, key: str, group: str) -> Value:
        self.used.add(self._known(key))
        for value in self.numbers[key]:
            if value.group == group:
                return value
        there = ", ".join(value.group or "(none)" for value in self.numbers[key])
        raise RenderError(f"number {key!r} has no group {group!r}; it has: {there}")

    @staticmethod
    def _printed(value: Value, *, with_unit: bool) -> Latex:
        symbol = unit_text(value.unit) if with_unit else ""
        return Latex(escape(value.text) + (rf"\,{escape(symbol)}" if symbol else ""))

    def _linked(self, value: Value, *, with_unit: bool) -> Latex:
        return Latex(rf"\datum{{{_anchor(value)}}}{{{self._printed(value, with_unit=with_unit)}}}")


def _anchor(value: Value) -> str:
    return "number." + "".join(c if c.isalnum() else "-" for c in f"{value.key}.{value.group}")


def render(template: Path, content: dict[str, Any], project: dict[str, str]) -> str:
    """The LaTeX text of a template; raises RenderError naming the template, its line and what is wrong there."""
    numbers = Numbers(
        {key: [Value(**value) for value in group] for key, group in content["numbers"].items()}, content["ratios"]
    )
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, finalize=escape, trim_blocks=True, keep_trailing_newline=True,
        block_start_string=r"\BLOCK{", block_end_string="}", variable_start_string=r"\VAR{", variable_end_string="}",
        comment_start_string=r"\#{", comment_end_string="}",
    )  # fmt: skip
    del environment.filters["default"], environment.filters["d"]  # a missing number is an error, never a dash
    text = template.read_text(encoding="utf-8")
    try:
        rendered = environment.from_string(text).render(
            n=numbers.n,
            u=numbers.u,
            raw=numbers.raw,
            groups=numbers.groups,
            files=numbers.files,
            ledger=numbers.ledger,
            **project,
        )
    except (jinja2.TemplateError, RenderError) as error:
        raise RenderError(f"{template}:{_line(error)}: {error}") from None
    if unused := numbers.unused():
        raise RenderError(f"{NUMBERS}: defined and never used in {template}: {', '.join(unused)}; use or delete them")
    return rendered


def _line(error: BaseException) -> int:
    """The template line at which rendering stopped: jinja2 gives its own errors one, and every frame of a template."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return error.lineno
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--numbers", type=Path, required=True)
    parser.add_argument("--template", type=Path, required=True)
    parser.add_argument("--allowed", type=Path, default=Path("paper/allowed.yaml"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    content = json.loads(options.numbers.read_text(encoding="utf-8"))
    try:
        typed.check(options.template, options.allowed)
        here = commit(Path("."))
        project = {"commit": str(here), "data_hash": content["data_hash"][:12], "host": content["host"]}
        rendered = render(options.template, content, project)
    except (RenderError, SpecError, typed.TypedNumber) as error:
        sys.exit(f"spillway: {error}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(rendered, encoding="utf-8")


if __name__ == "__main__":
    main()
