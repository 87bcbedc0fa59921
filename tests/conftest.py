"""What several test folders share: the project's root and throw-away copies of it."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from spillway.spec.settings import SETTINGS

ROOT = Path(__file__).resolve().parent.parent

# In place of vLLM: answers what the workflow asks of the engine's interpreter, and serves the golden server.
FAKE_ENGINE = """#!/bin/sh
case "$*" in
    *vllm.entrypoints*) exec {python} {golden} {flags} "$@" ;;
    *) exec {python} "$@" ;;
esac
"""

NVML = ".envs/nvml"
FAKE_NVML = """
class NVMLError(Exception): pass
class NVMLError_LibraryNotFound(NVMLError): pass
class NVMLError_DriverNotLoaded(NVMLError): pass
class NVMLError_NotSupported(NVMLError): pass
class Memory: total, used = 1 << 30, 1 << 20

def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return "made up"
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(gpu): return {name!r}
def nvmlDeviceGetMemoryInfo(gpu): return Memory

def __getattr__(name):
    def refuse(*_): raise NVMLError_NotSupported(name)
    return 0 if name.startswith("NVML_") else refuse
"""


@dataclass(frozen=True)
class Project:
    """A throw-away copy of the project, a git repository of its own, in which commands run."""

    root: Path

    def run(self, *command: str, timeout_s: float = 100, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=self.root, env=self.environment(**environment), start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def snakemake(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("snakemake", *arguments, **environment)

    def environment(self, **changes: str) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SPILLWAY_", "PYTEST_"))}
        path = f"{Path(sys.executable).parent}:{own['PATH']}"
        # The copy, not the checkout that the tests run from; and what a test put in NVML's place.
        own |= {"PYTHONPATH": f"{self.root / 'workflow'}:{self.root / NVML}"}
        return own | {"PATH": path, "SPILLWAY_LOCK": str(self.root / "measuring.lock")} | changes

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        text = path.read_text()
        assert old in text, f"{file} does not hold {old!r}"
        path.write_text(text.replace(old, new))

    def fake_engine(self, *flags: str, program: str = "golden_server.py") -> None:
        """Put a program of tests/ in vLLM's place, with these flags before those of the launch."""
        python = self.root / ".envs/engine-cpu/bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(FAKE_ENGINE.format(python=sys.executable, golden=ROOT / "tests" / program, flags=" ".join(flags)))
        python.chmod(0o755)
        (self.root / ".envs/engine-cpu/.ready").touch()

    def fake_gpu(self, name: str) -> None:
        """Have this machine list one GPU of that name, which tells nothing else."""
        (self.root / NVML).mkdir(parents=True)
        (self.root / NVML / "pynvml.py").write_text(FAKE_NVML.format(name=name))


def copy_project(target: Path, host: str = "cpu") -> Project:
    """The files that git tracks or would track, as a clone with one commit; its default host is `host`, not the checkout's."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / SETTINGS).write_text(f"host: {host}\n", encoding="utf-8")
    project = Project(target)
    identity = {f"GIT_{who}_{what}": "tests@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "copy"]):
        done = project.run("git", *command, **identity)
        assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A fresh copy of the project, with nothing built."""
    return copy_project(tmp_path / "project")


@pytest.fixture(scope="session")
def numbers_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The numbers of the recorded data of host `cpu`, as the workflow makes them."""
    from spillway.paper.numbers import evaluate

    path = tmp_path_factory.mktemp("numbers") / "numbers.json"
    path.write_text(evaluate(ROOT, "cpu").to_json(), encoding="utf-8")
    return path
