"""What to do about a failed run: one sentence for whoever reads the message."""

import errno

from spillway.engine.errors import ServerDied, ServerNotReady
from spillway.fit.budget import stage_of_log

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS}


def explained(error: Exception) -> str:
    """The error's message, and what to do where that is known."""
    said = f"{error.filename or 'a file'}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
    todo = remedy(error)
    return f"{said}\n{todo}" if todo else said


def remedy(error: Exception) -> str:
    """What to do about an error; empty where its message says that itself."""
    match error:
        case ServerDied():
            return _of_dead_server(str(error))
        case ServerNotReady():
            return (
                "if the server was only slow, raise ready_timeout_s (start) or answer_timeout_s (first answers) in the host's "
                "file in experiments/hosts/, the latter also in the experiment's; if its log says more, act on that"
            )
        case OSError() if error.errno in NO_ROOM:
            return "make room on that disk, then start again: what is finished is kept and not measured twice"
        case OSError() if error.errno in NO_ACCESS:
            return "give this user write access to it, or mount it writable, then start again"
        case OSError():
            return "make that path usable, then start again"
        case _:
            return ""


def _of_dead_server(message: str) -> str:
    if stage := stage_of_log(message):
        return f"its memory ran out ({stage}): `spillway fit MODEL --host HOST` says what fits, and with which plan"
    if "address already in use" in message.lower():
        return "another program took the server's port before it could; start again, it will get another one"
    if "SIGKILL" in message:
        return "if nobody killed it, the kernel did because the host's memory ran out: `dmesg | tail` says so; then start again"
    return "its log, whose end stands above, says why; start again when that is mended"
