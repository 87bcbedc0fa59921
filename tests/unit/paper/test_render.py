"""What a template may print: numbers by key as links, everything else escaped; undefined and unused numbers are found."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from spillway.paper.numbers import Value
from spillway.paper.render import RenderError, render


def value(key: str, text: str, group: str = "", unit: str = "", number: float | str = 1.0) -> dict[str, Any]:
    return asdict(Value(key, group, number, text, unit, "data/cpu/x.y.parquet", "ab" * 32, "run", "a = 1", "median of b_s", 3))


CONTENT = {
    "ratios": {"growth": ["tpot", "base"]},
    "numbers": {
        "tpot": [value("tpot", "7.6", unit="ms")],
        "base": [value("base", "7.0", unit="ms")],
        "growth": [value("growth", "1.09", unit="x")],
        "by": [value("by", "1", group="a_1 & b"), value("by", "2", group="50%")],
    },
}
ALL = r"\VAR{ n('growth') }\VAR{ n('tpot') }\BLOCK{ for g in groups('by') }\VAR{ g }=\VAR{ n('by', g) };\BLOCK{ endfor }"


def rendered(tmp_path: Path, template: str) -> str:
    path = tmp_path / "t.tex.j2"
    path.write_text(template)
    return render(path, CONTENT, {"commit": "abc_def"})


def test_numbers_are_links_and_text_is_escaped(tmp_path: Path) -> None:
    text = rendered(tmp_path, ALL + r"\VAR{ u('tpot') } \VAR{ commit }")
    assert r"\datum{number.tpot-}{7.6\,ms}" in text
    assert r"a\_1 \& b=" in text and r"50\%=" in text
    assert text.endswith(r"abc\_def")


def test_a_part_of_a_used_ratio_counts_as_used(tmp_path: Path) -> None:
    rendered(tmp_path, ALL)  # `base` is used in `growth` alone


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (ALL + "\n\n" + r"\VAR{ n('tpott') }", r"t\.tex\.j2:3: undefined number 'tpott'.*did you mean tpot"),
        (ALL + r"\VAR{ n('by', 'c') }", r"number 'by' has no group 'c'; it has: a_1 & b, 50%"),
        (ALL + r"\VAR{ n('by') }", r"number 'by' has no group ''"),
        (ALL + r"\VAR{ nothing }", "'nothing' is undefined"),
        (ALL + r"\VAR{ nothing|default('-') }", "No filter named 'default'"),
        (ALL + r"\BLOCK{ if nothing }x\BLOCK{ endif }", "'nothing' is undefined"),
        (ALL.replace(r"\VAR{ n('growth') }", ""), r"defined and never used in .*: base, growth; use or delete"),
    ],
)
def test_what_does_not_agree_is_named(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(RenderError, match=message):
        rendered(tmp_path, template)
