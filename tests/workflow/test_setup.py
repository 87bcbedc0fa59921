"""The set-up of an engine of which no package index has every part: it says what is missing, and takes no other for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# An environment whose pip installs nothing and whose Python is this one, with what the test lays beside it.
PYTHON = f"""#!/bin/sh
case "$*" in
    *"-m pip"* | *"import pip"*) exit 0 ;;
    *) PYTHONPATH="$(dirname "$0")/../built" exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup", tmp_path / "scripts/setup")
    (tmp_path / "envs").mkdir()
    shutil.copy(ROOT / "envs/engine-exl3.txt", tmp_path / "envs/engine-exl3.txt")
    for path in (tmp_path / ".envs/engine-exl3/bin/python", tmp_path / "path/python3.12"):
        path.parent.mkdir(parents=True)
        path.write_text(PYTHON)
        path.chmod(0o755)
    (tmp_path / ".envs/engine-exl3/built/vllm_exl3").mkdir(parents=True)
    return tmp_path


def set_up(project: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{project / 'path'}:{os.environ['PATH']}"}
    return subprocess.run(
        [project / "scripts/setup", "engine-exl3"], env=environment, capture_output=True, text=True, timeout=60
    )


def test_it_asks_for_what_must_be_built_and_for_the_patch_in_it(project):
    built, marker = project / ".envs/engine-exl3/built", project / ".envs/engine-exl3/.lock"
    shutil.rmtree(built / "vllm_exl3")
    first = set_up(project)
    assert first.returncode == 1 and not marker.exists()
    assert "no module exllamav3_ext" in first.stderr and "no module vllm_exl3" in first.stderr
    assert "envs/README.md" in first.stderr
    (built / "exllamav3_ext.py").touch()
    (built / "vllm_exl3").mkdir()
    (built / "vllm_exl3/__init__.py").touch()
    (built / "vllm_exl3/exl3.py").write_text("plain = True\n")
    unpatched = set_up(project)
    assert unpatched.returncode == 1 and "without the host-expert patch" in unpatched.stderr and not marker.exists()
    (built / "vllm_exl3/exl3.py").write_text('PLAN = os.environ.get("EXL3_HOST_EXPERTS", "")\n')
    done = set_up(project)
    assert done.returncode == 0, done.stderr
    assert "made in .envs/engine-exl3" in done.stdout and marker.exists()
    (built / "vllm_exl3/exl3.py").write_text("plain = True\n")
    assert set_up(project).returncode == 1 and not marker.exists()


def test_the_instructions_stand_where_the_message_says():
    text = (ROOT / "envs/README.md").read_text()
    assert "## The article's engine" in text and "vllm-exl3-host-dma.patch" in text
