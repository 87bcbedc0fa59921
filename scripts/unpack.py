"""Unpack a bundle of scripts/bundle on a host without a network: python3 unpack.py FOLDER

    python3 unpack.py FOLDER --check        only check the parts beside this file
    python3 unpack.py FOLDER --compiled FILE.tar   and lay what an earlier boot compiled where the engine looks for it

FOLDER becomes the project with its environments: FOLDER/.envs/harness and FOLDER/.envs/engine-cuda, which go on where this
interpreter's own packages end. Needs nothing but Python 3.10 or newer, and the packages that the bundle left to the host.
"""

import argparse
import hashlib
import importlib.metadata
import io
import json
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COMMANDS = {"snakemake": "snakemake.cli", "spillway": "spillway.cli"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="check the parts and unpack nothing")
    parser.add_argument("--compiled", type=Path, help="archive of caches, made from ~/.cache/vllm and ~/.triton")
    options = parser.parse_args()
    parts = checked_parts()
    note = json.loads((HERE / "bundle.json").read_text())
    check_host(note)
    if options.check:
        print(f"unpack: {len(parts)} parts are whole")
        return
    if options.folder.exists() and any(options.folder.iterdir()):
        sys.exit(f"unpack: {options.folder}: found files there; expected a folder that is new or empty")
    sites = options.folder / ".envs" / "sites"
    sites.mkdir(parents=True)
    with tarfile.open(fileobj=io.BufferedReader(Joined(parts), 1 << 20), mode="r|xz") as archive:
        archive.extractall(sites, filter="data")
    for path in (sites / "project").iterdir():
        path.rename(options.folder / path.name)
    (sites / "project").rmdir()
    for name in note["needs"]:
        make_environment(options.folder, name, sites / name)
    if options.compiled is not None:
        with tarfile.open(options.compiled) as archive:
            archive.extractall(Path.home(), filter="data")
    print(f"unpack: commit {note['commit'][:12]} in {options.folder}; measure there with .envs/harness/bin/snakemake")


def check_host(note: dict[str, Any]) -> None:
    """End the program unless this interpreter is of the bundle's version and has what the bundle left to the host."""
    if note["python"] != list(sys.version_info[:2]):
        found, expected = ".".join(map(str, sys.version_info[:2])), ".".join(map(str, note["python"]))
        sys.exit(f"unpack: this is Python {found}, the bundle is for {expected}; start unpack.py with that one")
    for name, needs in note["needs"].items():
        if missing := [package for package in needs if not installed(package)]:
            sys.exit(f"unpack: {name} needs packages of this host that it does not have: {', '.join(missing)}")


def checked_parts() -> list[Path]:
    """The parts beside this file in order; ends the program if one is missing or not what its checksum says."""
    parts = []
    for line in (HERE / "SHA256SUMS").read_text().splitlines():
        expected, name = line.split()
        path = HERE / name
        if not path.is_file():
            sys.exit(f"unpack: {path}: no such part; bring it along")
        with path.open("rb") as file:
            found = hashlib.sha256()
            while block := file.read(1 << 20):
                found.update(block)
        if found.hexdigest() != expected:
            sys.exit(f"unpack: {path}: its SHA-256 is {found.hexdigest()[:12]}..., expected {expected[:12]}...; bring it again")
        parts += [path] if name.startswith("part") else []
    return parts


class Joined(io.RawIOBase):
    """The parts, one after another, as one stream."""

    def __init__(self, paths: list[Path]) -> None:
        self.files = [path.open("rb") for path in paths]

    def readable(self) -> bool:
        return True

    def readinto(self, target) -> int:  # type: ignore[no-untyped-def]
        while self.files:
            if count := self.files[0].readinto(target):
                return count
            self.files.pop(0).close()
        return 0


def installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def make_environment(project: Path, name: str, site: Path) -> None:
    """A virtual environment that finds the bundle's packages first, then the project, then this interpreter's own."""
    folder = (project / ".envs" / name).resolve()
    venv.create(folder, with_pip=False, symlinks=True)
    library = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    paths = [site.resolve(), *([(project / "workflow").resolve()] if name == "harness" else []), sysconfig.get_path("purelib")]
    (library / "bundle.pth").write_text("".join(f"{path}\n" for path in paths))
    if name == "harness":
        for command, module in COMMANDS.items():
            script = folder / "bin" / command
            script.write_text(f"#!{folder}/bin/python\nfrom {module} import main\n\nmain()\n")
            script.chmod(0o755)
    (folder / ".ready").touch()


if __name__ == "__main__":
    main()
