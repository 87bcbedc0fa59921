"""JSON that somebody else wrote: one error for all that can be wrong with it, and no name twice in one object."""

import json
from collections import Counter
from typing import Any

from spillway.spec.shown import shown


def parse_json(text: str | bytes) -> Any:
    """The value in a JSON text; raises ValueError saying what is wrong with it.

    Refused are bytes that are not UTF-8, what is not JSON, a name that stands twice in one object (readers differ in which
    of the two they take), numbers of more digits than Python reads, and nesting deeper than Python follows, half a character.
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(text, object_pairs_hook=_unique)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is no character") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        raise ValueError(f"keys {shown(sorted(twice))} occur twice in one object")
    return found
