"""Every test that SECURITY.md names exists, and every claim of its middle part names one."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) > 20
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert not test or test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (
            f"{file}::{test}"
        )


def test_every_claim_names_a_test() -> None:
    claims = re.search(r"## What is done\n(.*?)\n## ", TEXT, re.DOTALL)
    assert claims
    for paragraph in filter(None, claims[1].split("\n\n")):
        assert "`tests/" in paragraph, paragraph[:80]
