"""docs/placement.md against the code: its variables and its commands exist."""

import re
import shlex
from pathlib import Path

import pytest

from spillway.placement import plan_command

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs/placement.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"spillway (plan [^\n`]+)", GUIDE)


def test_the_guide_has_every_variable_of_a_placed_server_and_no_other() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "workflow/spillway/placement").glob("*.py"))
    variables = set(re.findall(r' = "(SPILLWAY_\w+)"', code))
    assert variables == set(re.findall(r"SPILLWAY_\w+", GUIDE))


@pytest.mark.parametrize("line", [line for line in COMMANDS if "." in line])
def test_a_command_of_the_guide_is_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.rstrip(")").replace("MODEL_DIR", "model").replace(" N ", " 12 "))
    assert plan_command.main(words[1:]) == 1, "its files do not exist here"
    assert re.search(r"(counts|plan|start|model)\S*: no such", capsys.readouterr().err)
