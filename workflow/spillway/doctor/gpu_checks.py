"""Driver, GPUs, their links and their NUMA nodes: findings from what nvidia-smi and sysfs said."""

import json
from collections.abc import Sequence
from typing import Any

from spillway.doctor.facts import Facts
from spillway.doctor.finding import Finding, failure, not_applicable, ok, warning
from spillway.engine.topology import CROSSES_NODES, Gpu, gpu_of, pcie, read_gpu_processes, read_gpus, read_matrix, show_list
from spillway.spec.host import Gpus, Host

USED_FRACTION = 0.02
"""Memory in use on an idle GPU above which somebody else is taken to be there; a driver's own share is below it."""
BUSY_FRACTION = 0.05
MEMORY_TOLERANCE = 0.02
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""PCIe generation -> rate of one lane after its encoding (PCI-SIG); generation 6 before its forward error correction."""
COPY_FRACTION = 0.75
"""Share of the link's rate that a copy should reach: 55 of 63 GB/s was measured on PCIe 5 x16."""
CROSSING = "the article saw its GPUs on different NUMA nodes cost 1.17 to 1.51 times"


def gpu_checks(facts: Facts, host: Host | None) -> list[Finding]:
    """All findings about GPUs. Without GPUs, one says so, which is a failure if the host file asks for some."""
    wanted = host.gpus if host is not None else None
    driver = _driver(facts, wanted)
    gpus = read_gpus(facts.gpus.out) if facts.gpus.fault is None else []
    if not gpus:
        why = "no GPU that the driver answers for"
        rest = ("GPU memory", "GPU processes", "link now", "link under load", "NUMA placement")
        return [driver, *(not_applicable(check, why) for check in rest)]
    return [
        driver,
        _cards(gpus, wanted),
        *_memory(gpus, wanted),
        _processes(facts, gpus),
        *_link_now(gpus),
        *_link_under_load(facts, gpus, host),
        *_placement(facts, gpus, host),
    ]


def _driver(facts: Facts, wanted: Gpus | None) -> Finding:
    if facts.gpus.fault is None and (gpus := read_gpus(facts.gpus.out)):
        return ok("driver", f"NVIDIA driver {gpus[0].driver or 'of unknown version'}, {len(gpus)} GPU(s)")
    said = facts.gpus.fault or " ".join(facts.gpus.out.split())[:200] or "nvidia-smi lists no GPU"
    if "no answer within" in said:
        return failure("driver", said, "the driver hangs: look at `dmesg | grep -i nvrm`, then reboot the machine")
    if facts.cards:
        where = ", ".join(f"{card.address} ({card.driver or 'no driver'})" for card in facts.cards)
        remedy = "install the NVIDIA driver and reboot; in a container, start it with the NVIDIA container toolkit (--gpus all)"
        if "version mismatch" in said:
            remedy = "the driver was updated under a running kernel: reboot"
        finding = failure if wanted is not None else warning
        return finding("driver", f"{said}; the PCI bus has NVIDIA cards: {where}", remedy)
    if wanted is not None:
        return failure(
            "driver",
            f"{said}; the host file asks for {wanted.count} x {wanted.name}",
            "measure on the machine that the host file describes, or install its NVIDIA driver",
        )
    return not_applicable("driver", f"a host without GPUs ({said})")


def _cards(gpus: Sequence[Gpu], wanted: Gpus | None) -> Finding:
    found = ", ".join(f"{gpu.index}: {gpu.name or 'name not told'}" for gpu in gpus)
    if wanted is None:
        return ok("GPUs", found)
    fitting = [gpu for gpu in gpus if gpu.name == wanted.name]
    if len(fitting) < wanted.count:
        return failure(
            "GPUs",
            f"{found}; the host file asks for {wanted.count} x {wanted.name}",
            "correct gpus.name (as the driver says it) and gpus.count in the host file, or choose another with --host",
        )
    return ok("GPUs", found)


