"""Memory, disk, clock, cores, ports and leftovers: findings about the machine around the GPUs."""

from spillway.doctor.facts import Facts
from spillway.doctor.finding import Finding, failure, not_applicable, ok, warning
from spillway.spec.host import Host

GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen")
SLOW_CLOCK_READ_S = 2e-6
"""A clock read in user space costs a tenth of this; one that enters the kernel costs it or more."""
LOAD_PER_CORE = 0.25
SHM_BYTES = 2**30
MEMLOCK_BYTES = 2**30
DISK_LITTLE_BYTES, DISK_LEAST_BYTES = 10 * 2**30, 2**30
PORTS = 1000


def host_checks(facts: Facts, host: Host | None) -> list[Finding]:
    """All findings that do not concern GPUs or the engine."""
    return [
        _memory(facts, host),
        _pinning(facts, host),
        _shared_memory(facts, host),
        *_disks(facts),
        _ports(facts),
        _clock(facts),
        _governor(facts),
        _load(facts),
        _leftovers(facts),
        _lock(facts),
        _marks(facts),
    ]


def _memory(facts: Facts, host: Host | None) -> Finding:
    if isinstance(facts.memory, str):
        return warning("host memory", facts.memory, "correct the variable, or look at /proc/meminfo and /proc/self/cgroup")
    free = facts.memory.bytes / 2**30
    if host is not None and host.host_memory_gib is not None and free < 0.8 * host.host_memory_gib:
        return warning(
            "host memory",
            f"{free:.1f} GiB can be had ({facts.memory.limit}), the host file says {host.host_memory_gib:g}",
            "stop what uses it, raise the control group's limit, or set SPILLWAY_HOST_MEMORY_BYTES where memory grows with use",
        )
    return ok("host memory", f"{free:.1f} GiB can be had ({facts.memory.limit})")


def _pinning(facts: Facts, host: Host | None) -> Finding:
    limit = "no limit" if facts.memlock_bytes is None else f"{facts.memlock_bytes // 1024} KiB"
    nodes = 1 if host is None else host.nodes
    if nodes > 1 and facts.memlock_bytes is not None and facts.memlock_bytes < MEMLOCK_BYTES:
        return warning(
            "pinning",
            f"ulimit -l: {limit}; RDMA between {nodes} nodes locks memory",
            "raise memlock in /etc/security/limits.conf",
        )
    return ok("pinning", f"ulimit -l: {limit}; the NVIDIA driver pins host memory without it, only RDMA counts")


def _shared_memory(facts: Facts, host: Host | None) -> Finding:
    if facts.shm_bytes is None:
        return failure("shared memory", "/dev/shm is not there", "mount it: mount -t tmpfs tmpfs /dev/shm")
    shown = f"/dev/shm: {facts.shm_bytes / 2**30:.2f} GiB free"
    if facts.shm_bytes < SHM_BYTES:
        several = host is not None and host.gpus is not None and host.gpus.count > 1
        finding = failure if several else warning
        remedy = "start the container with --shm-size=16g or --ipc=host; engine and workers exchange data there"
        return finding("shared memory", shown, remedy)
    return ok("shared memory", shown)


def _disks(facts: Facts) -> list[Finding]:
    findings = []
    for name, disk in facts.disks.items():
        check, shown = f"disk of {name}/", f"{disk.free_bytes / 2**30:.1f} GiB free"
        if not disk.writable:
            findings.append(
                failure(check, "not writable for this user", f"give this user the folder {name}/, or use a clone of its own")
            )
        elif disk.free_bytes < DISK_LEAST_BYTES:
            findings.append(failure(check, shown, "free at least 10 GiB: a run that cannot write is lost"))
        elif disk.free_bytes < DISK_LITTLE_BYTES:
            findings.append(warning(check, shown, "free at least 10 GiB; old folders in runs/ may go once published"))
        else:
            findings.append(ok(check, shown))
    return findings


def _ports(facts: Facts) -> Finding:
    if facts.loopback is not None:
        return failure(
            "loopback port",
            facts.loopback,
            "the server listens on 127.0.0.1: bring the loopback interface up (ip link set lo up)",
        )
    if facts.ports is not None and facts.ports < PORTS:
        return warning(
            "loopback port", f"only {facts.ports} ports may be handed out", "widen net.ipv4.ip_local_port_range with sysctl"
        )
    return ok("loopback port", "127.0.0.1 gives one")


def _clock(facts: Facts) -> Finding:
    shown = f"{facts.clock or 'not told'}, read in {facts.clock_read_s * 1e9:.0f} ns"
    if facts.clock is not None and facts.clock not in GOOD_CLOCKS:
        return warning("clock source", shown, "each reading enters the kernel; boot with clocksource=tsc if the TSC is stable")
    if facts.clock_read_s > SLOW_CLOCK_READ_S:
        return warning("clock source", shown, "reading is slow: look for a sandbox or a debugger around this process")
    return ok("clock source", shown)


def _governor(facts: Facts) -> Finding:
    if not facts.governors:
        return not_applicable("CPU governor", "the kernel does not set frequencies here (a virtual machine, mostly)")
    if facts.governors <= {"performance"}:
        return ok("CPU governor", "performance")
    return warning(
        "CPU governor",
        ", ".join(sorted(facts.governors)),
        "set it to performance while measuring: cpupower frequency-set -g performance",
    )


def _load(facts: Facts) -> Finding:
    cores = max(1, len(facts.cores))
    shown = f"load {facts.load:.2f} on {cores} cores that this process may use"
    if facts.load / cores > LOAD_PER_CORE:
        return warning(
            "other load", shown, "wait until the machine is quiet: the client needs its cores, or its times are late"
        )
    return ok("other load", shown)


def _leftovers(facts: Facts) -> Finding:
    if not facts.leftovers:
        return ok("leftover servers", "none")
    ours = [process for process in facts.leftovers if process.lock == facts.own_lock]
    shown = ", ".join(f"{process.pid} ({process.command[:50]})" for process in facts.leftovers[:4])
    pids = " ".join(str(process.pid) for process in facts.leftovers)
    if facts.lock_holder is not None:
        return warning("leftover servers", f"a run is going on: {facts.lock_holder}: {shown}", "wait until it has ended")
    if ours:
        return failure("leftover servers", shown, f"stop them: kill {pids}; after a minute kill -9 {pids}")
    return warning("leftover servers", f"under another lock: {shown}", "wait for that run, or stop it: they share the machine")


def _lock(facts: Facts) -> Finding:
    if facts.lock_holder is None:
        return ok("measuring lock", f"free: {facts.own_lock}")
    return warning("measuring lock", f"held by {facts.lock_holder}", "a measurement would wait for it")


def _marks(facts: Facts) -> Finding:
    if facts.marks is None:
        return ok("marks in /proc", "readable, so leftovers can be found")
    return failure("marks in /proc", facts.marks, "mount /proc without hidepid, and run as the user who measures")
