"""The description of host, environment and model names what it is said to name."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from spillway.engine.host import (
    EnvironmentNotRead,
    cpu_model,
    describe_host,
    environment_hash,
    model_config_hash,
    packages,
)

HAS_DRIVER = shutil.which("nvidia-smi") is not None


def test_host_is_described_as_the_system_does() -> None:
    host = describe_host()
    assert host["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert host["kernel"] == subprocess.run(["uname", "-r"], capture_output=True, text=True).stdout.strip()
    assert host["cores_usable"] == int(subprocess.run(["nproc"], capture_output=True, text=True).stdout)
    total_kib = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0])
    assert host["memory_bytes"] == total_kib * 1024
    assert all(isinstance(value, str | int | float) for value in host.values())


@pytest.mark.skipif(HAS_DRIVER, reason="this host has a driver")
def test_host_without_a_driver_has_no_gpus() -> None:
    host = describe_host()
    assert host["gpus"] == 0
    assert not [key for key in host if key.startswith(("gpu0", "nvidia"))]


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_DRIVER, reason="this host has no NVIDIA driver")
def test_gpus_are_described_as_nvidia_smi_does() -> None:
    query = "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max"
    done = subprocess.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True)
    lines = done.stdout.strip().splitlines()
    host = describe_host()
    assert host["gpus"] == len(lines)
    name, driver, mebibytes, generation, width = (field.strip() for field in lines[0].split(","))
    assert (host["gpu0_name"], host["nvidia_driver"]) == (name, driver)
    assert round(host["gpu0_memory_bytes"] / 2**20) == int(mebibytes)
    assert (host["gpu0_pcie_generation"], host["gpu0_pcie_width"]) == (int(generation), int(width))


def test_cpu_model_is_the_first_processor_s() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: A: B\n\nprocessor\t: 1\nmodel name\t: C\n") == "A: B"
    assert cpu_model("processor\t: 0\nBogoMIPS\t: 50.00\n") == os.uname().machine


def test_packages_are_those_of_the_interpreter_asked() -> None:
    found = dict(packages(sys.executable, os.environ))
    assert found["psutil"] == metadata.version("psutil")


def test_packages_of_the_working_folder_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "stray-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: stray\nVersion: 1.0\n")
    monkeypatch.chdir(tmp_path)
    assert "stray" not in dict(packages(sys.executable, os.environ))
    assert dict(packages(sys.executable, os.environ | {"PYTHONPATH": str(tmp_path)}))["stray"] == "1.0"


def test_environment_hash_changes_with_a_package(tmp_path: Path) -> None:
    before = environment_hash(sys.executable, os.environ)
    assert before == environment_hash(sys.executable, os.environ)
    folder = tmp_path / "extra-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    assert before != environment_hash(sys.executable, os.environ | {"PYTHONPATH": str(tmp_path)})


def test_interpreter_that_is_missing_or_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentNotRead, match="no interpreter at /nowhere/python"):
        packages("/nowhere/python", os.environ)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no module named json >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(EnvironmentNotRead, match="no module named json"):
        packages(str(broken), os.environ)


def test_model_config_hash_is_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"b": 1,\n "a": 2}')
    assert model_config_hash(tmp_path) == hashlib.sha256(b'{"a":2,"b":1}').hexdigest()
    (tmp_path / "config.json").write_text(json.dumps({"a": 2, "b": 3}))
    assert model_config_hash(tmp_path) != hashlib.sha256(b'{"a":2,"b":1}').hexdigest()
