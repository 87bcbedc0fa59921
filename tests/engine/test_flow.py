"""The whole flow on real parts: stock vLLM on the CPU is launched, measured and recorded, and the paper prints its numbers."""

import json
import shutil
import subprocess

import pytest

from spillway.record import manifest, parquet
from tests.conftest import ROOT, Project

pytestmark = [pytest.mark.engine, pytest.mark.workflow, pytest.mark.latex, pytest.mark.timeout(600)]


def test_from_a_real_server_to_the_pdf(project: Project) -> None:
    engine = ROOT / ".envs/engine-cpu"
    if not (engine / "bin/python").exists():
        pytest.skip("no engine in .envs/engine-cpu: scripts/setup engine-cpu")
    if not shutil.which("latexmk"):
        pytest.skip("latexmk is not installed: scripts/setup latex")
    (project.root / ".envs").mkdir()
    (project.root / ".envs/engine-cpu").symlink_to(engine)
    (engine / ".ready").touch()
    project.edit("experiments/e3_tpot_context.yaml", "[256, 1024, 4096]", "[96, 192]")
    project.edit("experiments/e3_tpot_context.yaml", "output_tokens: 64", "output_tokens: 16")
    project.edit("experiments/e4_ttft_context.yaml", "[256, 1024, 4096]", "[96, 192]")
    for experiment in ("e3_tpot_context", "e4_ttft_context"):
        done = project.run("snakemake", experiment, timeout_s=250)
        assert done.returncode == 0, done.stdout + done.stderr

    listed = manifest.read_manifest(project.root / "data")
    path = manifest.verify(project.root / "data", "cpu/e3_tpot_context.requests.parquet", listed)
    assert parquet.provenance(path)["engine"] == "vLLM 0.32.0"
    rows = parquet.read(path)
    measured = rows[rows.phase == "measured"]
    assert (measured.outcome == "ok").all()
    assert set(measured.prompt_tokens) == {96, 192}
    assert (measured.output_tokens == 16).all()
    assert (measured.cached_tokens == 0).all(), "a prompt was answered from the cache"
    assert (measured.ttft_s > 0).all() and (measured.tpot_s > 0).all()

    done = project.snakemake("paper.pdf")
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = json.loads((project.root / "build/cpu/numbers.json").read_text())["numbers"]
    longest = measured[measured.prompt_tokens == 192].tpot_s.median() * 1000
    assert numbers["tpot.longest"][0]["value"] == pytest.approx(longest)
    text = subprocess.run(["pdftotext", project.root / "paper.pdf", "-"], capture_output=True, text=True, check=True).stdout
    assert numbers["tpot.longest"][0]["texts"]["en"] in text
