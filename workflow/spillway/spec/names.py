"""Names that become file names, rules of the workflow and words of its commands."""

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""Nothing that a shell, a path or a pattern of file names would take for more than a name."""
NAME_RULE = "letters, digits, `_`, `-` and `.`, beginning with a letter or digit"


def is_name(text: object) -> bool:
    """Whether a value may name an experiment, a host, a model or a figure."""
    return isinstance(text, str) and NAME.fullmatch(text) is not None
