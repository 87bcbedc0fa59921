"""The paper's text for GPU hosts, typeset with numbers that are made up, since no data of such a host may be at hand."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Project, copy_project
from tests.paper.made_up import HOST, TITLE, make_up

pytestmark = [pytest.mark.workflow, pytest.mark.latex]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    for needed in ("latexmk", "pdftotext"):
        if not shutil.which(needed):
            pytest.skip(f"{needed} is not installed: scripts/setup latex")
    project = copy_project(tmp_path_factory.mktemp("made_up") / "project")
    make_up(project)
    done = project.snakemake("paper.pdf", "--config", f"host={HOST}")
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_every_section_has_its_measurements_and_says_that_they_are_made_up(built: Project) -> None:
    text = subprocess.run(["pdftotext", built.root / "paper.pdf", "-"], capture_output=True, text=True, check=True).stdout
    words = " ".join(text.split())
    assert TITLE in words
    for arm in ("uva", "prefetch", "whole layers", "coldest", "placed", "all in VRAM"):
        assert arm in words
    for said in (
        "The same bytes on the host: median TPOT",
        "wholly in GPU memory and placed",
        "Same host share, another choice",
        "The larger model on host",
        "uva, KV blocks of 64 failed with: server ended with 1",
        "No common block size",
        "decode of 4: 29.7 % cold",
        "671,026,419,200 parameters",
        "over the first",
        "235B without a plan: predicted to lack room for weights; found: weights",
        "as predicted for the plan that was served, and as measured",
        "No task was asked: trained weights that need placement could not be had",
        "e6_situations (GPU 1, counted from zero, of 2)",
        "For the situations, the server had GPU 1 (counted from zero) of a machine with 2, which other runs could share",
        "e6_situations: measured on some GPUs of a machine while the others were open to other runs",
        "No answer was judged on this host",
        "A/A, another boot and concurrency (the noise): the same likeliest successor for 87.5 % of the tokens",
        "placed against another start: bit for bit the same in every number and every token of all 6 texts",
        "bf16 again and bf16, the server bf16, placed is bit for bit the first",
        "block fp8: placed against unplaced: bit for bit the same in every number and every token of all 6 texts",
        "of the tokens, log-probabilities at most 7.125 nats apart, and 6 of the 6 texts continued otherwise",
        "proved their placement before they read anything",
    ):
        assert said in words
    assert "No GPU took part" not in words
    assert "1: no GPU, 128.0 GiB of memory each, driver no driver" in words
    assert "Not run: the largest model" not in words
    assert words.count("counted from zero") == 2, "one experiment of this host had a part of a machine"
    assert "??" not in words


def test_levels_of_agents_stand_in_their_order_and_not_in_the_files(built: Project) -> None:
    tex = (built.root / f"build/{HOST}/paper/paper.tex").read_text()
    levels = re.findall(r"^235B, 5 \\% cold & \\datum\{number\.agents\.streams[^}]*\}\{(\d)\}", tex, re.MULTILINE)
    assert levels == ["1", "2", "3", "4", "6", "8"]


def test_nothing_stands_out_of_the_margins(built: Project) -> None:
    log = (built.root / f"build/{HOST}/paper/paper.log").read_text(encoding="latin-1")
    assert re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log) == []


def test_every_link_has_its_line(built: Project) -> None:
    tex = Path(built.root / f"build/{HOST}/paper/paper.tex").read_text()
    assert set(re.findall(r"\\datum\{(number\.[^}]*)\}", tex)) <= set(re.findall(r"\\hypertarget\{(number\.[^}]*)\}", tex))


def test_placed_servers_that_agree_are_listed_with_their_bytes(built: Project) -> None:
    tex = (built.root / f"build/{HOST}/paper/paper.tex").read_text()
    (row,) = re.findall(r"^fp8, placed & (.*?) \\\\$", tex, re.MULTILINE)
    cells = [re.sub(r"\\datum\{[^}]*\}\{([^}]*)\}", r"\1", cell) for cell in row.split(" & ")]
    assert cells == ["random-moe-fp8", "24", "65", "151", "128"]
