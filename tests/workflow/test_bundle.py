"""The offline bundle: what is packed arrives whole, with its commit, or the message says what is wrong."""

import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from spillway.record.provenance import commit
from tests.conftest import Project, copy_project

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(shutil.which("xz") is None, reason="no xz on this machine; scripts/bundle needs it"),
]


def write_wheel(folder: Path) -> Path:
    """A package `tiny` with one module, as a wheel."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", "answer = 42\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\n")
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the project, committed, with a lock of one small package and two that a host has, or has not."""
    folder = tmp_path_factory.mktemp("bundle")
    project = copy_project(folder / "project")
    wheel = write_wheel(folder)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = f"pytest==0 \\\n    --hash=sha256:{'0' * 64}\ntiny @ file://{wheel} \\\n    --hash=sha256:{digest}\n"
    (project.root / "envs/engine-tiny.txt").write_text(lock)
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@example.org"]
    for command in (["add", "-A"], [*identity, "commit", "-q", "-m", "lock"]):
        assert project.run("git", *command).returncode == 0
    return project


def pack(source: Project, out: Path, *options: str) -> str:
    done = source.run(sys.executable, "scripts/bundle", str(out), "--environment", "engine-tiny", *options)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def unpack(source: Project, bundle: Path, folder: Path) -> str:
    done = source.run(sys.executable, str(bundle / "unpack.py"), str(folder))
    return f"{done.returncode} {done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def bundle(source: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("parts") / "bundle"
    (source.root.parent / "have.txt").write_text("PyTest==8.1\nnumpy\n")
    said = pack(source, out, "--have", str(source.root.parent / "have.txt"), "--part-bytes", "400000")
    assert said.startswith("0 "), said
    return out


def test_what_is_unpacked_is_the_commit_and_imports_what_was_packed(source: Project, bundle: Path, tmp_path: Path) -> None:
    assert len(list(bundle.glob("part*"))) > 1
    said = unpack(source, bundle, tmp_path / "there")
    assert said.startswith("0 "), said
    there = Project(tmp_path / "there")
    python = str(there.root / ".envs/engine-tiny/bin/python")
    # The bundle's package, and behind it what the unpacking interpreter has itself.
    done = there.run(python, "-c", "import tiny, numpy; print(tiny.answer)", PYTHONPATH="")
    assert done.stdout == "42\n", done.stderr
    assert not (there.root / ".git").exists()
    assert commit(there.root) == commit(source.root) and not commit(source.root).dirty
    with (there.root / "experiments/e3_tpot_context.yaml").open("a") as file:
        file.write("# changed\n")
    assert commit(there.root).dirty


def test_a_bundle_of_uncommitted_files_is_refused(source: Project, tmp_path: Path) -> None:
    added = source.root / "workflow/new.py"
    added.touch()
    try:
        assert "1 bundle: the project differs from commit" in pack(source, tmp_path / "out")
    finally:
        added.unlink()


def test_a_hash_that_does_not_fit_ends_packing(source: Project, tmp_path: Path) -> None:
    # Without --have the package of the wrong hash is packed too.
    said = pack(source, tmp_path / "out")
    assert said.startswith("1 ") and "bundle: failed: " in said
    assert not (tmp_path / "out/unpack.py").exists()


def restate(parts: Path, changes: dict[str, object]) -> None:
    """Have the bundle say something else of itself, with the checksum that goes with it."""
    note = parts / "bundle.json"
    old = hashlib.sha256(note.read_bytes()).hexdigest()
    note.write_text(json.dumps(json.loads(note.read_text()) | changes))
    sums = parts / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(old, hashlib.sha256(note.read_bytes()).hexdigest()))


@pytest.mark.parametrize("fault", ["missing", "damaged", "not empty", "host lacks a package", "another Python"])
def test_what_is_not_whole_is_named(source: Project, bundle: Path, tmp_path: Path, fault: str) -> None:
    parts, there = tmp_path / "parts", tmp_path / "there"
    shutil.copytree(bundle, parts)
    expected = {
        "missing": "part001: no such part; bring it along",
        "damaged": "part001: its SHA-256 is",
        "not empty": "found files there; expected a folder that is new or empty",
        "host lacks a package": "engine-tiny needs packages of this host that it does not have: no-such-package",
        "another Python": "the bundle is for 2.7; start unpack.py with that one",
    }[fault]
    match fault:
        case "missing":
            (parts / "part001").unlink()
        case "damaged":
            content = bytearray((parts / "part001").read_bytes())
            content[1000] ^= 1
            (parts / "part001").write_bytes(content)
        case "not empty":
            there.mkdir()
            (there / "precious").touch()
        case "host lacks a package":
            restate(parts, {"needs": {"engine-tiny": ["pytest", "no-such-package"]}})
        case "another Python":
            restate(parts, {"python": [2, 7]})
    said = unpack(source, parts, there)
    assert said.startswith("1 ") and expected in said and "Traceback" not in said, said
