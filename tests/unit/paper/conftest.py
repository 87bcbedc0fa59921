"""A small project of its own for each test."""

from pathlib import Path

import pytest

from tests import mini_project


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    """Its root; see tests/mini_project.py."""
    mini_project.make(tmp_path / "mini")
    return tmp_path / "mini"
