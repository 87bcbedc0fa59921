"""`spillway explain` and `spillway audit` as commands: the host of the configuration, and messages instead of tracebacks."""

from pathlib import Path

import pytest

from spillway.paper import audit_command, explain_command
from tests.mini_project import REASON, cells, record


@pytest.fixture(autouse=True)
def inside(mini: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(mini)
    return mini


def test_a_number_down_to_rows_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_command.main(["rate.least", "ok_share"]) == 0
    said = capsys.readouterr().out
    for words in (
        "rate.least: 13.0\u202fms / 13,0\u202fms",
        "max of ttft_s over 8 rows where outcome = ok, streams = @min",
        "row 0     boot=0  outcome=ok  streams=1  ttft_s=0.01",
        "... and 3 more rows",
        "data/cpu/e1_here.cells.parquet  sha256",
        "experiment       e1_here",
        "weights          random",
        "routing          the model's own",
        "a ratio: `spillway explain ok requests` shows its parts",
    ):
        assert words in said, said


def test_one_group_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_command.main(["rate.by [4]"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("rate.by [4]: 28") and "[1]" not in said


def test_what_is_not_run_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_command.main(["gone"]) == 0
    assert f"gone: has no value: e2_gpu is not run on host cpu: {REASON}" in capsys.readouterr().out


def test_the_host_is_that_of_the_configuration(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(inside, "e2_gpu", "h200", cells=cells())
    (inside / "workflow/config.yaml").write_text("host: h200\n")
    assert explain_command.main(["gone"]) == 0
    assert "data/h200/e2_gpu.cells.parquet" in capsys.readouterr().out
    assert audit_command.main([]) == 0
    assert "of host h200, computed anew" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rate.lest"], "no number 'rate.lest' in paper/numbers.yaml; there are, for example: rate.least"),
        (["rate.by [5]"], "rate.by: no group '5'; there are: 1, 4"),
        (["rate", "--host", "h201"], "--host h201: no such host; there are: cpu"),
    ],
)
def test_what_does_not_exist_is_told(arguments: list[str], message: str) -> None:
    assert message in str(explain_command.main(arguments))


def test_the_audit_lists_every_difference(inside: Path) -> None:
    (inside / "data/cpu/e1_here.cells.parquet").write_bytes(b"PAR1")
    said = str(audit_command.main([]))
    assert said.startswith("\nspillway: 2 differences:\n  data/cpu/e1_here.cells.parquet: SHA-256 is")
    assert "--host nowhere: no such host" in str(audit_command.main(["--host", "nowhere"]))