def _memory(gpus: Sequence[Gpu], wanted: Gpus | None) -> list[Finding]:
    findings = []
    for gpu in gpus:
        check = f"GPU {gpu.index} memory"
        if gpu.mig:
            findings.append(
                failure(check, "MIG is on: the GPU is cut into instances", f"switch it off: nvidia-smi -i {gpu.index} -mig 0")
            )
        elif gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
            findings.append(
                not_applicable(check, "the driver does not say (memory shared with the host has no size of its own)")
            )
        else:
            total, used = gpu.memory_total_bytes / 2**30, gpu.memory_used_bytes / 2**30
            shown = f"{total - used:.1f} of {total:.1f} GiB free"
            if wanted is not None and total < wanted.memory_gib * (1 - MEMORY_TOLERANCE):
                findings.append(
                    failure(check, f"{shown}; the host file says {wanted.memory_gib:g}", "correct gpus.memory_gib, or the host")
                )
            elif used > total * USED_FRACTION:
                findings.append(
                    warning(check, f"{shown}: {used:.1f} GiB are in use", "stop what uses it: nvidia-smi lists the processes")
                )
            else:
                findings.append(ok(check, shown))
    return findings


def _processes(facts: Facts, gpus: Sequence[Gpu]) -> Finding:
    if facts.gpu_processes.fault is not None:
        return not_applicable("GPU processes", f"not told: {facts.gpu_processes.fault}")
    found = read_gpu_processes(facts.gpu_processes.out)
    busy = [gpu for gpu in gpus if gpu.busy_fraction is not None and gpu.busy_fraction > BUSY_FRACTION]
    if found:
        shown = ", ".join(f"{process.pid} ({process.name.rsplit('/', 1)[-1]})" for process in found[:8])
        return warning(
            "GPU processes", f"{len(found)} hold GPU memory: {shown}", "end them, or wait: they share memory, clock and link"
        )
    if busy:
        shown = ", ".join(f"GPU {gpu.index} {gpu.busy_fraction:.0%}" for gpu in busy)
        return warning(
            "GPU processes",
            f"none is listed, but there is work: {shown}",
            "ask who shares the card: a container does not see others",
        )
    return ok("GPU processes", "none")


def _link_now(gpus: Sequence[Gpu]) -> list[Finding]:
    findings = []
    for gpu in gpus:
        check = f"GPU {gpu.index} link now"
        if gpu.link is None:
            findings.append(
                not_applicable(check, "the driver names no PCIe link (another kind of link, or hidden by a virtual machine)")
            )
            continue
        best = pcie(gpu.generation_max, gpu.width_max)
        shown = f"{gpu.link}, at best {best}" if best else gpu.link
        if gpu.width and gpu.width_max and gpu.width < gpu.width_max:
            findings.append(
                warning(
                    check,
                    f"{shown}: fewer lanes than card and slot have",
                    "reseat the card, use another slot, or look for bifurcation in the firmware",
                )
            )
        else:
            findings.append(ok(check, shown))
    return findings


def _link_under_load(facts: Facts, gpus: Sequence[Gpu], host: Host | None) -> list[Finding]:
    check = "link under load"
    if facts.links is None:
        why = (
            "no --host with GPUs named"
            if host is None or host.gpus is None
            else "not run (--no-load, or no engine to run it with)"
        )
        return [not_applicable(check, why)]
    answer = links_answer(facts.links.out) if facts.links.fault is None else None
    if answer is None:
        said = (facts.links.errors.strip().splitlines() or [facts.links.fault or "it printed no result"])[-1]
        return [
            failure(
                check,
                f"the engine's torch could not copy: {said[:200]}",
                "start the engine's python and try torch.cuda.is_available()",
            )
        ]
    findings = []
    for measured in answer["gpus"]:
        index = measured["index"]
        told = gpu_of(read_gpus(measured["under_load"]), measured["uuid"], index)
        copied = max(
            (max(rate["rates"]) for rate in answer["rates"] if rate["link"] == "host to gpu" and rate["by"] == f"gpu{index}"),
            default=None,
        )
        findings.append(_loaded(f"GPU {index} link under load", told, copied))
    return findings


