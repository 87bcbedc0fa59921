"""HumanEval: a function to write, judged by running tests (M. Chen et al., arXiv:2107.03374, 2021).

The program that is run is the reply's code, the imports that the task's prompt has, the task's tests, and a last line
that prints a mark. Only the mark counts: a program that ends early with status 0 has passed no test.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

INSTRUCTION = "Complete this Python function. Answer with one fenced code block that holds the whole function."
_FENCED = re.compile(r"```[ \t]*([A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)


def prompt(entry: Mapping[str, Any]) -> str:
    """What the model is asked: the instruction, and the function's head in a code block."""
    return f"{INSTRUCTION}\n\n```python\n{entry['prompt'].rstrip()}\n```"


def extract(reply: str, entry_point: str) -> str | None:
    """The code of a reply: its longest fenced block that defines the function, else the whole text if that does.

    A block that the reply does not close ends with the reply. None if nothing defines the function.
    """
    defines = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", re.MULTILINE)
    blocks = [code for _, code in _FENCED.findall(reply) if defines.search(code)]
    if blocks:
        return str(max(blocks, key=len))
    return reply if defines.search(reply) and "```" not in reply else None


def imports(source: str) -> str:
    """The import statements at the head of a prompt, which replies often leave out; all lines before the first def.

    Some prompts define functions before the one asked for; they are part of what the code may call.
    """
    try:
        tree = ast.parse(source.rstrip() + "\n    pass\n")
    except SyntaxError:
        return "\n".join(line for line in source.splitlines() if re.match(r"(import|from)\s", line))
    last = tree.body[-1] if tree.body else None
    return "\n".join(ast.unparse(node) for node in tree.body if node is not last)


def program(entry: Mapping[str, Any], code: str, mark: str) -> str:
    """The program whose output ends with `mark` if the code passes the task's tests."""
    lines = [imports(entry["prompt"]), code, entry["test"], f"check({entry['entry_point']})", f"print({mark!r})"]
    return "\n\n".join(lines) + "\n"
