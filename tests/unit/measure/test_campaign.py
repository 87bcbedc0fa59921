"""An interrupted campaign leaves alone what it has measured, as long as that still is what it would measure."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spillway.engine.errors import ServerDied
from spillway.measure import campaign
from spillway.record import manifest, parquet
from spillway.spec.experiment import Resolved, resolve

ROOT = Path(__file__).parents[3]
EXPERIMENTS = ["e10_activity", "e11_seats"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two experiments, whose measurement is a row that says which run it is of."""
    for name in EXPERIMENTS:
        (tmp_path / "experiments").mkdir(exist_ok=True)
        shutil.copy2(ROOT / f"experiments/{name}.yaml", tmp_path / "experiments")
    shutil.copytree(ROOT / "experiments/hosts", tmp_path / "experiments/hosts")
    monkeypatch.delenv("SPILLWAY_RESUME", raising=False)
    return tmp_path


@pytest.fixture
def measured(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run a campaign whose experiment `dies` fails; returns what it measured."""

    def run(dies: str = "", anew: bool = False) -> list[str]:
        names: list[str] = []

        def measure(root: Path, name: str, host: str, log: object, anew: bool) -> list[Path]:
            if name == dies:
                raise ServerDied("the server died")
            names.append(name)
            asked = resolve(root, name, host)
            assert isinstance(asked, Resolved)
            runs = root / "runs" / host / name
            folder = runs / f"run{len(list(runs.iterdir())) if runs.exists() else 0}"
            origin = {"run": folder.name, "experiment": name, "host": host, "model": "none", "spec_hash": asked.hash,
                      "engine": "none", "environment_hash": "", "commit": "", "dirty": False, "measured_at": ""}  # fmt: skip
            row = {"run": folder.name, "boot": 0, "startup_s": 1.0, "health_s": 1.0, "process_memory_bytes": 1}
            parquet.write(folder / f"{name}.boots.parquet", "boots", [row], origin)
            return manifest.publish(folder, root / "data")

        monkeypatch.setattr(campaign, "measure", measure)
        try:
            campaign.measure_all(root, "cpu", io.StringIO(), anew)
        except ServerDied:
            assert dies
        return names

    return run


def test_it_goes_on_at_the_experiment_that_failed(measured, capsys: pytest.CaptureFixture[str]) -> None:
    assert measured(dies="e11_seats") == ["e10_activity"]
    assert measured(dies="e11_seats") == []
    assert measured() == ["e11_seats"]
    assert "e10_activity: measured by this campaign before it was interrupted (run run0)" in capsys.readouterr().err
    assert measured() == EXPERIMENTS, "one that came to its end is never continued"


def test_it_can_be_told_to_start_anew(measured, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(dies="e11_seats")
    assert measured(dies="e11_seats", anew=True) == ["e10_activity"]
    monkeypatch.setenv("SPILLWAY_RESUME", "never")
    assert measured() == EXPERIMENTS


@pytest.mark.parametrize("change", ["specification", "code", "another run published", "data deleted"])
def test_what_has_changed_since_is_measured_again(measured, root: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(dies="e11_seats")
    match change:
        case "specification":
            path = root / "experiments/e10_activity.yaml"
            text = path.read_text()
            assert "seed: " in text
            path.write_text(text.replace("seed: ", "seed: 1"))
        case "code":
            monkeypatch.setattr(campaign, "code_hash", lambda: "other")
        case "another run published":
            measured(dies="e11_seats", anew=True)
            path = root / "runs/cpu/e10_activity/run0"
            manifest.publish(path, root / "data")
        case "data deleted":
            shutil.rmtree(root / "data")
    assert measured() == EXPERIMENTS
