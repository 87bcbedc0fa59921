"""One measuring run at a time on this host, across clones and parallel invocations.

Snakemake counts resources per invocation, so `resources: measuring=1` does not keep two invocations apart.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from spillway.spec.shown import printable


def lock_path() -> Path:
    """The lock's file: SPILLWAY_LOCK, or one per user in /tmp.

    Not TMPDIR or XDG_RUNTIME_DIR: they may differ between two shells of one user, and then the lock would not hold.
    """
    return Path(os.environ.get("SPILLWAY_LOCK", f"/tmp/spillway-{os.getuid()}.lock")).absolute()


@contextlib.contextmanager
def measuring(experiment: str) -> Iterator[None]:
    """Hold the host's lock for a measuring run of `experiment`; wait for it, saying on stderr who holds it.

    The kernel releases the lock when the holder ends in whatever way, so a lock is never stale.
    """
    path = lock_path()
    descriptor = _acquire(path, experiment)
    try:
        holder = {"pid": os.getpid(), "experiment": experiment, "since": datetime.now(UTC).isoformat("T", "seconds")}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def holder() -> str | None:
    """Who holds the host's lock at this moment, None if nobody does."""
    try:
        descriptor = os.open(lock_path(), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor)
    finally:
        os.close(descriptor)
    return None


def _acquire(path: Path, experiment: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _refuse_foreign(descriptor, path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{experiment} waits: {_holder(descriptor)} holds {path}", file=sys.stderr, flush=True)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Somebody may have removed the file meanwhile: then this lock excludes nobody.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _refuse_foreign(descriptor: int, path: Path) -> None:
    """Raise PermissionError for what another user may have put in the lock's place, where everybody can write.

    A file of theirs they could hold for ever; a second link to a file of ours would have that file overwritten.
    """
    found = os.fstat(descriptor)
    if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise PermissionError(
            errno.EPERM,
            f"found a file of user {found.st_uid} with {found.st_nlink} links, mode {stat.filemode(found.st_mode)}; expected "
            "a file of this user's own: have it removed, or name another path in SPILLWAY_LOCK",
            str(path),
        )


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 4096, 0).decode(errors="replace")
    try:
        holder = json.loads(text)
        return printable(f"{holder['experiment']} (pid {holder['pid']}, since {holder['since']})").replace("\n", " ")[:300]
    except (ValueError, KeyError, TypeError, RecursionError):  # it has just taken the lock and not written its name yet
        return "another run"
