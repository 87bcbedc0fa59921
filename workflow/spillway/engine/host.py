"""What the server runs on: the machine, the engine's Python environment and the model's configuration."""

import contextlib
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil
import pynvml

LIST_PACKAGES = (
    "import importlib.metadata as m, json; "
    "print(json.dumps(sorted({(d.metadata['Name'].lower(), d.version) for d in m.distributions()})))"
)


class EnvironmentNotRead(RuntimeError):
    """The engine's interpreter could not list its packages."""


def describe_host() -> dict[str, str | int | float]:
    """The machine, as the kernel and the NVIDIA driver describe it; a key is absent where nothing is known.

    `boot_id` changes with every start of the machine. `cores_usable` are those this process may run on.
    """
    host: dict[str, str | int | float] = {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "kernel": platform.release(),
        "os": platform.freedesktop_os_release()["PRETTY_NAME"],
        "cpu_model": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
    }
    for key, cores in (("cores_logical", psutil.cpu_count()), ("cores_physical", psutil.cpu_count(logical=False))):
        if cores is not None:
            host[key] = cores
    return host | describe_gpus()


def cpu_model(cpuinfo: str) -> str:
    """The processor's name in the text of /proc/cpuinfo; where there is none (Arm), the architecture."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def describe_gpus() -> dict[str, str | int | float]:
    """The GPUs through NVML: how many (`gpus`, 0 without a driver), and name, memory and PCIe link of each.

    `gpus_visible` is what CUDA_VISIBLE_DEVICES leaves a server of them, where that is set.
    """
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return {"gpus": 0}
    try:
        count = pynvml.nvmlDeviceGetCount()
        gpus: dict[str, str | int | float] = {"gpus": count, "nvidia_driver": pynvml.nvmlSystemGetDriverVersion()}
        if (seen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            gpus["gpus_visible"] = seen
        for index in range(count):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus[f"gpu{index}_name"] = pynvml.nvmlDeviceGetName(gpu)
            gpus[f"gpu{index}_memory_bytes"] = pynvml.nvmlDeviceGetMemoryInfo(gpu).total
            # Some cards hang on another link than PCIe and do not say these.
            with contextlib.suppress(pynvml.NVMLError_NotSupported):
                # The best that card and slot agree on; the link in use drops when the card idles.
                gpus[f"gpu{index}_pcie_generation"] = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)
                gpus[f"gpu{index}_pcie_width"] = pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)
        return gpus
    finally:
        pynvml.nvmlShutdown()


def packages(python: str, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Sorted (name, version) of every package that the interpreter sees, given the environment of the server.

    Asked anew every time: a remembered answer would outlive a change of the environment. Raises EnvironmentNotRead.
    """
    try:
        done = subprocess.run(
            [python, "-P", "-c", LIST_PACKAGES], env=dict(environment), capture_output=True, text=True, timeout=60, check=True
        )
    except FileNotFoundError as error:
        raise EnvironmentNotRead(f"no interpreter at {python}: make the engine's environment first") from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentNotRead(f"{python} did not list its packages within 60 s") from error
    except subprocess.CalledProcessError as error:
        raise EnvironmentNotRead(f"{python} failed to list its packages:\n{error.stderr[-2000:]}") from error
    return [(name, version) for name, version in json.loads(done.stdout)]


def environment_hash(python: str, environment: Mapping[str, str]) -> str:
    """SHA-256 over the sorted `name==version` lines of the interpreter's packages, vLLM among them."""
    lines = [f"{name}=={version}" for name, version in packages(python, environment)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def model_config_hash(folder: Path) -> str:
    """SHA-256 over the model's config.json, of its content: order of keys and white space do not matter."""
    configuration = json.loads((folder / "config.json").read_text())
    text = json.dumps(configuration, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
