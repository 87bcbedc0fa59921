"""The processes of a server as the kernel shows them: which are ours, which listens, how much memory they hold."""

from dataclasses import dataclass

import psutil

RUN_VARIABLE = "SPILLWAY_RUN"
"""Environment variable that marks every process of a server with the id of its run."""
LOCK_VARIABLE = "SPILLWAY_LOCK"
"""Environment variable that says under which lock the server was started."""


@dataclass(frozen=True)
class Memory:
    """Memory of a process tree: `pss_bytes` counts a page shared by n processes as 1/n, `uss_bytes` not at all."""

    pss_bytes: int
    uss_bytes: int


def marked_processes(variable: str, value: str) -> list[psutil.Process]:
    """Processes of this user that were started as part of a server with `variable`=`value` in the environment."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        environment = process.info["environ"]
        if not environment or RUN_VARIABLE not in environment or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        if environment.get(variable) == value:
            found.append(process)
    return found


def describe(processes: list[psutil.Process]) -> str:
    """One line per process: pid, start of its command line."""
    lines = []
    for process in processes:
        try:
            lines.append(f"  pid {process.pid}: {' '.join(process.cmdline())[:120]}")
        except psutil.NoSuchProcess:
            continue
    return "\n".join(lines)


def tree(pid: int) -> list[psutil.Process]:
    """The process and its descendants; empty if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def listens(pid: int, port: int) -> bool:
    """Whether the process or a descendant listens on the TCP port."""
    for process in tree(pid):
        try:
            connections = process.net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            continue
        if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections):
            return True
    return False


def process_memory(pid: int) -> Memory:
    """Memory of the process and its descendants, from /proc/PID/smaps_rollup; raises psutil.NoSuchProcess if ended."""
    psutil.Process(pid)
    pss_bytes = uss_bytes = 0
    for process in tree(pid):
        try:
            memory = process.memory_full_info()
        except psutil.NoSuchProcess:  # a descendant that ended meanwhile holds nothing
            continue
        pss_bytes += memory.pss
        uss_bytes += memory.uss
    return Memory(pss_bytes, uss_bytes)
