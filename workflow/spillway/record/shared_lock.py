"""One publication at a time into a folder, over all processes and machines that share it.

The measuring lock (engine/lock.py) keeps two servers off one machine; this one keeps the nodes of a cluster apart that
publish into one data/ on a shared file system. It is a POSIX record lock on a file that is open for writing, which NFS
forwards to its server and gives up for a client that is gone (fcntl(2), nfs(5)). flock on a folder, enough on one machine,
is refused there: NFS makes a record lock of it, and a folder cannot be opened for writing.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spillway.record.parquet import RecordError


def lock_file(data: Path) -> Path:
    """The file that stands for a data folder: beside it, so that the folder holds data only. It is never removed."""
    data = data.absolute()
    return data.parent / f".{data.name}.lock"


@contextmanager
def publishing(data: Path) -> Iterator[None]:
    """Be the only process that changes the data folder; waits for others. Not for threads of one process.

    Raises RecordError if the file system has no locks, OSError if the lock's file cannot be made.
    """
    path = lock_file(data)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            raise RecordError(
                f"{path}: the file system gives no lock ({error.strerror}), so two publications could mix; mount it with "
                "locks (NFS: without `nolock`, Lustre: with `flock`), or publish from one machine alone: "
                "`spillway publish RUN_FOLDER`"
            ) from None
        yield
    finally:
        os.close(handle)
