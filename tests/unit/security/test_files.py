"""Paths inside files that others made stay inside the folder that they are for."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from spillway.fit.checkpoint import Folder, stored_tensors
from spillway.fit.weights import FitError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "", ".hidden", "a\nb"])
def test_an_index_names_files_beside_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(FitError, match="expected files beside it"):
        stored_tensors(Folder(folder))


def members(kind: str) -> tarfile.TarInfo:
    """A member of an archive that would be written, or point, outside the folder."""
    member = tarfile.TarInfo({"parent": "../escaped", "absolute": "/tmp/spillway-escaped", "link": "project"}.get(kind, "x"))
    if kind == "link":
        member.type, member.linkname = tarfile.SYMTYPE, "/tmp"
    return member


@pytest.mark.parametrize("kind", ["parent", "absolute", "link"])
def test_a_bundle_cannot_leave_its_folder(tmp_path: Path, kind: str) -> None:
    import hashlib

    here = tmp_path / "bundle"
    here.mkdir()
    (here / "unpack.py").write_text((ROOT / "scripts" / "unpack.py").read_text(encoding="utf-8"))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        archive.addfile(members(kind), io.BytesIO())
    (here / "part00").write_bytes(stream.getvalue())
    (here / "bundle.json").write_text(json.dumps({"commit": "0" * 40, "python": list(sys.version_info[:2]), "needs": {}}))
    sums = [f"{hashlib.sha256((here / name).read_bytes()).hexdigest()}  {name}\n" for name in ("bundle.json", "part00")]
    (here / "SHA256SUMS").write_text("".join(sums))
    target = tmp_path / "target" / "project"
    done = subprocess.run([sys.executable, here / "unpack.py", target], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0, "a bundle without a project was taken for one"
    assert not Path("/tmp/spillway-escaped").exists() and not list(tmp_path.rglob("escaped"))
    assert not any(path.is_symlink() for path in target.rglob("*"))
