"""The PDF itself: complete, searchable, traceable, and the same bytes from the same inputs."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Project, copy_project

pytestmark = [pytest.mark.workflow, pytest.mark.latex]


def tool(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    for needed in ("latexmk", "pdftotext", "pdffonts"):
        if not shutil.which(needed):
            pytest.skip(f"{needed} is not installed: scripts/setup latex")
    project = copy_project(tmp_path_factory.mktemp("built") / "project")
    done = project.snakemake("paper.pdf")
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_every_number_is_printed_and_links_to_its_line(built: Project) -> None:
    tex = (built.root / "build/cpu/paper/paper.tex").read_text()
    links = set(re.findall(r"\\datum\{(number\.[^}]*)\}", tex))
    targets = set(re.findall(r"\\hypertarget\{(number\.[^}]*)\}", tex))
    numbers = json.loads((built.root / "build/cpu/numbers.json").read_text())["numbers"]
    assert links
    assert links <= targets
    assert len(targets) == sum(len(values) for values in numbers.values())


def test_text_is_complete_and_says_where_it_comes_from(built: Project) -> None:
    text = tool("pdftotext", "-layout", built.root / "paper.pdf", "-")
    commit = built.run("git", "rev-parse", "--short=12", "HEAD").stdout.strip()
    assert f"commit {commit}," in text
    assert "??" not in text
    assert "nan" not in text.lower().split()


def test_fonts_are_embedded_and_none_is_type_3(built: Project) -> None:
    fonts = tool("pdffonts", built.root / "paper.pdf").splitlines()[2:]
    assert any("TrueType" in line for line in fonts), "the figures' fonts"
    for line in fonts:
        assert "Type 3" not in line, line
        embedded = re.split(r"\s+", line.strip())[-5]
        assert embedded == "yes", line


def test_same_inputs_same_bytes(built: Project, tmp_path: Path) -> None:
    done = built.run("git", "clone", "-q", ".", str(tmp_path / "clone"))
    assert done.returncode == 0, done.stderr
    clone = Project(tmp_path / "clone")
    done = clone.snakemake("paper.pdf")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (clone.root / "paper.pdf").read_bytes() == (built.root / "paper.pdf").read_bytes()


def test_nothing_to_do_the_second_time(built: Project) -> None:
    done = built.snakemake("paper.pdf")
    assert "Nothing to be done" in done.stdout + done.stderr


def test_a_new_commit_is_printed(built: Project) -> None:
    """The PDF names the commit, so a commit alone must rebuild it, and an edit of code must show as dirty."""
    (built.root / "experiments/README.md").write_text("changed")
    done = built.snakemake("-n", "paper.pdf")
    assert "paper_tex" in done.stdout + done.stderr
