"""Numbers typed into a template: found by scanning its text, refused unless allowed by name with a reason."""

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import RootModel

from spillway.spec.read import read

# What is not text that a reader sees: comments, calls for numbers, and arguments that LaTeX reads as names or lengths.
_PRINTED_BY_KEY = r"\\VAR\{\s*(?:[nu]\([^{}]*\)|[a-z_]+(?:\.[a-z0-9_]+)?)\s*\}"
_CONTROL = r"\\BLOCK\{\s*(?:if|elif|else|endif|endfor|for\s+\w+\s+in\s+\w+\()[^{}]*\}"
_UNPRINTED = [
    (r"\\#\{.*?\}", re.DOTALL),
    (r"(?<!\\)%.*", 0),
    (_PRINTED_BY_KEY, re.DOTALL),
    (_CONTROL, re.DOTALL),
    (r"\\(?:label|ref|cref|Cref|pageref|cite[tp]?|input|bibliography|bibliographystyle|includegraphics|hypertarget|url|"
     r"begin|end|usepackage|documentclass|vspace|hspace|setlength|definecolor|multicolumn|cmidrule)"
     r"\*?(?:\[[^\]]*\]|\([^)]*\)|\{(?:[^{}]|\{[^{}]*\})*\})*", 0),
    (r"\d*\.?\d+\s?(?:pt|em|ex|cm|mm|in|bp|\\(?:text|line|column)width|\\baselineskip)", 0),
]  # fmt: skip
_NUMBER = re.compile(r"(?<![A-Za-z\\])[A-Za-z]*\d(?:[\w.,]*\w)?")


class TypedNumber(Exception):
    """A template holds a number that does not come from data; the message names file, line and remedy."""


class Allowed(RootModel[dict[str, str]]):
    """paper/allowed.yaml: a name with digits that may stand in the text -> why it is not a measurement."""


def typed_numbers(text: str, allowed: set[str]) -> Iterator[tuple[int, str]]:
    """(line, token) of every token with digits that a reader would see and that is not in `allowed`.

    Template code other than calls for a number by key, conditions and loops over a number's groups counts as text: a literal
    printed or bound there would reach the reader without a source.
    """

    def blank(found: re.Match[str]) -> str:
        return " " + "\n" * found.group().count("\n")

    for pattern, flags in _UNPRINTED:
        text = re.sub(pattern, blank, text, flags=flags)
    for name in sorted(allowed, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w|[.,]\d)", blank, text)
    for number, line in enumerate(text.splitlines(), start=1):
        for found in _NUMBER.finditer(line):
            yield number, found.group()


def check(template: Path, allowed_file: Path) -> None:
    """Raise TypedNumber for the first number typed into a template, SpecError if `allowed_file` is wrong."""
    allowed = read(Allowed, allowed_file).root
    for line, token in typed_numbers(template.read_text(encoding="utf-8"), set(allowed)):
        raise TypedNumber(
            f"{template}:{line}: the number {token!r} is typed into the text; define it in paper/numbers.yaml and write "
            rf"\VAR{{ n('key') }}, or, if it is part of a name, list the name in {allowed_file} with the reason"
        )
