"""Builds that must fail, one for each way in which a number can be wrong, each with a message that a person understands.

The steps are those that the workflow runs, called as it calls them, on a small project; a few go through Snakemake itself.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spillway.paper import numbers, render
from tests import mini_project
from tests.conftest import Project
from tests.mini_project import cells, record, redefine

DATA = "data/cpu/e1_here.cells.parquet"
TEMPLATE = "paper/paper.en.tex.j2"
FIGURES = "workflow/spillway/paper/figures.py"
MANIFEST = "data/MANIFEST.csv"


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small project, in which the steps run."""
    mini_project.make(tmp_path / "mini")
    monkeypatch.chdir(tmp_path / "mini")
    return tmp_path / "mini"


def build(monkeypatch: pytest.MonkeyPatch) -> str:
    """The steps before LaTeX in the current folder; returns what stopped them, or nothing."""
    steps: list[tuple[Callable[[], None], list[str]]] = [
        (numbers.main, ["--host", "cpu", "--out", "build/numbers.json"]),
        (render.main, ["--numbers", "build/numbers.json", "--template", TEMPLATE, "--out", "build/paper.tex"]),
    ]
    for step, arguments in steps:
        monkeypatch.setattr(sys, "argv", ["step", *arguments])
        try:
            step()
        except SystemExit as stopped:
            return str(stopped.code)
    return ""


def edit(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / file).read_text()
        assert old in text, f"{file} does not hold {old!r}"
        (root / file).write_text(text.replace(old, new, 1))

    return change


def measured(**columns: object) -> Callable[[Path], None]:
    """Publish other rows, as a measurement would that went wrong."""
    return lambda root: record(root, "e1_here", "cpu", cells=cells().assign(**columns))


def defined(key: str, definition: str) -> Callable[[Path], None]:
    return lambda root: redefine(root, key, definition)


def tampered(root: Path) -> None:
    """Faster rows in the file, without a word to the manifest."""
    csv = (root / MANIFEST).read_text()
    measured(rate_tok_per_s=1000.0)(root)
    (root / MANIFEST).write_text(csv)


def text(added: str) -> Callable[[Path], None]:
    return edit(TEMPLATE, r"\section{Speed}", added + r"\section{Speed}")


RATE = "{file: e1_here.cells, where: {outcome: ok}, column: rate_tok_per_s, statistic: median, unit: token/s"
FAULTS: list[tuple[str, Callable[[Path], None], list[str]]] = [
    ("file absent", lambda root: (root / DATA).unlink(), ["rate", f"{DATA}: no such data file; `git checkout"]),
    ("manifest absent", lambda root: (root / MANIFEST).unlink(), [f"{MANIFEST}: no such file"]),
    ("file damaged", lambda root: (root / DATA).write_bytes(b"PAR1"), [f"{DATA}: SHA-256 is", MANIFEST]),
    ("file tampered with", tampered, [f"{DATA}: SHA-256 is", "the file was changed"]),
    ("manifest disagrees", edit(MANIFEST, "cpu/e1_here.cells.parquet,", "cpu/e1_here.cells.parquet,0"),
     [f"{DATA}: SHA-256 is", f"{MANIFEST} lists 0"]),
    ("manifest lists a file twice", lambda root: (root / MANIFEST).write_text((root / MANIFEST).read_text() * 2),
     [f"{MANIFEST}: lists", "twice"]),
    ("file stale", edit("experiments/e1_here.yaml", "seed: 1", "seed: 2"),
     [f"{DATA}: stale", "snakemake e1_here --config host=cpu", "undo the edit"]),
    ("experiment no longer run", edit("experiments/e1_here.yaml", "cpu: {seed: 1, q_days: 5, q_day_cv: 0.3}",
     'cpu: {not_run: "It is switched off."}'), [TEMPLATE, "'rate': experiment e1_here is not run on host cpu", "guard it"]),
    ("not guarded", edit(TEMPLATE, "if measured('e2_gpu') ", "if 1 == 1 "),
     [f"{TEMPLATE}:5", "'gone': experiment e2_gpu is not run on host cpu", "guard it with measured('e2_gpu')"]),
    ("number missing", edit("paper/numbers.yaml", "rate.least:", "rate.last:"),
     [f"{TEMPLATE}:4: undefined number 'rate.least'", "did you mean rate.last"]),
    ("column missing", defined("rate.least", "{file: e1_here.cells, column: ttft_ms, statistic: max}"),
     ["rate.least: column 'ttft_ms' is not in", DATA, "it has: boot, streams"]),
    ("no column to filter", defined("rate.least", "{file: e1_here.cells, where: {model: nemo}, statistic: count}"),
     ["rate.least: column 'model' is not in", DATA]),
    ("filter without rows", defined("rate.least", "{file: e1_here.cells, where: {streams: 17}, statistic: count}"),
     ["rate.least", DATA, "no row of it has streams = 17; there: 1, 4"]),
    ("not a number", measured(rate_tok_per_s=float("nan")), ["rate", DATA, "15 of 15 rows have no rate_tok_per_s; leave them"]),
    ("infinite", measured(rate_tok_per_s=float("inf")), ["rate", DATA, "is inf; expected a finite number"]),
    ("unit that does not convert", defined("rate.least", "{file: e1_here.cells, column: ttft_s, statistic: max, unit: GiB}"),
     ["rate.least: unit: found 'GiB' for 'ttft_s'; expected one of: s, ms"]),
    ("unused", defined("idle", "{file: e1_here.cells, where: {streams: 4}, statistic: count}"),
     ["defined and never used in", TEMPLATE, "idle; use or delete them"]),
    ("one key twice", edit("paper/numbers.yaml", "rate:", "rate: {ratio: [ok, requests]}\nrate:"),
     ["paper/numbers.yaml", "'rate' stands twice"]),
    ("one definition twice", defined("speed", RATE + ", decimals: 1}"), ["rate and speed: found one definition under two"]),
    ("one value, two roundings", defined("speed", RATE + "}"), ["rate and speed", "printed with 0 and with 1 decimals"]),
    ("one value, two roundings, other filter",
     defined("speed", "{file: e1_here.cells, where: {outcome: ok, streams: 1}, column: ttft_s, statistic: max, unit: ms}"),
     ["rate.least and speed are one value of", "printed as 13.0 and as 13; give both the same decimals"]),
    ("unknown key", edit("paper/numbers.yaml", "statistic: median", "statistics: median"),
     ["rate.statistics", "did you mean statistic?"]),
    ("typed in the text", text("It takes 7.6 ms."), [f"{TEMPLATE}:1: the number '7.6' is typed into the text"]),
    ("typed in a caption", edit(TEMPLATE, r"\caption{Medians", r"\caption{12 medians"), [f"{TEMPLATE}:2", "'12' is typed"]),
    ("typed as a literal", text(r"\VAR{ '7.6' }"), ["'7.6"]),
    ("typed beside a number", text(r"\VAR{ n('rate') ~ (' of 9') }"), ["'9' is typed"]),
    ("typed into a figure", edit(FIGURES, "streams at work", "streams, at most 4"),
     [f"{FIGURES}:3: the number '4' is typed into a figure; take it from the data"]),
    ("drawn from no data", edit(FIGURES, "    axes.set", "    axes.axhline(59)\n    axes.set"),
     [f"{FIGURES}:3: the number '59' is typed into a figure"]),
    ("default for a missing number", text(r"\VAR{ comit|default('-') }"), [TEMPLATE, "default"]),
    ("misspelt variable", text(r"\VAR{ comit }"), [f"{TEMPLATE}:1: 'comit' is undefined"]),
    ("experiment misspelt", text(r"\VAR{ why_not('e2_gpus') }"), ["no such experiment", "did you mean e2_gpu?"]),
    ("of the article alone", text(r"\VAR{ n('requests') }"), ["'requests': paper/numbers.yaml says only_in: article"]),
]  # fmt: skip


