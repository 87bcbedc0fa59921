"""Where code and data come from: the commit, whether the code folders were changed since, a new run's id."""

import datetime
import hashlib
import json
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

# Only what decides a measurement or a page. `data/`, `runs/` and `build/` are outputs of the project itself: with them in
# the list, every second run would call itself dirty.
CODE = ["Snakefile", "workflow", "experiments", "envs", "profiles", "scripts", "paper", "pyproject.toml"]
EXPORT = "EXPORTED.json"
"""File by which a folder of exported files, without git, knows its commit; see scripts/bundle."""


@dataclass(frozen=True)
class Commit:
    """The commit of a working tree: full hash, time in seconds since 1970, and whether its code folders differ from it."""

    id: str
    time_s: int
    dirty: bool

    def __str__(self) -> str:
        return self.id[:12] + ("-dirty" if self.dirty else "")


def commit(root: Path) -> Commit:
    """The commit of the project at `root`; `unknown` outside a repository and before its first commit.

    Files that `scripts/bundle` exported know theirs by a note, and count as changed if they are not what it says.
    """
    if (root / EXPORT).is_file():
        note = json.loads((root / EXPORT).read_text(encoding="utf-8"))
        return Commit(note["commit"], note["time_s"], _hash_of_code(root) != note["code_sha256"])
    head = _git(root, "log", "-1", "--format=%H %ct")
    top = _git(root, "rev-parse", "--show-toplevel")
    if not head or not top or Path(top).resolve() != root.resolve():
        return Commit("unknown", 0, True)
    identity, time_s = head.split()
    present = [name for name in CODE if (root / name).exists()]
    return Commit(identity, int(time_s), bool(_git(root, "status", "--porcelain", "--", *present)))


def export_note(here: Commit, folder: Path) -> dict[str, str | int]:
    """What a folder of exported files must know to stand for a commit: content of the file EXPORT there."""
    return {"commit": here.id, "time_s": here.time_s, "code_sha256": _hash_of_code(folder)}


def _hash_of_code(root: Path) -> str:
    """SHA-256 over the files in CODE, without what Python and editors leave beside them."""
    digest = hashlib.sha256()
    for name in CODE:
        files = [root / name] if (root / name).is_file() else (root / name).rglob("*")
        for path in sorted(path for path in files if path.is_file() and not _is_by_product(path)):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _is_by_product(path: Path) -> bool:
    return "__pycache__" in path.parts or any(part.endswith(".egg-info") for part in path.parts)


def code_hash() -> str:
    """SHA-256 over the library's own source files: what a commit and `dirty` leave open."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


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
