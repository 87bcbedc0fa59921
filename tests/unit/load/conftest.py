"""Makes the golden server and what these tests share importable by name, and the self-check of each cell quick."""

import sys
from pathlib import Path

import pytest

from spillway.load import delay

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]


@pytest.fixture(autouse=True)
def _quick_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many events, at a higher rate: the tests' cells are slow, and their self-checks would take longer than they."""
    monkeypatch.setattr(delay, "LONGEST_S", 0.5)
