"""How a machine is wired, from texts of the driver and the kernel; and rates of this machine's own memory."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.engine import host_rates, topology
from spillway.engine.ask import ask
from spillway.engine.memory_nodes import Node, last_level_cache_bytes, nodes
from tests.unit import nvidia_smi as smi

GIB = 2**30


def test_a_gpu_is_read_with_its_link():
    (gpu,) = topology.read_gpus(smi.H200)
    assert (gpu.index, gpu.name, gpu.driver, gpu.bus_id) == (0, "NVIDIA H200", "580.159.04", "00000000:00:05.0")
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (143771 * 2**20, 0)
    assert (gpu.link, gpu.mig, gpu.busy_fraction) == ("PCIe 5 x16", False, 0.0)


def test_a_name_with_commas_does_not_shift_the_columns():
    text = smi.query('0, GPU-1, "Odd, Name", 580.1, 00000000:01:00.0, 1024, 1, 4, 4, 16, 16, Disabled, 0')
    assert topology.read_gpus(text)[0].name == "Odd, Name"
    assert topology.read_gpus(text)[0].link == "PCIe 4 x16"


@pytest.mark.parametrize("text", [smi.GB10, smi.LOST], ids=["memory not told", "GPU lost"])
def test_what_the_driver_does_not_say_is_none_and_never_a_number(text):
    (gpu,) = topology.read_gpus(text)
    assert gpu.memory_total_bytes is gpu.memory_used_bytes is gpu.busy_fraction is gpu.mig is None


def test_old_and_new_words_for_not_supported_are_both_unknown():
    assert topology.read_gpus(smi.OLD_DRIVER)[0].mig is None
    assert topology.read_gpus(smi.WORKSTATION)[0].mig is None
    assert topology.read_gpus(smi.MIG)[0].mig is True


@pytest.mark.parametrize("text", ["", smi.NO_DRIVER, smi.MISMATCH, smi.NO_DEVICES, smi.HEADER, "\n\n", "index, uuid\n0"])
def test_a_text_without_gpus_gives_none(text):
    assert topology.read_gpus(text) == []
    assert topology.read_gpu_processes(text) == []
    assert topology.read_matrix(text) == topology.Matrix()


def test_warnings_before_the_table_are_passed_over():
    assert len(topology.read_gpus("WARNING: infoROM is corrupted at gpu 0000:01:00.0\n" + smi.H200_PAIR)) == 2


def test_a_gpu_is_found_by_its_uuid_and_else_by_its_number():
    listed = topology.read_gpus(smi.H200_PAIR)
    found = [topology.gpu_of(listed, *asked) for asked in (("11111111", 0), ("GPU-77777777", 1), ("", 1), ("", 5))]
    assert [gpu and gpu.index for gpu in found] == [1, 0, 1, None]


def test_processes_on_the_gpu():
    first, second = topology.read_gpu_processes(smi.PROCESSES)
    assert (first.pid, first.name, first.memory_bytes) == (12806, "/usr/bin/python3", 26130 * 2**20)
    assert (second.pid, second.memory_bytes) == (12807, None)
    assert topology.read_gpu_processes(smi.NO_PROCESSES) == []


def test_a_pair_on_nvlink():
    matrix = topology.read_matrix(smi.MATRIX_H200_PAIR)
    assert matrix.relations["GPU0", "GPU1"] == matrix.relations["GPU1", "GPU0"] == "NV18"
    assert matrix.nodes == {"GPU0": {0}, "GPU1": {0}}
    assert matrix.cpus["GPU1"] == frozenset(range(32))


def test_two_sockets_with_a_network_card_and_terminal_codes():
    matrix = topology.read_matrix(smi.MATRIX_TWO_SOCKETS)
    assert matrix.relations["GPU0", "GPU1"] in topology.CROSSES_NODES
    assert matrix.relations["GPU0", "NIC0"] == "NODE"
    assert matrix.nodes == {"GPU0": {0}, "GPU1": {1}}
    assert matrix.cpus["GPU1"] == frozenset([*range(32, 64), *range(96, 128)])


def test_a_range_of_nodes_and_a_node_that_is_not_told():
    assert topology.read_matrix(smi.MATRIX_SUB_NUMA).nodes == {"GPU0": {0, 1}}


def test_an_old_driver_has_no_column_of_nodes():
    matrix = topology.read_matrix(smi.MATRIX_OLD_DRIVER)
    assert matrix.relations["GPU0", "GPU1"] in topology.CROSSES_NODES
    assert matrix.nodes == {} and matrix.cpus["GPU0"] == frozenset([*range(10), *range(20, 30)])


def test_blanks_in_place_of_tabs():
    matrix = topology.read_matrix(smi.MATRIX_BLANKS)
    assert matrix.relations["GPU1", "GPU0"] == "NODE" and matrix.nodes == {"GPU0": {0}, "GPU1": {0}}


@given(st.sets(st.integers(0, 2000)))
def test_a_list_of_cores_is_read_as_it_was_written(numbers):
    assert topology.read_list(topology.show_list(numbers)) == numbers


@pytest.mark.parametrize("text", ["", "N/A", "0-", "-1", "a-b", "1,,2", "0-3-5"])
def test_what_is_no_list_is_empty(text):
    assert topology.read_list(text) == frozenset()


SAMPLES = [value for name, value in vars(smi).items() if name.isupper() and isinstance(value, str)]


@given(st.sampled_from(SAMPLES), st.integers(0, 2000), st.text(max_size=20), st.integers(0, 400))
def test_damaged_text_never_raises(text, at, put, cut):
    damaged = text[:at] + put + text[at + cut :]
    topology.read_gpus(damaged)
    topology.read_gpu_processes(damaged)
    topology.read_matrix(damaged)
    topology.read_numa_maps(damaged, at)


NUMA_MAPS = """55d0c8a00000 default file=/usr/bin/python3.11 mapped=2 N0=2 kernelpagesize_kB=4
7f2b00000000 default anon=262144 dirty=262144 active=0 N0=262000 N1=144 kernelpagesize_kB=4
7f2c00000000 default
7f2d00000000 bind:1 huge anon=512 dirty=512 N1=512 kernelpagesize_kB=2048
"""


def test_where_a_buffer_lies():
    assert topology.read_numa_maps(NUMA_MAPS, 0x7F2B00000010) == (0x7F2B00000000, {0: 262000 * 4096, 1: 144 * 4096})
    assert topology.read_numa_maps(NUMA_MAPS, 0x7F2D12345678) == (0x7F2D00000000, {1: GIB})
    assert topology.read_numa_maps(NUMA_MAPS, 0x7F2C00000000) == (0x7F2C00000000, {})
    assert topology.read_numa_maps(NUMA_MAPS, 0x1000) == (-1, {})


def test_sizes_of_caches():
    assert [topology.cache_bytes(text) for text in ("48K\n", "491520K", "32M", "", "N/A")] == [
        48 << 10,
        480 << 20,
        32 << 20,
        None,
        None,
    ]


def sysfs(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / "sys/devices/system" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/devices/system" / name).write_text(text)
    return root


def test_nodes_of_two_sockets_and_one_without_cores(tmp_path):
    files = {
        "node/node0/cpulist": "0\n",
        "node/node1/cpulist": "100-200\n",
        "node/node2/cpulist": "\n",
        "node/has_memory": "0,2\n",
    }
    usable = os.sched_getaffinity(0)
    assert nodes(sysfs(tmp_path, files)) == [
        Node(0, frozenset({0} & usable), True), Node(1, frozenset(), False), Node(2, frozenset(), True)
    ]  # fmt: skip


def test_a_kernel_without_numa_is_one_node(tmp_path):
    assert nodes(tmp_path) == [Node(0, frozenset(os.sched_getaffinity(0)), True)]
    assert last_level_cache_bytes(tmp_path) is None


def test_the_largest_cache_is_the_last_level(tmp_path):
    files = {"cpu/cpu0/cache/index0/size": "48K", "cpu/cpu0/cache/index3/size": "32M", "cpu/cpu0/cache/index2/size": "2048K"}
    assert last_level_cache_bytes(sysfs(tmp_path, files)) == 32 << 20


def test_thread_counts_end_with_all_cores():
    assert [host_rates.thread_counts(cores) for cores in (1, 2, 3, 8, 12)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 8],
        [1, 2, 4, 8, 12],
    ]


def test_this_machine_copies_and_reads_its_memory():
    here = Node(0, frozenset(os.sched_getaffinity(0)), True)
    rates = list(host_rates.host_rates([here], 1 << 20, 3))
    counts = host_rates.thread_counts(len(here.cores))
    assert [(rate.work, rate.threads) for rate in rates] == [(work, n) for n in counts for work in ("copy", "read")]
    assert all(len(rate.rates) == 3 and min(rate.rates) > 0 and rate.proved for rate in rates)


def test_two_nodes_are_measured_from_each_to_each_by_each(monkeypatch):
    monkeypatch.setattr(host_rates, "_proved", lambda _: True)
    cores = frozenset(sorted(os.sched_getaffinity(0))[:2])
    pair = [Node(0, cores, True), Node(1, cores, True), Node(2, frozenset(), True), Node(3, cores, False)]
    rates = list(host_rates.host_rates(pair, 1 << 16, 3))
    alone = {(rate.work, rate.by, rate.source, rate.target) for rate in rates}
    assert alone == {("copy", by, source, target) for by in (0, 1) for source in (0, 1) for target in (0, 1)} | {
        ("read", by, source, None) for by in (0, 1) for source in (0, 1)
    }
    far = [rate.threads for rate in rates if len({rate.by, rate.source, rate.target} - {None}) > 1]
    assert set(far) == {len(cores)}, "across nodes with all cores only"


def test_a_copy_moves_every_word_whatever_the_number_of_threads():
    source, target = np.arange(1001, dtype=np.uint64), np.zeros(1001, dtype=np.uint64)
    host_rates._timed(Node(0, frozenset(os.sched_getaffinity(0)), True), 3, 1, source, target, np.copyto)
    assert np.array_equal(source, target)


def test_memory_that_lies_on_another_node_is_refused(monkeypatch):
    words = np.zeros(1 << 17, dtype=np.uint64)
    maps = f"{words.ctypes.data & ~0xFFF:x} default anon=256 N1=256 kernelpagesize_kB=4\n"
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_keys: maps)
    assert host_rates._proved([(1, words)])
    with pytest.raises(host_rates.MisplacedMemory, match=r"lie on \{1: 1048576\}"):
        host_rates._proved([(0, words)])


def test_a_program_that_answers():
    answer = ask([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"], 60)
    assert (answer.out, answer.errors, answer.fault) == ("out\n", "err\n", None)


def test_a_program_that_fails_says_why():
    answer = ask([sys.executable, "-c", "import sys; sys.exit('no\\n driver')"], 60)
    assert answer.fault == "no driver"
    assert ask([sys.executable, "-c", "raise SystemExit(9)"], 60).fault == "ended with status 9 and said nothing"


def test_a_program_that_is_not_there_is_an_answer(tmp_path):
    assert ask([str(tmp_path / "nvidia-smi")], 60).fault == f"{tmp_path}/nvidia-smi: no such program"
    (tmp_path / "text").write_text("no program")
    assert "cannot be run: Permission denied" in str(ask([str(tmp_path / "text")], 60).fault)


def ended(stat: Path) -> bool:
    """Whether a process that was killed is gone or a zombie; on a busy machine the kernel takes a moment for it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_a_program_that_hangs_is_given_up_with_all_that_it_started(tmp_path):
    # The grandchild would keep a pipe open for an hour, and what was said before the time was over is kept.
    program = "echo said; sleep 3600 & echo $! > child; wait"
    answer = ask(["sh", "-c", f"cd {tmp_path}; {program}"], 2)
    assert answer.fault == "sh: no answer within 2 s" and answer.out == "said\n"
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    assert ended(child)
