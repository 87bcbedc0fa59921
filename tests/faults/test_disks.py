"""Disks that are full, read-only or not ours: nothing published is touched, and the message says what to do.

The mounts are real ones, in a mount namespace of the command's own, so nothing else on the machine sees them.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Project
from tests.faults.aftermath import assert_whole, gone, published, read_published
from tests.faults.conftest import CAMPAIGN, Fault
from tests.faults.test_kills import EXPERIMENT, MEASURE, assert_each_cell_once

NAMESPACE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]

FULL_DATA = """
mkdir {root}/was && cp -a {root}/data/. {root}/was/
mount -t tmpfs -o size=8m none {root}/data && cp -a {root}/was/. {root}/data/
head -c 8m /dev/zero > {root}/data/published/filling 2>/dev/null
"$@"; status=$?
rm {root}/data/published/filling && rm -r {root}/was && cp -a {root}/data {root}/was
exit $status
"""
FULL_RUNS = """
mkdir -p {root}/runs && mount -t tmpfs -o size={size} none {root}/runs
exec "$@"
"""
READ_ONLY = """
mkdir -p {root}/{folder} && mount --bind {root}/{folder} {root}/{folder} && mount -o remount,bind,ro {root}/{folder}
exec "$@"
"""


@pytest.fixture(scope="module")
def namespaces() -> None:
    probe = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no mount namespaces here: {probe.stderr.strip()}")


def run_with(project: Project, script: str) -> subprocess.CompletedProcess[str]:
    return project.run(*NAMESPACE, "sh", "-c", script, "sh", *MEASURE)


def assert_told(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr


def test_full_disk_under_the_data(small: Project, fault: Fault, namespaces: None) -> None:
    before = read_published(small)
    with fault("disk full: data/") as landed:
        done = run_with(small, FULL_DATA.format(root=small.root))
        landed()
        assert_told(done, "No space left on device", "make room", "spillway publish")
        assert gone(small)
        shutil.rmtree(small.root / "data")
        (small.root / "was").rename(small.root / "data")
        assert not assert_whole(small, before, EXPERIMENT)
        again = small.run(*MEASURE)
        assert again.returncode == 0, again.stderr
        assert "was measured and only has to be published" in again.stderr and "ready after" not in again.stderr
        assert "start" not in published(small, f"{EXPERIMENT}.cells").columns, "it was measured in one piece"
        assert assert_whole(small, before, EXPERIMENT)
        assert_each_cell_once(small)


@pytest.mark.parametrize("size", ["64k", pytest.param("8k", marks=CAMPAIGN)])
def test_full_disk_under_the_runs(small: Project, fault: Fault, namespaces: None, size: str) -> None:
    """8 KiB do not take the journal of a run, 64 KiB not all of its checkpoints."""
    before = read_published(small)
    with fault(f"disk full: runs/, after {size}B") as landed:
        done = run_with(small, FULL_RUNS.format(root=small.root, size=size))
        landed()
        assert_told(done, "No space left on device", "make room on that disk")
        assert gone(small) and not assert_whole(small, before, EXPERIMENT)
        again = small.run(*MEASURE)
        assert again.returncode == 0, again.stderr
        assert assert_whole(small, before, EXPERIMENT)


@pytest.mark.parametrize(
    ("folder", "message"),
    [("data", "nothing was measured"), pytest.param("runs", "mount it writable", marks=CAMPAIGN)],
)
def test_read_only_folder(small: Project, fault: Fault, namespaces: None, folder: str, message: str) -> None:
    before = read_published(small)
    with fault(f"read-only file system: {folder}/") as landed:
        done = run_with(small, READ_ONLY.format(root=small.root, folder=folder))
        landed()
        assert_told(done, "Read-only file system", message)
        assert not list(small.root.rglob("server.log")), "a server was started for data that nobody can keep"
        assert gone(small) and not assert_whole(small, before, EXPERIMENT)
        again = small.run(*MEASURE)
        assert again.returncode == 0, again.stderr


@contextlib.contextmanager
def not_writable(folder: Path) -> Iterator[None]:
    """Take away the right to write into a folder; root is held off by the immutable flag only."""
    lock, unlock = (["chattr", "+i"], ["chattr", "-i"]) if os.getuid() == 0 else (["chmod", "555"], ["chmod", "755"])
    done = subprocess.run([*lock, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this file system has no immutable flag, and permissions do not bind root: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run([*unlock, folder], check=True)


@pytest.mark.parametrize("folder", ["runs", pytest.param("data/cpu", marks=CAMPAIGN)])
def test_folder_without_permission(small: Project, fault: Fault, folder: str) -> None:
    before = read_published(small)
    (small.root / folder).mkdir(parents=True, exist_ok=True)
    with fault(f"no permission to write: {folder}/") as landed:
        with not_writable(small.root / folder):
            done = small.run(*MEASURE)
            landed()
        assert_told(done, "not permitted" if os.getuid() == 0 else "Permission denied", "write access")
        assert gone(small) and not assert_whole(small, before, EXPERIMENT)
        again = small.run(*MEASURE)
        assert again.returncode == 0, again.stderr
