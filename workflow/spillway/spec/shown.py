"""Foreign text as a person may see it: cut short, and without the characters that a terminal would obey."""

import re
import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxset = 4, 8, 8, 8, 8
_SHORT.maxstring, _SHORT.maxlong, _SHORT.maxother = 80, 60, 80
# C0 and C1 controls but tab and newline, and the marks that turn the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(value: object, chars: int = 80) -> str:
    """A value as an error message shows it: its repr, at most `chars` characters, in bounded time whatever the value holds."""
    text = _SHORT.repr(value)
    return text if len(text) <= chars else text[: chars - 3] + "..."


def printable(text: str) -> str:
    """The text with control characters written out (\\x1b), so that a log or a reply cannot command a terminal."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)
