"""What the doctor says of machines that are well and of machines that are not, from samples of what they print."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spillway.doctor import doctor_command, engine_checks, facts
from spillway.doctor.facts import Card, Disk, EngineFound, Facts, Leftover
from spillway.doctor.finding import Finding, as_json, as_text, healthy, ok
from spillway.doctor.gpu_checks import gpu_checks
from spillway.doctor.host_checks import host_checks
from spillway.engine.ask import Answer
from spillway.engine.memory_nodes import Node
from spillway.placement.host_memory import HostMemory
from spillway.spec.host import Engine, Gpus, Host
from tests.unit import nvidia_smi as smi

GIB = 2**30
ENGINE = Engine(environment="engine-cuda", module="vllm.entrypoints.openai.api_server", ready_timeout_s=900)
PAIR = Host(
    title="two H200", measured=True, gpus=Gpus(name="NVIDIA H200", count=2, memory_gib=139.8), host_memory_gib=256.0,
    engine=ENGINE.model_copy(update={"arguments": {"tensor-parallel-size": 2}}),
)  # fmt: skip
SINGLE = PAIR.model_copy(update={"gpus": Gpus(name="NVIDIA H200", count=1, memory_gib=139.8), "engine": ENGINE})
PACKAGES = {"vllm": "0.25.1", "torch": "2.11.0+cu130", "numpy": "2.5.2"}
ABSENT = Answer("", status=None, trouble="nvidia-smi: no such program")


def rates(*speeds: float, text: str = smi.H200_PAIR.replace(" 1, 5, 16, 16", " 5, 5, 16, 16")) -> Answer:
    """What engine/gpu_rates.py prints of GPUs that copy at these speeds, in bytes/s."""
    return Answer(
        json.dumps(
            {
                "gpus": [{"index": gpu, "uuid": "", "node": 0, "under_load": text} for gpu in range(len(speeds))],
                "rates": [
                    {"link": "host to gpu", "source": "node0", "target": f"gpu{gpu}", "by": f"gpu{gpu}", "rates": [speed]}
                    for gpu, speed in enumerate(speeds)
                ],
                "buffer_bytes": GIB,
            }
        )
    )


WELL = Facts(
    gpus=Answer(smi.H200_PAIR),
    gpu_processes=Answer(smi.NO_PROCESSES),
    matrix=Answer(smi.MATRIX_H200_PAIR),
    cards=[],
    nodes=[Node(0, frozenset(range(32)), True)],
    cores=frozenset(range(32)),
    load=0.1,
    governors=frozenset({"performance"}),
    clock="tsc",
    clock_read_s=50e-9,
    memory=HostMemory(250 * GIB, "MemAvailable in /proc/meminfo"),
    memlock_bytes=None,
    shm_bytes=128 * GIB,
    disks={"runs": Disk(100 * GIB, True), "build": Disk(100 * GIB, True)},
    loopback=None,
    ports=28232,
    marks=None,
    leftovers=[],
    own_lock="/tmp/spillway-0.lock",
    lock_holder=None,
    engine=EngineFound(
        "engine-cuda", ".envs/engine-cuda/bin/python", PACKAGES, None, "vllm==0.25.1 \\\n    --hash=sha256:0\ntorch==2.11.0\n"
    ),
    links=rates(55e9, 55e9),
)


def examine(host: Host | None = PAIR, **changes: object) -> dict[str, Finding]:
    """Check -> finding of a machine that is well but for the changes."""
    found = dataclasses.replace(WELL, **changes)
    findings = [*gpu_checks(found, host), *engine_checks.engine_checks(found), *host_checks(found, host)]
    assert len({finding.check for finding in findings}) == len(findings)
    assert as_text(findings) and json.loads(as_json(None, findings))["healthy"] == healthy(findings)
    return {finding.check: finding for finding in findings}


def trouble(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.status for name, finding in findings.items() if finding.status in ("warning", "failure")}


def test_a_host_that_is_well_has_no_warning():
    findings = examine()
    assert trouble(findings) == {}
    assert findings["GPU 0 link now"].found == "PCIe 1 x16, at best PCIe 5 x16"  # idle, and no fault
    assert findings["GPU 1 link under load"].found == "PCIe 5 x16, host to GPU 55.0 GB/s"
    assert findings["CUDA and driver"].found == "CUDA 13 on driver 580.159.04"


# What is changed on a host that is well -> the checks that must say so, and words of finding and remedy.
SICK = {
    "driver hangs": (
        {"gpus": Answer("", status=None, trouble="nvidia-smi: no answer within 20 s")},
        {"driver": "failure"},
        "driver",
        "no answer within 20 s",
        "reboot",
    ),
    "driver updated under a running kernel": (
        {"gpus": Answer(smi.MISMATCH, status=18), "cards": [Card("0000:01:00.0", "nvidia", 0)]},
        {"driver": "failure"},
        "driver",
        "version mismatch",
        "reboot",
    ),
    "no driver": (
        {"gpus": ABSENT, "cards": [Card("0000:01:00.0", None, 0)]},
        {"driver": "failure"},
        "driver",
        "0000:01:00.0 (no driver)",
        "container toolkit",
    ),
    "no GPU although the host file asks for two": (
        {"gpus": ABSENT},
        {"driver": "failure"},
        "driver",
        "asks for 2 x NVIDIA H200",
        "the machine that the host file describes",
    ),
    "driver answers without GPUs": (
        {"gpus": Answer(smi.NO_DEVICES, status=6)},
        {"driver": "failure"},
        "driver",
        "No devices were found",
        "host file",
    ),
    "one GPU of two": (
        {"gpus": Answer(smi.H200), "links": rates(55e9, text=smi.H200)},
        {"GPUs": "failure"},
        "GPUs",
        "asks for 2 x",
        "gpus.count",
    ),
    "somebody else computes": (
        {"gpu_processes": Answer(smi.PROCESSES)},
        {"GPU processes": "warning"},
        "GPU processes",
        "12806 (python3)",
        "end them",
    ),
    "link trained at half its width": (
        {"gpus": Answer(smi.H200_PAIR.replace("1, 5, 16, 16", "1, 5, 8, 16"))},
        {"GPU 0 link now": "warning", "GPU 1 link now": "warning"},
        "GPU 1 link now",
        "PCIe 1 x8",
        "reseat",
    ),
    "link stays at a low generation under load": (
        {"links": rates(24e9, 55e9, text=smi.H200_PAIR.replace("1, 5, 16, 16", "4, 5, 16, 16"))},
        {"GPU 0 link under load": "warning", "GPU 1 link under load": "warning"},
        "GPU 0 link under load",
        "PCIe 4 x16",
        "firmware",
    ),
    "one link copies at a quarter of the other": (
        {"links": rates(14e9, 55e9)},
        {"GPU 0 link under load": "warning"},
        "GPU 0 link under load",
        "14.0 GB/s: less than 75%",
        "whether others copy",
    ),
    "torch cannot copy": (
        {"links": Answer("", "Traceback ...\ntorch finds no GPU that it can use\n", 1)},
        {"link under load": "failure"},
        "link under load",
        "finds no GPU",
        "torch.cuda.is_available",
    ),
    "little shared memory": (
        {"shm_bytes": 64 * 2**20},
        {"shared memory": "failure"},
        "shared memory",
        "0.06 GiB",
        "--shm-size",
    ),
    "half of the memory": (
        {"memory": HostMemory(120 * GIB, "/sys/fs/cgroup/job_7/memory.max")},
        {"host memory": "warning"},
        "host memory",
        "120.0 GiB can be had (/sys/fs/cgroup/job_7/memory.max), the host file says 256",
        "control group",
    ),
    "disk full": (
        {"disks": {"runs": Disk(0, True)}},
        {"disk of runs/": "failure"},
        "disk of runs/",
        "0.0 GiB free",
        "free at least",
    ),
    "disk read-only": (
        {"disks": {"runs": Disk(99 * GIB, False)}},
        {"disk of runs/": "failure"},
        "disk of runs/",
        "not writable",
        "clone",
    ),
    "no loopback": (
        {"loopback": "[Errno 99] Cannot assign requested address"},
        {"loopback port": "failure"},
        "loopback port",
        "Errno 99",
        "ip link set lo up",
    ),
    "slow clock": (
        {"clock": "hpet"},
        {"clock source": "warning"},
        "clock source",
        "hpet",
        "clocksource=tsc",
    ),
    "powersave": (
        {"governors": frozenset({"performance", "powersave"})},
        {"CPU governor": "warning"},
        "CPU governor",
        "performance, powersave",
        "cpupower",
    ),
    "busy machine": (
        {"load": 30.0},
        {"other load": "warning"},
        "other load",
        "load 30.00 on 32 cores",
        "quiet",
    ),
    "a server left behind": (
        {"leftovers": [Leftover(4711, "/tmp/spillway-0.lock", "python -m vllm")]},
        {"leftover servers": "failure"},
        "leftover servers",
        "4711 (python -m vllm)",
        "kill 4711",
    ),
    "a run is going on": (
        {
            "leftovers": [Leftover(4711, "/tmp/spillway-0.lock", "python -m vllm")],
            "lock_holder": "e13_agents (pid 1, since now)",
        },
        {"leftover servers": "warning", "measuring lock": "warning"},
        "measuring lock",
        "e13_agents",
        "would wait",
    ),
    "marks hidden": (
        {"marks": "access denied"},
        {"marks in /proc": "failure"},
        "marks in /proc",
        "access denied",
        "hidepid",
    ),
    "no engine": (
        {"engine": EngineFound("engine-cuda", "python", fault="no interpreter at python: make it"), "links": None},
        {"engine": "failure"},
        "engine",
        "no interpreter",
        "scripts/setup engine-cuda",
    ),
    "an engine of another version": (
        {"engine": dataclasses.replace(WELL.engine, packages=PACKAGES | {"vllm": "0.25.2"})},
        {"engine against lock": "warning"},
        "engine against lock",
        "vllm: found 0.25.2, locked 0.25.1",
        "install the lock",
    ),
    "an old driver": (
        {"gpus": Answer(smi.H200_PAIR.replace("580.159.04", "550.54.15"))},
        {"CUDA and driver": "failure"},
        "CUDA and driver",
        "CUDA 13 needs driver 580 or newer, found 550.54.15",
        "update",
    ),
}


@pytest.mark.parametrize("name", SICK)
def test_each_trouble_is_named_with_a_remedy_and_nothing_else_is(name):
    changes, expected, check, found, remedy = SICK[name]
    findings = examine(**changes)
    assert trouble(findings) == expected
    assert found in findings[check].found and remedy in findings[check].remedy


def test_gpus_on_two_nodes_are_warned_of_before_they_cost_anything():
    two_nodes = [Node(0, frozenset(range(32)), True), Node(1, frozenset(range(32, 64)), True)]
    far = {"matrix": Answer(smi.MATRIX_TWO_SOCKETS), "nodes": two_nodes}
    findings = examine(**far, cores=frozenset(range(64)))
    assert trouble(findings) == {"GPU pairs": "warning"} and "1.17 to 1.51" in findings["GPU pairs"].found
    bound = examine(**far, cores=frozenset(range(32)))
    assert trouble(bound) == {"GPU pairs": "warning", "GPU 1 NUMA": "warning"}
    assert "numactl --cpunodebind=1" in bound["GPU 1 NUMA"].remedy
    near = examine(SINGLE, **far, cores=frozenset(range(32)), links=rates(55e9))
    assert "GPU pairs" not in near


def test_sysfs_knows_a_node_that_an_old_driver_does_not_tell():
    two_nodes = [Node(0, frozenset(range(32)), True), Node(1, frozenset(range(32, 64)), True)]
    cards = [Card("0000:00:05.0", "nvidia", 1), Card("0000:00:06.0", "nvidia", None)]
    findings = examine(matrix=Answer("", "invalid argument", 2), nodes=two_nodes, cards=cards)
    assert findings["GPU 0 NUMA"].found.startswith("node 1, but this process may only run on cores 0-31")
    assert "neither the driver nor sysfs" in findings["GPU 1 NUMA"].found


def test_a_host_without_gpus_says_which_checks_do_not_apply():
    host = Host(title="CPU", measured=True, engine=ENGINE)
    findings = examine(host, gpus=ABSENT, links=None)
    assert trouble(findings) == {}
    unused = [name for name, finding in findings.items() if finding.status == "not applicable"]
    assert unused == [
        "driver", "GPU memory", "GPU processes", "link now", "link under load", "NUMA placement", "CUDA and driver"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["WORKSTATION", "GB10", "MIG", "OLD_DRIVER", "LOST"])
@pytest.mark.parametrize("host", [None, PAIR], ids=["no host file", "host file"])
def test_odd_machines_never_crash_it(name, host):
    findings = examine(
        host, gpus=Answer(getattr(smi, name)), matrix=Answer(smi.MATRIX_SUB_NUMA), links=rates(1e9, text="nonsense")
    )
    assert all(isinstance(finding, Finding) for finding in findings.values())


def test_mig_is_refused_and_shared_memory_is_not_judged():
    assert examine(None, gpus=Answer(smi.MIG))["GPU 0 memory"].remedy == "switch it off: nvidia-smi -i 0 -mig 0"
    assert examine(None, gpus=Answer(smi.GB10))["GPU 0 memory"].status == "not applicable"
    used = examine(None, gpus=Answer(smi.WORKSTATION))
    assert used["GPU 0 memory"].status == "ok" and "4.1 GiB are in use" in used["GPU 1 memory"].found


@pytest.mark.parametrize("answer", ["", "warning\n", "[]", "{}", '{"gpus": []}'])
def test_a_copy_program_that_prints_no_result_is_a_failure_and_no_crash(answer):
    assert examine(links=Answer(answer))["link under load"].status == "failure"


def test_cuda_of_an_engine_by_its_packages():
    of = engine_checks.cuda_major
    assert of({"torch": "2.11.0+cu130"}) == 13
    assert of({"torch": "2.9.0", "nvidia-cuda-runtime-cu12": "12.8.90"}) == 12
    assert of({"torch": "2.11.0", "nvidia-cuda-runtime": "13.0.48"}) == 13
    assert of({"torch": "2.13.0+cpu", "nvidia-cuda-runtime": "13.0.48"}) is of({}) is None


def test_a_local_version_and_spellings_are_the_locked_package():
    lock = "torch==2.13.0 ; python_version >= '3.11' \\\n    --hash=sha256:aa\nRuamel.YAML==0.18.6\nabsent==1.0\n"
    assert engine_checks.differing({"torch": "2.13.0+cpu", "ruamel_yaml": "0.18.6"}, lock) == []
    assert engine_checks.differing({"torch": "2.13.1"}, lock) == ["torch: found 2.13.1, locked 2.13.0"]


def test_a_finding_without_a_needed_remedy_cannot_be_made():
    for status, remedy in (("failure", ""), ("ok", "do something")):
        with pytest.raises(ValueError, match="a remedy belongs to"):
            Finding("check", status, "found", remedy)


def test_cards_on_the_bus_are_found_without_a_driver(tmp_path):
    devices = tmp_path / "sys/bus/pci/devices"
    for name, files in {
        "0000:01:00.0": {"vendor": "0x10de", "class": "0x030200", "numa_node": "-1"},
        "0000:02:00.0": {"vendor": "0x10de", "class": "0x030000", "numa_node": "1"},
        "0000:02:00.1": {"vendor": "0x10de", "class": "0x040300", "numa_node": "1"},  # its sound device
        "0000:03:00.0": {"vendor": "0x8086", "class": "0x030000", "numa_node": "0"},
        "0000:04:00.0": {},
    }.items():
        (devices / name).mkdir(parents=True)
        for file, content in files.items():
            (devices / name / file).write_text(content + "\n")
    (tmp_path / "nvidia").mkdir()
    (devices / "0000:02:00.0/driver").symlink_to(tmp_path / "nvidia")
    assert facts.cards(tmp_path) == [Card("0000:01:00.0", None, None), Card("0000:02:00.0", "nvidia", 1)]


def test_the_machine_is_read_once_and_a_driver_that_hangs_is_asked_once(tmp_path):
    asked = []

    def hanging(command, timeout_s, environment):
        asked.append(command[0])
        return Answer("", status=None, trouble="nvidia-smi: no answer within 20 s")

    found = facts.gather(tmp_path, PAIR, asking=hanging)
    assert asked == ["nvidia-smi"] and found.links is None
    assert found.engine is not None and "no interpreter" in str(found.engine.fault)
    assert isinstance(found.memory, HostMemory) and found.memory.bytes > 0
    assert found.cores == os.sched_getaffinity(0) and found.clock_read_s > 0 and found.marks is None


def test_the_command_prints_json_and_fails_for_a_host_that_this_machine_is_not(tmp_path, capsys, monkeypatch):
    hosts = tmp_path / "experiments/hosts"
    hosts.mkdir(parents=True)
    (hosts / "pair.yaml").write_text(
        "title: two H200\nmeasured: true\ngpus: {name: NVIDIA H200, count: 2, memory_gib: 139.8}\n"
        "engine: {environment: engine-cuda, module: vllm, ready_timeout_s: 9}\n"
    )
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    assert doctor_command.main(["--root", str(tmp_path), "--host", "pair", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["version"], printed["host"], printed["healthy"]) == (1, "pair", False)
    assert {"check": "driver", "status": "failure"}.items() <= printed["findings"][0].items()
    assert set(printed["findings"][0]) == {"check", "status", "found", "remedy"}
    assert "no such file" in str(doctor_command.main(["--root", str(tmp_path), "--host", "other"]))


def test_text_counts_what_it_lists():
    text = as_text([ok("clock", "tsc"), Finding("disk", "failure", "full", "free it")])
    assert text.splitlines()[-1] == "1 ok, 0 warning, 1 failure, 0 not applicable"
    assert "-> free it" in text


def test_the_page_explains_every_check():
    page = (Path(__file__).parents[3] / "docs/doctor.md").read_text()
    for name in {**examine(), **examine(gpus=ABSENT), **examine(SINGLE, nodes=[*WELL.nodes, Node(1, frozenset(), True)])}:
        plain = " ".join(word for word in name.split() if not word.isdigit())
        assert f"| {plain} |" in page, f"docs/doctor.md does not explain {plain!r}"


def test_a_reader_that_has_seen_enough_is_no_fault():
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -c 'from spillway.cli import main; main()' doctor | true"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.stderr == "" and done.stdout == ""
