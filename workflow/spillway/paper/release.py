"""A release: paper, article, audit and data of one commit in one archive, with checksums and a description for machines.

    python -m spillway.paper.release VERSION [--host HOST] [--out FOLDER]

The same commit and build give the same bytes. Refused: a working tree with changes, a build that is absent, stale, of another
host or another commit, and anything that the audit finds.
"""

import argparse
import datetime
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

import spillway
from spillway.paper.audit import audit
from spillway.paper.crate import METADATA, Crate, Packed, describe
from spillway.paper.format import LANGUAGES
from spillway.record import manifest
from spillway.record.provenance import Commit, commit
from spillway.spec.read import SpecError, read
from spillway.spec.settings import SETTINGS, chosen_host

CHECKSUMS = "SHA256SUMS"
CITATION = Path("CITATION.cff")
BUILT = {
    "paper.pdf": "the paper",
    **{f"article/{language}.html": f"the article, language {language}" for language in LANGUAGES},
    "audit.html": "every number of paper and article down to its rows",
}
TAKEN = ["data", "experiments", "paper/numbers.yaml", "CHANGELOG.md", "CITATION.cff", "LICENSE"]  # of what git tracks


class ReleaseError(Exception):
    """Nothing is released; the message says why and what to do."""


class Author(BaseModel):
    """An author in CITATION.cff."""

    name: str


class Citation(BaseModel):
    """What a release needs of CITATION.cff."""

    title: str
    version: str
    authors: list[Author]


def release(root: Path, version: str, host: str, out: Path) -> Path:
    """Write `spillway-VERSION.zip` into a folder and return its path; raises ReleaseError or SpecError."""
    cited = read(Citation, root / CITATION)
    for where, found in (("workflow/spillway/__init__.py", spillway.__version__), (str(CITATION), cited.version)):
        if found != version:
            raise ReleaseError(f"{where}: says version {found}; expected {version}, the one to release")
    here = commit(root)
    _refuse_changes(root, here)
    _refuse_stale(root, host, here)
    if faults := audit(root, host).faults:
        raise ReleaseError("the audit finds differences:\n" + "\n".join(f"  {fault}" for fault in faults))
    contents = {name: (root / name).read_bytes() for name in sorted([*BUILT, *_tracked(root, TAKEN)])}
    files = [Packed(name, len(content), _sha256(content), _what(name)) for name, content in contents.items()]
    published = datetime.datetime.fromtimestamp(here.time_s, datetime.UTC)
    crate = Crate(
        title=cited.title,
        description=f"Paper, article and audit built from the data of host {host}, and the data of all hosts.",
        version=version,
        author=", ".join(author.name for author in cited.authors),
        published=published,
        commit=here.id,
    )
    contents[METADATA] = describe(crate, files, manifest.read_manifest(root / manifest.DATA)).encode()
    sums = [f"{_sha256(content)}  {name}\n" for name, content in sorted(contents.items())]
    contents[CHECKSUMS] = "".join(sums).encode()
    out.mkdir(parents=True, exist_ok=True)
    archive = out / f"spillway-{version}.zip"
    _zip(archive, f"spillway-{version}", contents, published)
    return archive


def _refuse_changes(root: Path, here: Commit) -> None:
    if here.id == "unknown":
        raise ReleaseError(f"{root.resolve()}: no commit; a release names the commit that it is made from")
    if changed := _git(root, "status", "--porcelain").splitlines():
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        shown = ", ".join(line[3:] for line in changed[:5])
        raise ReleaseError(f"the working tree differs from commit {here.id[:12]}: {shown}{more}; commit or remove that first")


def _refuse_stale(root: Path, host: str, here: Commit) -> None:
    """Snakemake's own judgement, and then the pages' own words: they name the commit that they are of."""
    for name in BUILT:
        if not (root / name).is_file():
            raise ReleaseError(f"{name}: not built; run: snakemake all --config host={host}")
        inside = root / "build" / host / ("paper/paper.pdf" if name == "paper.pdf" else name)
        if not inside.is_file() or inside.read_bytes() != (root / name).read_bytes():
            raise ReleaseError(f"{name}: is not the one in build/{host}/; run: snakemake all --config host={host}")
    for inside in (root / "build" / host / "paper/paper.tex", root / "audit.html"):
        if str(here) not in inside.read_text(encoding="utf-8"):
            raise ReleaseError(f"{inside}: not of commit {here}; run: snakemake all --config host={host}")
    asked = [sys.executable, "-m", "snakemake", "--dry-run", "--config", f"host={host}", "--", "all"]
    dry = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False)
    said = dry.stdout + dry.stderr
    if dry.returncode != 0 or "Nothing to be done" not in said:
        why = "\n".join(said.splitlines()[-12:])
        raise ReleaseError(f"the build is stale; run: snakemake all --config host={host}\nSnakemake says:\n{why}")


def _tracked(root: Path, paths: Iterable[str]) -> list[str]:
    listed = _git(root, "ls-files", "-z", "--", *paths).split("\0")
    return [name for name in listed if name]


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def _what(name: str) -> str:
    if name in BUILT:
        return BUILT[name]
    folder = name.split("/")[0]
    return {"data": "recorded or published data", "experiments": "what was asked", "paper": "where numbers are defined"}.get(
        folder, "about this project"
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _zip(archive: Path, folder: str, contents: dict[str, bytes], time: datetime.datetime) -> None:
    """Names in order, the commit's time for all, plain rights: nothing of the machine or of the day gets in."""
    stamp = (time.year, time.month, time.day, time.hour, time.minute, time.second)
    temporary = archive.with_suffix(".part")
    with zipfile.ZipFile(temporary, "w") as packed:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(f"{folder}/{name}", stamp)
            entry.create_system, entry.external_attr, entry.compress_type = 3, 0o644 << 16, zipfile.ZIP_DEFLATED
            packed.writestr(entry, content, compresslevel=9)
    temporary.replace(archive)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("version", help="as workflow/spillway/__init__.py and CITATION.cff say, for example 0.1.0")
    parser.add_argument("--host", help=f"whose paper it is; default: the one in {SETTINGS}")
    parser.add_argument("--out", type=Path, default=Path("build/release"), help="folder of the archive")
    options = parser.parse_args()
    root = Path(".")
    try:
        host = chosen_host(root, options.host)
        if not re.fullmatch(r"\d+\.\d+\.\d+(\w+)?", options.version):
            raise ReleaseError(f"VERSION: found {options.version!r}; expected three numbers with dots, for example 0.1.0")
        archive = release(root, options.version, host, options.out)
    except (ReleaseError, SpecError) as error:
        sys.exit(f"release: {error}")
    print(f"{archive}: {archive.stat().st_size} bytes, SHA-256 {_sha256(archive.read_bytes())}")


if __name__ == "__main__":
    main()