@pytest.mark.parametrize(("break_it", "told"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_build_fails_and_says_why(
    mini: Path, monkeypatch: pytest.MonkeyPatch, break_it: Callable[[Path], None], told: list[str]
) -> None:
    break_it(mini)
    said = build(monkeypatch)
    assert said.startswith("spillway: ")
    for words in told:
        assert words in said, said


def test_without_a_fault_the_same_build_succeeds(mini: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build(monkeypatch) == ""
    assert mini_project.REASON in (mini / "build/paper.tex").read_text()


def test_a_percentile_of_too_few_samples_says_so_in_its_place(mini: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redefine(mini, "rate", RATE.replace("median", "p95") + "}")
    assert build(monkeypatch) == ""
    assert r"\datum{number.rate}{too few samples (15)}" in (mini / "build/paper.tex").read_text()


@pytest.mark.workflow
@pytest.mark.parametrize("target", ["audit", "article"])
def test_snakemake_shows_the_message(project: Project, target: str) -> None:
    project.edit("experiments/e4_ttft_context.yaml", "seed: 4", "seed: 5")
    done = project.snakemake(target)
    assert done.returncode != 0
    assert "stale: measured for the specification" in done.stdout + done.stderr


@pytest.mark.workflow
@pytest.mark.parametrize("target", ["paper.pdf", "audit", "article", "all"])
def test_a_missing_data_file_stops_every_target_by_its_name(project: Project, target: str) -> None:
    (project.root / "data/cpu/e4_ttft_context.requests.parquet").unlink()
    done = project.snakemake("-n", target)
    assert done.returncode != 0
    assert "data/cpu/e4_ttft_context.requests.parquet" in done.stdout + done.stderr


@pytest.mark.workflow
@pytest.mark.latex
def test_an_undefined_reference_fails(project: Project) -> None:
    if not shutil.which("latexmk"):
        pytest.skip("latexmk is not installed: scripts/setup latex")
    project.edit(TEMPLATE, r"\cref{sec:placement}", r"\cref{sec:placement-typo}")
    done = project.snakemake("paper.pdf")
    assert done.returncode != 0
    assert "sec:placement-typo" in done.stdout + done.stderr
    assert not Path(project.root / "paper.pdf").exists()
