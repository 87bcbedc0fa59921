"""Inside new namespaces: make every file system read-only, give an empty folder, drop all rights, and run a program.

Started by confined.py, as root of a user namespace of its own or, where Spillway runs as root, as root itself; imports the
standard library alone. The program comes on standard input. FOLDER has two empty folders: `work`, the program's, and
`python`, through which a user without rights reaches an interpreter that may lie in root's home.

    python -I -S -c START FOLDER USER MEMORY_BYTES CPU_S FILE_BYTES PROCESSES
"""

import ctypes
import os
import resource
import sys

# mount(2), from <sys/mount.h>
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
# statvfs(3) flag -> mount(2) flag: a remount in a user namespace must keep the flags that the mount has
KEPT = {os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: 8, os.ST_NOATIME: 1024, os.ST_RELATIME: 1 << 21}


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2); raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    if libc.mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode()) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), target)


def mount_points() -> list[str]:
    """Where file systems are mounted, parents first."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return [line.split()[4].replace("\\040", " ") for line in file]


def close_file_systems(but: str) -> None:
    """Leave one writable folder; raises OSError if any other file system stays writable."""
    for point in mount_points():
        if point == but:
            continue
        try:
            found = os.statvfs(point).f_flag
        except (FileNotFoundError, PermissionError):
            continue  # hidden below another mount, or behind a folder that this user cannot enter
        if not found & os.ST_RDONLY:
            kept = sum(flag for known, flag in KEPT.items() if found & known)
            mount(None, point, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def limit(memory_bytes: int, cpu_s: int, file_bytes: int, processes: int) -> None:
    """Limits of this process and its children."""
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def main() -> None:
    folder, user, *numbers = sys.argv[1:]
    memory_bytes, cpu_s, file_bytes, processes = map(int, numbers)
    work, python = f"{folder}/work", f"{folder}/python"
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount(sys.base_prefix, python, None, MS_BIND)
    mount("tmpfs", work, "tmpfs", MS_NOSUID | MS_NODEV, f"size={16 * file_bytes},mode=777")
    close_file_systems(but=work)
    os.chdir(work)
    limit(memory_bytes, cpu_s, file_bytes, processes)
    # Without a bounding set, the exec leaves no right with which a mount could be made writable again.
    drop = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    if user:  # the limit on processes does not hold for root
        drop += [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    interpreter = f"{python}/{os.path.relpath(os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix))}"
    os.execvpe("setpriv", [*drop, interpreter, "-I", "-S", "-"], {"PATH": os.defpath, "HOME": work, "TMPDIR": work})


if __name__ == "__main__":
    main()
