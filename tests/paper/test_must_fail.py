"""Builds that must fail, one for each way in which a number can be wrong, each with a message that a person understands."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.record import manifest, parquet
from tests.conftest import Project

pytestmark = pytest.mark.workflow
DATA = "data/cpu/e4_ttft_context.requests.parquet"
KEY = "ttft.longest:"
TEMPLATE = "paper/paper.en.tex.j2"


def build(project: Project) -> tuple[int, str]:
    """The two steps before LaTeX, by the commands that the workflow runs; returns the exit status and what was said."""
    numbers = project.run("python", "-m", "spillway.paper.numbers", "--host", "cpu", "--out", "build/cpu/numbers.json")
    if numbers.returncode != 0:
        return numbers.returncode, numbers.stdout + numbers.stderr
    rendered = project.run(
        "python", "-m", "spillway.paper.render", "--numbers", "build/cpu/numbers.json", "--template", TEMPLATE, "--out", "x.tex"
    )
    return rendered.returncode, rendered.stdout + rendered.stderr


def rewrite(project: Project, change: Callable[[pd.DataFrame], pd.DataFrame], listed: bool = True) -> None:
    """Change the rows of a data file; unless `listed`, the manifest does not learn of it."""
    path = project.root / DATA
    table = pq.read_table(path)
    changed = pa.Table.from_pandas(change(table.to_pandas()), preserve_index=False)
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path, compression="zstd")
    if listed:
        csv = project.root / "data" / manifest.MANIFEST
        old = manifest.read_manifest(csv.parent)[DATA.removeprefix("data/")]["sha256"]
        csv.write_text(csv.read_text().replace(old, parquet.sha256(path)))


def number(project: Project, old: str, new: str) -> None:
    """Change the definition of the number that all these tests break."""
    text = (project.root / "paper/numbers.yaml").read_text()
    start = text.index(KEY)
    end = text.index("\n", text.index("decimals", start))
    definition = text[start:end]
    assert old in definition
    (project.root / "paper/numbers.yaml").write_text(text[:start] + definition.replace(old, new) + text[end:])


def nothing(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(ttft_s=float("nan"))


FAULTS: list[tuple[str, Callable[[Project], None], list[str]]] = [
    ("file absent", lambda p: (p.root / DATA).unlink(), [DATA]),
    ("manifest absent", lambda p: (p.root / "data/MANIFEST.csv").unlink(), ["data/MANIFEST.csv"]),
    ("file damaged", lambda p: (p.root / DATA).write_bytes(b"PAR1"), [DATA, "SHA-256 is"]),
    ("rows changed", lambda p: rewrite(p, lambda f: f.assign(ttft_s=f.ttft_s / 2), listed=False), [DATA, "SHA-256 is"]),
    ("file stale", lambda p: p.edit("experiments/e4_ttft_context.yaml", "seed: 4", "seed: 5"),
     [DATA, "stale", "snakemake e4_ttft_context --config host=cpu"]),
    ("host changed", lambda p: p.edit("experiments/hosts/cpu.yaml", "dtype: bfloat16", "dtype: float32"), ["stale"]),
    ("number missing", lambda p: number(p, KEY, "ttft.long:"), [TEMPLATE, "undefined number 'ttft.longest'", "ttft.long"]),
    ("column missing", lambda p: number(p, "ttft_s", "ttft_ms"), ["ttft.longest", DATA, "column 'ttft_ms' is not in"]),
    ("no column to filter", lambda p: number(p, "outcome: ok", "model: nemo"), ["ttft.longest", DATA, "'model' is not in"]),
    ("filter without rows", lambda p: number(p, '"@max"', "17"), ["ttft.longest", DATA, "no row", "prompt_tokens = 17"]),
    ("not a number", lambda p: rewrite(p, nothing), ["ttft", DATA, "have no ttft_s"]),
    ("infinite", lambda p: rewrite(p, lambda f: f.assign(ttft_s=float("inf"))), ["ttft", DATA, "inf"]),
    ("unit that does not convert", lambda p: number(p, "unit: s", "unit: GiB"), ["ttft.longest", "found 'GiB'", "ms"]),
    ("unused", lambda p: p.edit("paper/numbers.yaml", KEY, "ttft.idle: {ratio: [ttft.longest, ttft.longest]}\n" + KEY),
     ["ttft.idle", "never used", TEMPLATE]),
    ("defined twice", lambda p: p.edit("paper/numbers.yaml", KEY, "tpot.shortest: {ratio: [a, b]}\n" + KEY),
     ["paper/numbers.yaml", "'tpot.shortest' stands twice"]),
    ("unknown key", lambda p: number(p, "statistic", "statistics"), ["ttft.longest.statistics", "did you mean statistic?"]),
    ("typed in the text", lambda p: p.edit(TEMPLATE, r"\section{Limits}", "It takes 7.6 ms.\n" + r"\section{Limits}"),
     [TEMPLATE, "'7.6' is typed into the text"]),
    ("typed in a caption", lambda p: p.edit(TEMPLATE, r"\caption{Weights by", r"\caption{12 weights"), [TEMPLATE, "'12'"]),
    ("typed as a literal", lambda p: p.edit(TEMPLATE, r"\section{Limits}", r"\VAR{ '7.6' }\section{Limits}"), ["'7.6"]),
    ("default for a missing number", lambda p: p.edit(TEMPLATE, r"\VAR{ commit }", r"\VAR{ comit|default('-') }"),
     [TEMPLATE, "default"]),
    ("misspelt variable", lambda p: p.edit(TEMPLATE, r"\VAR{ commit }", r"\VAR{ comit }"), [TEMPLATE, "'comit' is undefined"]),
]  # fmt: skip


@pytest.mark.parametrize(("break_it", "told"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_build_fails_and_says_why(project: Project, break_it: Callable[[Project], None], told: list[str]) -> None:
    break_it(project)
    status, said = build(project)
    assert status != 0
    for words in told:
        assert words in said, said[-3000:]
    assert "Traceback" not in said


def test_without_a_fault_the_same_build_succeeds(project: Project) -> None:
    status, said = build(project)
    assert status == 0, said


def test_a_percentile_of_too_few_samples_says_so_in_its_place(project: Project) -> None:
    number(project, "median", "p95")
    status, said = build(project)
    assert status == 0, said
    assert "too few samples (5)" in (project.root / "x.tex").read_text()


def test_snakemake_shows_the_message(project: Project) -> None:
    project.edit("experiments/e4_ttft_context.yaml", "seed: 4", "seed: 5")
    done = project.snakemake("paper.pdf")
    assert done.returncode != 0
    assert "stale" in done.stdout + done.stderr


@pytest.mark.latex
def test_an_undefined_reference_fails(project: Project) -> None:
    if not shutil.which("latexmk"):
        pytest.skip("latexmk is not installed: scripts/setup latex")
    project.edit(TEMPLATE, r"\cref{tab:context,fig:context}", r"\cref{tab:contexts}")
    done = project.snakemake("paper.pdf")
    assert done.returncode != 0
    assert "tab:contexts" in done.stdout + done.stderr
    assert not Path(project.root / "paper.pdf").exists()
