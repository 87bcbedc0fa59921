"""Where code and data come from: the commit, whether the code folders were changed since, a new run's id."""

import datetime
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

# Only what decides a measurement or a page. `data/`, `runs/` and `build/` are outputs of the project itself: with them in
# the list, every second run would call itself dirty.
CODE = ["Snakefile", "workflow", "experiments", "envs", "profiles", "scripts", "paper", "pyproject.toml"]


@dataclass(frozen=True)
class Commit:
    """The commit of a working tree: full hash, time in seconds since 1970, and whether its code folders differ from it."""

    id: str
    time_s: int
    dirty: bool

    def __str__(self) -> str:
        return self.id[:12] + ("-dirty" if self.dirty else "")


def commit(root: Path) -> Commit:
    """The commit of the project at `root`; outside a repository, or before its first commit, `unknown`."""
    head = _git(root, "log", "-1", "--format=%H %ct")
    top = _git(root, "rev-parse", "--show-toplevel")
    if not head or not top or Path(top).resolve() != root.resolve():
        return Commit("unknown", 0, True)
    identity, time_s = head.split()
    present = [name for name in CODE if (root / name).exists()]
    return Commit(identity, int(time_s), bool(_git(root, "status", "--porcelain", "--", *present)))


def new_run(now: datetime.datetime | None = None) -> str:
    """An id for a run: the time in UTC, so that folders sort by age, and four random bytes, so that no two are equal."""
    now = now or datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
