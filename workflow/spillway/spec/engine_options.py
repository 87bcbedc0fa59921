"""What a host's or an experiment's file may tell the engine: options by name, and nothing that belongs elsewhere."""

import re
from collections.abc import Iterable

# The launcher sets these itself; an argument file that sets them too would say something else than what runs.
RESERVED_ARGUMENTS = frozenset({"host", "port", "model", "served-model-name", "max-model-len"})

REFUSED_ARGUMENTS = {
    "trust-remote-code": "code of a model repository runs only where the model's file says `trust_remote_code: true`",
    "api-key": "a key stands in no file and no command line",
    "uds": "servers listen on a loopback port alone",
    "config": "options stand here, one by one, where they are checked and recorded",
}
"""Option of the engine -> why no file may set it."""

# vLLM's options, and members of those that take an object, as `hf-overrides.num_hidden_layers`.
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9]+)*(\.[A-Za-z0-9_-]+)*")
_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")


def check_arguments(where: str, names: Iterable[str], free: frozenset[str] = frozenset()) -> None:
    """Raise ValueError for the first name that is no option, or one that the launcher or nobody may set.

    The engine takes the beginning of an option's name for the option, so beginnings are refused like the whole. `free`
    names reserved options that may be set all the same.
    """
    for name in names:
        if name.startswith("-"):
            raise ValueError(f"{where}.{name}: found an option with dashes; expected the name alone: {name.strip('-')}")
        if _OPTION.fullmatch(name) is None:
            raise ValueError(f"{where}.{name!r}: found no name of an option; expected words joined by dashes")
        option = name.partition(".")[0]
        if name in free:
            continue
        for refused, why in REFUSED_ARGUMENTS.items():
            if refused.startswith(option):
                raise ValueError(f"{where}.{name}: found an option that no file may set: {why}")
        if any(reserved.startswith(option) for reserved in RESERVED_ARGUMENTS):
            raise ValueError(
                f"{where}.{name}: found an argument that the launcher sets itself; expected none of: "
                f"{', '.join(sorted(RESERVED_ARGUMENTS))}"
            )


def check_variables(where: str, names: Iterable[str]) -> None:
    """Raise ValueError for the first name that is none of an environment variable, or that of a secret."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{where}.{name!r}: found no name of an environment variable; expected letters, digits, _")
        if _SECRET.search(name.upper()):
            raise ValueError(f"{where}.{name}: found a secret in a file; set the variable in the shell that starts the server")
