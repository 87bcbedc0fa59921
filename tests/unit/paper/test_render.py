"""What a template may print: numbers by key as links, everything else escaped; undefined and unused numbers are found."""

from dataclasses import replace
from pathlib import Path

import pytest

from spillway.paper.markup import Html
from spillway.paper.render import render
from spillway.paper.view import Numbers, RenderError
from tests.unit.paper.contents import content, value

ALL = (
    r"\VAR{ n('growth') }\VAR{ n('tpot') }\BLOCK{ for g in groups('by') }\VAR{ g }=\VAR{ n('by', g) };\BLOCK{ endfor }"
    r"\BLOCK{ for a in parts('arms', 0) }\BLOCK{ for s in parts('arms', 1, a) }\VAR{ a } \VAR{ n('arms', a, s) },"
    r"\BLOCK{ endfor }\BLOCK{ endfor }"
)


def rendered(tmp_path: Path, template: str) -> str:
    path = tmp_path / "t.tex.j2"
    path.write_text(template)
    return render(path, content(), {"commit": "abc_def"})


def test_numbers_are_links_and_text_is_escaped(tmp_path: Path) -> None:
    text = rendered(tmp_path, ALL + r"\VAR{ u('tpot') } \VAR{ u('growth') } \VAR{ commit }")
    assert r"\datum{number.tpot}{7.6\,ms}" in text
    assert r"\datum{number.growth}{1.09\texttimes{}}" in text
    assert r"a\_1 \& b=\datum{number.by--a-1---b}{1}" in text and r"50\%=" in text
    assert text.endswith(r"abc\_def")


def test_groups_of_two_columns(tmp_path: Path) -> None:
    template = ALL + r"\BLOCK{ if not has('arms', 'uva', '8') }none\BLOCK{ endif }"
    text = rendered(tmp_path, template)
    assert [part.split("}")[0] for part in text.split("number.arms--")[1:]] == ["placed---4", "placed---8", "uva---4"]
    assert text.endswith("none")


def test_groups_of_a_number_in_its_own_order() -> None:
    levels = [value("levels", "8", "uva", "b", number=8), value("levels", "3", "uva", "c", number=3)]
    known = replace(content(), numbers={"levels": [*levels, value("levels", "1", "placed", "d", number=1)]})
    numbers = Numbers(known, Html(), "en", "paper")
    assert numbers.parts("levels", 1, "uva") == ["b", "c"]
    assert numbers.rising("levels", "uva") == ["c", "b"]


@pytest.mark.parametrize(("there", "seen", "some"), [(2, "1", True), (2, "0,1", False), (1, "0", False), (2, None, False)])
def test_experiments_on_some_gpus_of_a_machine_are_found(there: int, seen: str | None, some: bool) -> None:
    visible = [] if seen is None else [value("speed.gpus_visible", seen, number=seen)]
    gpus = [replace(value("speed.gpus", str(there), number=there), file="data/h200/e3_speed.requests.parquet")]
    known = replace(content(), numbers={"speed.gpus": gpus, "speed.gpus_visible": visible, "published.gpus": gpus})
    numbers = Numbers(known, Html(), "en", "paper")
    found = [{"key": "speed", "experiment": "e3_speed", "host": "h200"}]
    assert numbers.on_some_gpus() == (found if some else [])
    assert numbers.used == {"speed.gpus", "speed.gpus_visible"}, "whoever asks has used both"


def test_a_part_of_a_used_ratio_counts_as_used(tmp_path: Path) -> None:
    rendered(tmp_path, ALL)  # `base` is used in `growth` alone


def test_what_is_not_run_is_told_with_its_reason(tmp_path: Path) -> None:
    template = r"""\BLOCK{ if measured('e9_all_in_vram') }\VAR{ n('vram') }\BLOCK{ endif }
\VAR{ why_not('e9_all_in_vram') }\BLOCK{ if measured('e1_memory') }yes\BLOCK{ endif }
\VAR{ why_not('e9_all_in_vram', host='h200x2') }"""
    text = rendered(tmp_path, ALL + template)
    assert text.endswith("There is no GPU memory on this host.yesnot recorded on host h200x2 yet")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (ALL + "\n\n" + r"\VAR{ n('tpott') }", r"t\.tex\.j2:3: undefined number 'tpott'.*did you mean tpot"),
        (ALL + r"\VAR{ n('by', 'c') }", r"number 'by' has no group 'c'; it has: a_1 & b, 50%"),
        (ALL + r"\VAR{ n('by') }", r"number 'by' has no group ''"),
        (ALL + r"\VAR{ parts('by', 1) }", r"number 'by' has 1 `by` columns"),
        (ALL + r"\VAR{ nothing }", "'nothing' is undefined"),
        (ALL + r"\VAR{ nothing|default('-') }", "No filter named 'default'"),
        (ALL + r"\BLOCK{ if nothing }x\BLOCK{ endif }", "'nothing' is undefined"),
        (ALL.replace(r"\VAR{ n('growth') }", ""), r"defined and never used in .*: base, growth; use or delete them, or mark"),
        (ALL + r"\VAR{ n('stools') }", "number 'stools': paper/numbers.yaml says only_in: article"),
        (ALL + r"\VAR{ n('vram') }",
         r"number 'vram': experiment e9_all_in_vram is not run on host cpu.*guard it with measured\('e9_all_in_vram'\)"),
        (ALL + r"\VAR{ n('vram.there') }", r"guard it with measured\('e9_all_in_vram', host='h200x2'\)"),
        (ALL + r"\VAR{ why_not('e1_memory') }", r"why_not\('e1_memory'\): it is measured on host cpu"),
        (ALL + r"\BLOCK{ if measured('e9_vram') }\BLOCK{ endif }", "no such experiment of host cpu .*did you mean e9_all_in"),
        (ALL + r"\BLOCK{ if measured('e1_memory', 'h1') }\BLOCK{ endif }", "no number names that host; there are: cpu, h200"),
    ],
)  # fmt: skip
def test_what_does_not_agree_is_named(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(RenderError, match=message):
        rendered(tmp_path, template)


def test_html_in_spanish() -> None:
    numbers = Numbers(content(), Html("../audit.html"), "es", "article")
    assert numbers.u("tpot") == '<a class="number" href="../audit.html#number.tpot" id="number.tpot">7,6\u202fms</a>'
    assert numbers.u("tpot") == '<a class="number" href="../audit.html#number.tpot">7,6\u202fms</a>'  # an id stands once
    assert ">1</a>" in numbers.n("by", "a_1 & b").__html__()


def test_the_article_must_use_its_own_numbers_and_may_use_all() -> None:
    numbers = Numbers(content(), Html(), "en", "article")
    numbers.n("growth")
    assert numbers.unused() == ["stools"]
    with pytest.raises(RenderError, match=r"never used in article: stools; use or delete them$"):
        numbers.refuse_unused("article")
    numbers.n("stools")
    numbers.refuse_unused("article")
