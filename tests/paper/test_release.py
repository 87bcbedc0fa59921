"""A release is one archive, the same bytes from the same commit, in which every file is what its description says."""

import hashlib
import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

import spillway
from spillway.paper.format import LANGUAGES
from spillway.paper.markup import Latex
from spillway.paper.numbers import evaluate
from spillway.paper.release import BUILT, ReleaseError, release
from spillway.paper.view import Numbers
from spillway.record.provenance import commit
from tests import mini_project

pytestmark = pytest.mark.workflow
VERSION = spillway.__version__
IGNORED = "/build/\n/paper.pdf\n/article/\n/audit.html\n/.snakemake/\n/runs/\n"
CITATION = f'title: A small project\nversion: {VERSION}\nauthors:\n  - name: "The developers"\n'
# Where the files lie there is nothing to be done; one that is older than its input is stale.
SNAKEFILE = """rule all:
    input: "paper.pdf", "audit.html"

rule paper:
    input: "paper/paper.en.tex.j2"
    output: "paper.pdf"
    shell: "exit 1"
"""


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The small project as one commit, with a build of it."""
    root = tmp_path / "mini"
    mini_project.make(root)
    files = {"CITATION.cff": CITATION, ".gitignore": IGNORED, "LICENSE": "x", "CHANGELOG.md": "x", "Snakefile": SNAKEFILE}
    files |= {f"paper/article/{code}.yaml": "language: {words: [0, 1, 2, 3]}\nnames: {}\n" for code in LANGUAGES}
    (root / "paper/article").mkdir()
    for name, text in files.items():
        (root / name).write_text(text)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "all")
    make_build(root)
    return root


def make_build(root: Path) -> None:
    content = evaluate(root, "cpu")
    build = root / "build/cpu"
    (build / "paper").mkdir(parents=True, exist_ok=True)
    (build / "numbers.json").write_text(content.to_json())
    (build / "paper/paper.tex").write_text(f"{commit(root)} {Numbers(content, Latex(), 'en', 'paper').u('rate')}")
    for name in BUILT:
        inside = build / ("paper/paper.pdf" if name == "paper.pdf" else name)
        for path in (inside, root / name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} of {commit(root)}")


def contents(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as packed:
        assert packed.testzip() is None
        return {name.split("/", 1)[1]: packed.read(name) for name in packed.namelist()}


def test_every_file_is_described_and_is_what_its_description_says(built: Path) -> None:
    files = contents(release(built, VERSION, "cpu", built / "build/release"))
    described = json.loads(files.pop("ro-crate-metadata.json"))["@graph"]
    sums = dict(reversed(line.split("  ")) for line in files.pop("SHA256SUMS").decode().splitlines())
    entities = {unquote(entity["@id"]): entity for entity in described if entity["@type"] == "File"}
    assert set(entities) == set(files)
    assert {*BUILT, "data/MANIFEST.csv", "data/cpu/e1_here.cells.parquet", "paper/numbers.yaml", "LICENSE"} <= set(files)
    for name, content in files.items():
        assert entities[name]["sha256"] == sums[name] == hashlib.sha256(content).hexdigest()
        assert entities[name]["contentSize"] == str(len(content))


def test_same_commit_same_bytes_anywhere(built: Path, tmp_path: Path) -> None:
    first = release(built, VERSION, "cpu", built / "build/release").read_bytes()
    git(tmp_path, "clone", "-q", str(built), "clone")
    make_build(tmp_path / "clone")
    assert release(tmp_path / "clone", VERSION, "cpu", tmp_path / "out").read_bytes() == first


def edited(root: Path) -> None:
    (root / "CHANGELOG.md").write_text("y")


def committed(root: Path) -> None:
    edited(root)
    git(root, "commit", "-q", "-a", "-m", "more")


def wrong_number(root: Path) -> None:
    tex = root / "build/cpu/paper/paper.tex"
    tex.write_text(tex.read_text().replace("token/s", "tokens/s"))


def older_than_its_template(root: Path) -> None:
    # Snakemake asks for the times of files; this one is from long before the commit.

    os.utime(root / "paper.pdf", (1, 1))


@pytest.mark.parametrize(
    ("change", "version", "told"),
    [
        (edited, VERSION, r"the working tree differs from commit \w{12}: CHANGELOG\.md; commit or remove that first"),
        (lambda root: (root / "note").write_text("x"), VERSION, "the working tree differs .*: note;"),
        (committed, VERSION, r"paper\.tex: not of commit \w{12}; run: snakemake all"),
        (lambda root: (root / "article/es.html").unlink(), VERSION, r"article/es\.html: not built; run: snakemake all"),
        (lambda root: (root / "paper.pdf").write_text("of host h200"), VERSION, r"paper\.pdf: is not the one in build/cpu/"),
        (older_than_its_template, VERSION, r"the build is stale; run: snakemake all(.|\n)*Snakemake says"),
        (wrong_number, VERSION, r"the audit finds differences:\n.*paper\.tex: prints"),
        (edited, "9.9.9", rf"__init__\.py: says version {VERSION}; expected 9\.9\.9"),
    ],
)
def test_what_is_not_a_release_is_refused(built: Path, change: Callable[[Path], object], version: str, told: str) -> None:
    change(built)
    with pytest.raises(ReleaseError, match=told):
        release(built, version, "cpu", built / "build/release")
    assert not (built / "build/release").exists()
