"""What the paper says of the model of the article's scale: what was not run, and what was, on one of its hosts or on both."""

import shutil
import statistics
from pathlib import Path

import pytest

from spillway.paper.content import Content
from spillway.paper.numbers import evaluate
from spillway.paper.render import render
from spillway.record import parquet
from tests.conftest import Project, copy_project
from tests.paper.made_up import LARGEST, record_largest

FOUR, EIGHT = LARGEST


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = copy_project(tmp_path_factory.mktemp("largest") / "project")
    for host in LARGEST:
        shutil.rmtree(project.root / "data" / host, ignore_errors=True)
    return project


@pytest.fixture
def project(copied: Project, tmp_path: Path) -> Project:
    """A copy without data of the two hosts."""
    shutil.copytree(copied.root, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project")


def section(project: Project) -> tuple[Content, str]:
    """The numbers of host `cpu`, and the text on the largest model in its paper, on one line."""
    content = evaluate(project.root, "cpu")
    known = {"commit": "c", "data_hash": "d", "host": "cpu"}
    text = render(project.root / "paper/paper.en.tex.j2", content, known)
    begin = text.index(r"\head{At the article's scale.}")
    return content, " ".join(text[begin : text.index(r"\head{Meaning.}", begin)].split())


def test_without_data_it_says_that_nothing_was_run_and_where_it_would_be_and_what_is_predicted(project: Project) -> None:
    content, text = section(project)
    for said in (
        "{671,026,419,200} parameters",
        "{four NVIDIA H200 of one machine}",
        "{eight NVIDIA H200 of one machine}",
        r"\textbf{Not run:} the largest model placed on host \texttt{h200x4} (not recorded on host h200x4 yet) and wholly in "
        r"GPU memory on host \texttt{h200x8} (not recorded on host h200x8 yet).",
        r"The memory of this model was not measured on host \texttt{h200x4}: not recorded",
        r"The memory of this model was not measured on host \texttt{h200x8}: not recorded",
        "{37.7\\,\\%}",
    ):
        assert said in text, said
    assert "tab:large}" not in text and "tab:largememory}" not in text
    assert content.left_out["large.cold"] == (EIGHT, "e9_all_in_vram")
    fits = {value.parts: value.value for value in content.numbers["large.outcome"]}
    assert fits[FOUR, "nothing on the host"] == "weights" and fits[EIGHT, "nothing on the host"] == "fits"


def test_with_data_of_one_host_it_prints_them_and_says_that_the_other_was_not_run(project: Project) -> None:
    record_largest(project, FOUR)
    _, text = section(project)
    assert r"\textbf{Not run:} the largest model wholly in GPU memory on host \texttt{h200x8} (not recorded" in text
    assert r"not measured on host \texttt{h200x8}" in text and r"not measured on host \texttt{h200x4}" not in text
    rows = text[text.index("tab:large}") :].split(r"\\")
    (cell,) = (row for row in rows if "large.four.cold--agents-streams-8}" in row)
    assert cell.rstrip().endswith("} & -- & --")


def test_with_data_of_both_each_cell_has_the_ratio_of_its_speeds(project: Project) -> None:
    for host in LARGEST:
        record_largest(project, host)
    content, text = section(project)
    assert "Not run" not in text and "not measured on" not in text
    speeds = {}
    for host, arm in ((FOUR, "placed"), (EIGHT, "all in VRAM")):
        for row in parquet.read_rows(project.root / f"data/{host}/e9_all_in_vram.requests.parquet"):
            share = "cold" if row["arm"] == f"{arm}, 5 % cold" else "uniform"
            speeds.setdefault((host, share, row["cell"]), []).append(row["rate_tok_per_s"])
    cells = {cell for _, _, cell in speeds}
    assert len(cells) == 10
    for share in ("cold", "uniform"):
        ratios = {value.parts: value for value in content.numbers[f"large.{share}"]}
        assert set(ratios) == {(cell,) for cell in cells}
        for cell in cells:
            four, eight = (statistics.median(speeds[host, share, cell]) for host in LARGEST)
            assert ratios[cell,].value == pytest.approx(eight / four)
            assert rf"\datum{{{ratios[cell,].anchor}}}" in text
    predicted = {value.group: value.texts["en"] for value in content.numbers["large.four.predicted"]}
    assert predicted == {"all weights": "118.20", "KV cache": "9.00", "placed experts": "94.10"}
    for component, amount in predicted.items():
        assert f"{component} & \\datum{{number.large.four.predicted--{component.replace(' ', '-')}}}{{{amount}}}" in text