def links_answer(text: str) -> dict[str, Any] | None:
    """The object that engine/gpu_rates.py prints last, None if there is none in the text."""
    try:
        answer = json.loads(text.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return None
    return answer if isinstance(answer, dict) and {"gpus", "rates"} <= set(answer) else None


def _loaded(check: str, gpu: Gpu | None, copied: float | None) -> Finding:
    rate = f"host to GPU {copied / 1e9:.1f} GB/s" if copied is not None else "no copy measured"
    if gpu is None or gpu.link is None:
        return ok(check, f"{rate}; the driver names no PCIe link") if copied is not None else not_applicable(check, rate)
    shown = f"{gpu.link}, {rate}"
    if gpu.generation and gpu.generation_max and gpu.generation < gpu.generation_max:
        return warning(
            check,
            f"{shown}; at best PCIe {gpu.generation_max}",
            "set the slot's generation in the firmware; look at riser and cable",
        )
    lane = LANE_BYTES_PER_S.get(gpu.generation or 0)
    if copied is not None and lane and gpu.width and copied < COPY_FRACTION * lane * gpu.width:
        return warning(
            check,
            f"{shown}: less than {COPY_FRACTION:.0%} of the link's {lane * gpu.width / 1e9:.0f} GB/s",
            "see whether others copy, which NUMA node the memory is on, and whether an IOMMU or ACS is in the way",
        )
    return ok(check, shown)


def _placement(facts: Facts, gpus: Sequence[Gpu], host: Host | None) -> list[Finding]:
    matrix = read_matrix(facts.matrix.out) if facts.matrix.fault is None else read_matrix("")
    by_address = {card.address.lower()[-10:]: card.node for card in facts.cards}  # nvidia-smi writes eight digits of domain
    near: dict[int, frozenset[int]] = {}
    for gpu in gpus:
        node = by_address.get(gpu.bus_id.lower()[-10:])
        near[gpu.index] = matrix.nodes.get(f"GPU{gpu.index}") or frozenset(() if node is None else (node,))
    if len(facts.nodes) == 1:
        return [ok("NUMA placement", "one NUMA node: nothing to cross")]
    findings = []
    for gpu in gpus:
        check, where = f"GPU {gpu.index} NUMA", near[gpu.index]
        if not where:
            findings.append(
                warning(check, "neither the driver nor sysfs names its node", "see the board's manual, then bind with numactl")
            )
            continue
        cores = frozenset().union(*(node.cores for node in facts.nodes if node.number in where))
        if facts.cores & cores:
            findings.append(ok(check, f"node {show_list(where)}; this process may run there"))
        else:
            findings.append(
                warning(
                    check,
                    f"node {show_list(where)}, but this process may only run on cores {show_list(facts.cores)}, elsewhere",
                    f"start with numactl --cpunodebind={show_list(where)} --membind={show_list(where)}",
                )
            )
    count = int(host.engine.arguments.get("tensor-parallel-size", 1)) if host is not None else len(gpus)
    used = [gpu.index for gpu in gpus][:count]
    pairs = [(a, b) for a in used for b in used if a < b and matrix.relations.get((f"GPU{a}", f"GPU{b}")) in CROSSES_NODES]
    if pairs:
        shown = ", ".join(f"{a} and {b}" for a, b in pairs)
        findings.append(
            warning(
                "GPU pairs",
                f"GPUs {shown} meet across NUMA nodes ({CROSSING})",
                "use GPUs of one node, by CUDA_VISIBLE_DEVICES in the host file",
            )
        )
    elif len(used) > 1:
        relations = sorted({matrix.relations.get((f"GPU{a}", f"GPU{b}"), "not told") for a in used for b in used if a < b})
        findings.append(ok("GPU pairs", f"meet by {', '.join(relations)}"))
    return findings
