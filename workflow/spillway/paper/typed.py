"""Numbers typed into a template or a figure: found by scanning it, refused unless allowed by name with a reason."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import RootModel

from spillway.spec.read import read

# What is not text that a reader sees: comments, calls for numbers, and arguments that LaTeX reads as names or lengths.
_ARGUMENTS = r"""(?:'[^']*'|"[^"]*"|[^'"(){}])*"""
_PRINTED_BY_KEY = rf"\\VAR\{{\s*(?:(?:n|u|why_not)\({_ARGUMENTS}\)|[a-z_]+(?:\.[a-z0-9_]+)?)\s*\}}"
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


# What a figure draws at or up to; constants there would be data that no file has. 0 and 1 are ends of a scale.
_DRAWN = {
    "axhline",
    "axvline",
    "axhspan",
    "axvspan",
    "hlines",
    "vlines",
    "plot",
    "scatter",
    "bar",
    "barh",
    "fill_between",
    "step",
}
_NEUTRAL = (0, 1)
_NO_TEXT = re.compile(r"[a-z_][a-z0-9_./,]*|#[0-9a-fA-F]{6}|[rgbk]?[-.:oxs]*")  # a column or file, a colour, a line style


class TypedNumber(Exception):
    """A template or a figure holds a number that does not come from data; the message names file, line and remedy."""


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


def check(template: Path, allowed_file: Path, names: Iterable[str] = ()) -> None:
    """Raise TypedNumber for the first number typed into a template, SpecError if `allowed_file` is wrong.

    `names` may stand in it besides those that are allowed: the experiments, which templates ask for by name.
    """
    allowed = read(Allowed, allowed_file).root
    for line, token in typed_numbers(template.read_text(encoding="utf-8"), {*allowed, *names}):
        raise TypedNumber(
            f"{template}:{line}: the number {token!r} is typed into the text; define it in paper/numbers.yaml and write "
            rf"\VAR{{ n('key') }}, or, if it is part of a name, list the name in {allowed_file} with the reason"
        )


def typed_in_figures(source: str, allowed: set[str]) -> Iterator[tuple[int, str]]:
    """(line, token) of every number in the code of figures that a reader would see and that comes from no data.

    Those are digits in text, unless it is the name of a column, a file, a colour or a line style; a constant put into text;
    and a constant that is drawn as data. Docstrings, sizes and positions on the page are none.
    """
    tree = ast.parse(source)
    hidden = {id(node) for part in ast.walk(tree) for node in _unprinted(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            if not _NO_TEXT.fullmatch(node.value):
                yield from ((node.lineno, token) for _, token in typed_numbers(node.value, allowed))
        elif isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _DRAWN:
            yield from ((node.lineno, token) for argument in node.args for token in _constants(argument))


def _unprinted(node: ast.AST) -> Iterator[ast.AST]:
    """Texts below a node that no reader of a figure sees: docstrings and the formats of values."""
    if isinstance(node, ast.Expr):
        yield node.value
    elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
        yield from ast.walk(node.format_spec)


def _constants(argument: ast.expr) -> Iterator[str]:
    match argument:
        case ast.Constant(value=int() | float() as number) if number not in _NEUTRAL:
            yield str(number)
        case ast.UnaryOp(operand=operand):
            yield from _constants(operand)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            for element in elements:
                yield from _constants(element)


def check_figures(folder: Path, allowed_file: Path, names: Iterable[str] = ()) -> None:
    """Raise TypedNumber for the first number typed into a figure's code, the files `*figure*.py` of a folder."""
    allowed = {*read(Allowed, allowed_file).root, *names}
    for path in sorted(folder.glob("*figure*.py")):
        for line, token in typed_in_figures(path.read_text(encoding="utf-8"), allowed):
            raise TypedNumber(
                f"{path}:{line}: the number {token!r} is typed into a figure; take it from the data, or, if it is part of a "
                f"name, list the name in {allowed_file} with the reason"
            )
