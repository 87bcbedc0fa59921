"""GSM8K: word problems whose answer is one number (K. Cobbe et al., arXiv:2110.14168, 2021).

The number is looked for in four places, the most explicit first. Beside it stand the two readings of
lm-evaluation-harness, whose leftmost `####` and two-digit rule are known to miss right answers (its issue 3438).
"""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

INSTRUCTION = 'Work it out step by step. Then write a last line that holds only "#### " and the answer as a plain number.'
# A minus behind a digit is a subtraction or a range.
_NUMBER = r"(?:(?<![\w)])-)?(?:\$\s?-?)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_MARKED = re.compile(rf"####\s*\**\s*({_NUMBER})")
_BOXED = re.compile(r"\\boxed\{\s*(?:\\text\{)?\s*\\?(" + _NUMBER + r")")
_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")


def prompt(entry: Mapping[str, Any]) -> str:
    """What the model is asked: the problem, and how to end the answer."""
    return f"{entry['question']}\n\n{INSTRUCTION}"


def gold(entry: Mapping[str, Any]) -> Decimal:
    """The right answer, from behind the entry's `####`; raises ValueError if there is none."""
    found = value(str(entry["answer"]).rpartition("####")[2])
    if found is None:
        raise ValueError(f"no number behind #### in the answer {entry['answer']!r}")
    return found


def extract(reply: str) -> str | None:
    """The number that a reply gives as its answer, as written; None if it gives none.

    The last number behind `####`, else the last in a box, else the last one behind the last word "answer", else the
    last one; the latter two outside of brackets.
    """
    for pattern in (_MARKED, _BOXED):
        if found := pattern.findall(reply):
            return str(found[-1])
    plain = _BRACKETS.sub(" ", reply)
    parts = re.split(r"\banswer\b", plain, flags=re.IGNORECASE)
    if len(parts) > 1 and (found := re.findall(_NUMBER, parts[-1])):
        return str(found[-1])
    found = re.findall(_NUMBER, plain)
    return str(found[-1]) if found else None


def value(text: str) -> Decimal | None:
    """A number as it is compared: without currency, thousands' commas, blanks and a final dot; 18.0 equals 18."""
    cleaned = re.sub(r"[$,\s]", "", text).rstrip(".")
    try:
        found = Decimal(cleaned)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def right(entry: Mapping[str, Any], extracted: str | None) -> bool:
    """Whether an extracted number is the right one."""
    return extracted is not None and value(extracted) == gold(entry)


def right_strict(entry: Mapping[str, Any], reply: str) -> bool:
    """The reading `strict-match` of lm-evaluation-harness 0.4: the leftmost number behind `#### `."""
    found = _STRICT.search(reply)
    return found is not None and value(found[1]) == gold(entry)


def right_flexible(entry: Mapping[str, Any], reply: str) -> bool:
    """The reading `flexible-extract` of lm-evaluation-harness 0.4: the last thing that looks like a number."""
    found = _FLEXIBLE.findall(reply)
    return bool(found) and value(next(filter(None, found[-1]), "")) == gold(entry)
