"""What is built from recorded data: complete, searchable, traceable, the same bytes from the same inputs, and nothing twice."""

import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from spillway.paper.content import read_content
from spillway.spec.settings import chosen_host
from tests.conftest import ROOT, Project, copy_project

pytestmark = [pytest.mark.workflow, pytest.mark.latex]


def tool(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    for needed in ("latexmk", "pdftotext", "pdffonts"):
        if not shutil.which(needed):
            pytest.skip(f"{needed} is not installed: scripts/setup latex")
    project = copy_project(tmp_path_factory.mktemp("built") / "project")
    done = project.snakemake("all")
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_every_number_is_printed_and_links_to_its_line(built: Project) -> None:
    tex = (built.root / "build/cpu/paper/paper.tex").read_text()
    links = set(re.findall(r"\\datum\{(number\.[^}]*)\}", tex))
    targets = set(re.findall(r"\\hypertarget\{(number\.[^}]*)\}", tex))
    content = read_content(built.root / "build/cpu/numbers.json")
    assert links
    assert links <= targets
    assert targets == {
        value.anchor for key, values in content.numbers.items() if key not in content.only_in for value in values
    }


def test_appendix_and_audit_lead_to_each_other(built: Project) -> None:
    pdf, audit = tool("pdfinfo", "-dests", built.root / "paper.pdf"), (built.root / "audit.html").read_text()
    destinations = set(re.findall(r'"(number\.[^"]*)"', pdf))
    to_paper = set(re.findall(r'href="paper\.pdf#nameddest=(number\.[^"]*)"', audit))
    assert to_paper and to_paper <= destinations
    addresses = tool("pdfinfo", "-url", built.root / "paper.pdf")
    to_audit = set(re.findall(r"audit\.html#(number\.\S*)", addresses))
    assert to_audit == set(re.findall(r'<tbody [^>]*id="(number\.[^"]*)"', audit)) & destinations


def test_the_audit_of_the_build_finds_nothing(built: Project) -> None:
    done = built.run("spillway", "audit", "--host", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no difference" in done.stdout and "not compared" not in done.stdout


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
    done = built.snakemake("all")
    assert "Nothing to be done" in done.stdout + done.stderr


def test_one_changed_data_file_rebuilds_only_what_uses_it(built: Project) -> None:
    name = "cpu/e1_memory.memory.parquet"
    path, csv = built.root / "data" / name, built.root / "data/MANIFEST.csv"
    before = {file: file.read_bytes() for file in (path, csv)}
    try:
        pq.write_table(pq.read_table(path), path, compression="none")
        csv.write_text(csv.read_text().replace(sha256(before[path]).hexdigest(), sha256(path.read_bytes()).hexdigest()))
        done = built.snakemake("-n", "all")
    finally:
        for file, content in before.items():
            file.write_bytes(content)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    figures = yaml.safe_load((built.root / "paper/figures.yaml").read_text())
    using = {figure for figure, asked in figures.items() if "e1_memory.memory" in asked["files"]}
    redrawn = set(re.findall(r"output: build/cpu/figures/(\w+)\.pdf", said))
    assert redrawn and redrawn <= using
    for rule in ("numbers", "paper_tex", "article_pages", "audit_page"):
        assert f"rule {rule}:" in said


def test_a_new_commit_is_printed(built: Project) -> None:
    """The PDF names the commit, so a commit alone must rebuild it, and an edit of code must show as dirty."""
    (built.root / "experiments/README.md").write_text("changed")
    done = built.snakemake("-n", "paper.pdf")
    assert "paper_tex" in done.stdout + done.stderr


def test_the_edition_that_is_built_by_default_is_of_a_gpu_and_its_audit_finds_nothing(built: Project, tmp_path: Path) -> None:
    host = chosen_host(ROOT, None)
    project = copy_project(tmp_path / "project", host)
    done = project.snakemake("all")
    assert done.returncode == 0, done.stdout + done.stderr
    title = yaml.safe_load((ROOT / f"experiments/hosts/{host}.yaml").read_text())["title"]
    assert f"It is measured here on {title}" in " ".join(tool("pdftotext", project.root / "paper.pdf", "-").split())
    done = project.run("spillway", "audit")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"host {host}" in done.stdout and "no difference" in done.stdout and "not compared" not in done.stdout
