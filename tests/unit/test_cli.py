"""The command `spillway`."""

import signal
import sys

import pytest

from spillway import cli
from spillway.fit import command


def test_an_interrupted_command_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "main", interrupted)
    monkeypatch.setattr(sys, "argv", ["spillway", "fit"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 128 + signal.SIGINT
