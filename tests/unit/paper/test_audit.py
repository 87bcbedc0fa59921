"""The audit finds every difference between data, manifest, numbers and printed texts, and says which."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spillway.paper.audit import audit
from spillway.paper.markup import Html, Latex
from spillway.paper.numbers import evaluate
from spillway.paper.view import Numbers
from tests.mini_project import cells, record

BUILT = Path("build/cpu")
NUMBERS = BUILT / "numbers.json"
TEX = BUILT / "paper/paper.tex"
SPANISH = BUILT / "article/es.html"
DATA = Path("data/cpu/e1_here.cells.parquet")
WORDS = {"en": "[zero, one, two, three]", "es": "[cero, uno, dos, tres]"}


@pytest.fixture
def built(mini: Path) -> Path:
    """The project with its numbers, a paper and an article in two languages as they would be rendered."""
    content = evaluate(mini, "cpu")
    for file in (NUMBERS, TEX, SPANISH):
        (mini / file).parent.mkdir(parents=True, exist_ok=True)
    (mini / NUMBERS).write_text(content.to_json())
    paper = Numbers(content, Latex(), "en", "paper")
    (mini / TEX).write_text(f"{paper.u('rate')}, {paper.n('rate.by', '', '4')}, {paper.u('ok_share')}, {paper.n('engine')}")
    (mini / "paper/article").mkdir()
    for language, words in WORDS.items():
        names = "names: {vLLM 0.32.0: vLLM}"
        (mini / f"paper/article/{language}.yaml").write_text(f"language: {{words: {words}}}\nother: x\n{names}\n")
        article = Numbers(content, Html("../audit.html"), language, "article")
        level = article.n("rate.by", "", "4").replace(">28<", ">4<").replace('"number"', '"number name"')
        page = (
            f"<p>{article.u('rate')} {article.n('requests')} {article.n('engine').replace('vLLM 0.32.0', 'vLLM')} {level}</p>"
        )
        (mini / BUILT / f"article/{language}.html").write_text(page)
    return mini


def test_a_build_as_it_should_be_has_no_difference(built: Path) -> None:
    report = audit(built, "cpu")
    assert report.faults == [] and report.notes == []
    assert (report.files, report.numbers) == (1, 9)
    assert report.printed == {TEX.as_posix(): 4, "build/cpu/article/en.html": 3, SPANISH.as_posix(): 3}


def test_what_is_not_built_is_said_and_is_no_difference(mini: Path) -> None:
    report = audit(mini, "cpu")
    assert report.faults == []
    assert [note.split(";")[0] for note in report.notes] == [
        "build/cpu/numbers.json is not built", "neither paper nor article is built",
    ]  # fmt: skip


def edit(file: Path | str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / file).read_text()
        assert old in text
        (root / file).write_text(text.replace(old, new, 1))

    return change


def rewrite_rows(root: Path) -> None:
    table = pq.read_table(root / DATA)
    pq.write_table(table.slice(0, 8), root / DATA)


def other_data(root: Path) -> None:
    """Measured and published anew after the build, as an interrupted build would leave it."""
    record(root, "e1_here", "cpu", cells=cells().assign(rate_tok_per_s=50.0))


MANIFEST = "data/MANIFEST.csv"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda root: (root / DATA).unlink(), [f"{DATA}: no such data file"]),
        (rewrite_rows, [f"{DATA}: SHA-256 is", "git checkout"]),
        (edit(MANIFEST, ",16,2026", ",17,2026"), [f"{DATA}: rows is 16, but MANIFEST.csv lists 17"]),
        (edit(MANIFEST, "c" * 40, "d" * 40), [f"{DATA}: commit is cccc", "MANIFEST.csv lists dddd"]),
        (edit(MANIFEST, "cpu/e1_here.cells", "cpu/e1_hear.cells"), ["e1_hear.cells.parquet: no such data file"]),
        (lambda root: (root / "data/cpu/e1_here.more.parquet").write_bytes((root / DATA).read_bytes()),
         ["data/cpu/e1_here.more.parquet: not listed in data/MANIFEST.csv"]),
        (edit("experiments/e1_here.yaml", "seed: 1", "seed: 2"), ["stale: measured for the specification", "measure anew"]),
        (edit(NUMBERS, '"value": 13.0', '"value": 13.5'),
         [f"{NUMBERS}: rate.least: value is 13.5", "computed from the data: 13.0"]),
        (edit(NUMBERS, '"en": "13.0"', '"en": "13.1"'), ["rate.least: texts is", "'en': '13.1'"]),
        (edit("paper/numbers.yaml", "engine:", "motor:"), [f"{NUMBERS}: holds engine", "lacks motor; build it anew"]),
        (other_data, [f"{NUMBERS}: rate: value is", "computed from the data: 50.0", f"{TEX}: prints"]),
        (edit(TEX, "token/s", "tokens/s"), [f"{TEX}: prints", "as number.rate; expected"]),
        (edit(SPANISH, ",", "."), [f"{SPANISH}: prints", "as number.rate; expected"]),
        (edit(SPANISH, ">16<", ">diecisiete<"), [f"{SPANISH}: prints 'diecisiete' as number.requests; expected '16'"]),
        (edit(SPANISH, ">4<", ">8<"), [f"{SPANISH}: prints '8' as in the name of number.rate.by--4, which it is not"]),
        (edit(TEX, "number.rate}", "number.rates}"), ["as number.rates, which is no number of numbers.json"]),
    ],
)  # fmt: skip
def test_each_difference_is_told(built: Path, change: Callable[[Path], None], told: list[str]) -> None:
    change(built)
    faults = "\n".join(audit(built, "cpu").faults).replace(f"{built}/", "")
    for words in told:
        assert words in faults


def test_words_and_names_of_the_language_are_known(built: Path) -> None:
    edit("paper/article/es.yaml", "[cero, uno, dos, tres]", "[cero, uno, dos, tres" + ", x" * 12 + ", dieciséis]")(built)
    edit("paper/article/en.yaml", "[zero, one, two, three]", "[zero, one, two, three" + ", x" * 12 + ", sixteen]")(built)
    edit(SPANISH, ">16<", ">dieciséis<")(built)
    assert audit(built, "cpu").faults == []
    edit(SPANISH, ">dieciséis<", ">sixteen<")(built)
    assert len(audit(built, "cpu").faults) == 1
