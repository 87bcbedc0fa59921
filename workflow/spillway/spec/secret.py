"""Keys of servers: read from the environment at each use, never written down."""

import json
import os
from collections.abc import Sequence
from urllib.parse import urlsplit

HIDDEN = "[key]"


def secret_of(variable: str) -> str:
    """The key in an environment variable, without white space around it.

    Raises ValueError naming the variable, never the value, if it is not set, empty, or not what a header can carry.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ValueError(f"environment variable {variable} is not set; it should hold the server's API key")
    if not all("!" <= character <= "~" for character in value):
        raise ValueError(f"environment variable {variable}: found characters that no key has; expected printable ASCII")
    return value


def check_address(url: str) -> None:
    """Raise ValueError unless a server's URL is a scheme, a host and a path alone; what else it holds is not repeated."""
    try:
        parts = urlsplit(url)
    except ValueError:  # whose message may hold the host, and a key before it
        raise ValueError("url: found none that can be read; expected http://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password or parts.query:
        raise ValueError(
            f"url: found one of scheme {parts.scheme[:20]!r}, or with more than a host, a port and a path; expected "
            "http://HOST:PORT, and a key in an environment variable, whose name is given, never in the url"
        )


def without_secrets(text: str, secrets: Sequence[str]) -> str:
    """A text in which no secret stands any more, neither as it is nor as JSON writes it."""
    for secret in secrets:
        for written in {secret, json.dumps(secret)[1:-1]}:
            text = text.replace(written, HIDDEN)
    return text
