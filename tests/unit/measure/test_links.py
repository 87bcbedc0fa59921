"""Rows of e12_topology from what the engine's torch measured, and what the experiment refuses."""

import io

import pytest

from spillway.engine.topology import read_matrix
from spillway.measure import topology
from spillway.measure.errors import MeasureError
from spillway.record import tables
from spillway.spec.topology import LinkRates
from tests.unit import nvidia_smi as smi

LOADED = smi.H200_PAIR.replace(" 1, 5, 16, 16", " 5, 5, 16, 16")


def rate(link, source, target, by, *rates, at_once=1):
    return {"link": link, "source": source, "target": target, "by": by, "at_once": at_once, "rates": rates}


ANSWER = {
    "gpus": [
        {"index": 0, "uuid": "77777777", "node": 0, "under_load": LOADED},
        {"index": 1, "uuid": "GPU-11111111", "node": 1, "under_load": LOADED.replace("5, 5, 16, 16", "4, 5, 16, 16")},
    ],
    "rates": [
        rate("gpu memory", "gpu0", None, "gpu0", 4.4e12, 4.5e12, 4.6e12),
        rate("host to gpu", "node0", "gpu0", "gpu0", 50e9, 55e9, 54e9),
        rate("gpu to host", "gpu1", "node0", "gpu1", 20e9),
        rate("in place", "node1", None, "gpu1", 46e9),
        rate("gpu to gpu", "gpu0", "gpu1", "gpu0", 387e9),
    ],
    "buffer_bytes": 2**30,
}


def test_every_link_gets_its_path_and_says_whether_it_crosses_nodes():
    rows = topology.gpu_rows(ANSWER, read_matrix(smi.MATRIX_TWO_SOCKETS))
    assert [(row["link"], row["path"], row["crosses_nodes"]) for row in rows] == [
        ("gpu memory", None, False),
        ("host to gpu", "PCIe 5 x16", False),
        ("gpu to host", "PCIe 4 x16", True),
        ("in place", "PCIe 4 x16", False),
        ("gpu to gpu", "SYS", True),
    ]
    spread = [rows[1][name] for name in ("repeats", "rate_bytes_per_s", "lowest_bytes_per_s", "highest_bytes_per_s")]
    assert spread == [3, 54e9, 50e9, 55e9]


def test_a_pair_that_the_driver_does_not_name_is_not_guessed():
    row = topology.gpu_rows(ANSWER, read_matrix(""))[-1]
    assert row["path"] is None and row["crosses_nodes"] is None
    assert topology.gpu_rows(ANSWER, read_matrix(smi.MATRIX_H200_PAIR))[-1]["crosses_nodes"] is False


def test_the_rows_fit_the_table():
    columns = tables.TABLES["topology"]
    for row in topology.gpu_rows(ANSWER, read_matrix(smi.MATRIX_TWO_SOCKETS)):
        assert set(row) | {"run"} == set(columns)
        assert all(columns[name].nullable for name, value in row.items() if value is None)


class Asked:
    """As much of a run as the host's rates need."""

    def __init__(self):
        self.log = io.StringIO()
        self.asked = self
        self.name, self.host_name = "e12_topology", "cpu"

    def say(self, text):
        self.log.write(text + "\n")


def test_buffers_grow_past_the_cache_and_must_fit_in_memory(monkeypatch):
    run = Asked()
    monkeypatch.setattr(topology, "last_level_cache_bytes", lambda: 3 * 2**20)
    rows = topology._host_rows(run, LinkRates(buffer_mib=1, repeats=3), topology.nodes())
    assert {row["buffer_bytes"] for row in rows} == {6 * 2**20} and {row["cache_bytes"] for row in rows} == {3 * 2**20}
    assert "buffers of 6 MiB" in run.log.getvalue()
    monkeypatch.setattr(topology, "available_bytes", lambda: 11 * 2**20)
    with pytest.raises(
        MeasureError, match=r"e12_topology.yaml: hosts.cpu.buffer_mib: found 1; two buffers of 6 MiB do not fit in"
    ):
        topology._host_rows(run, LinkRates(buffer_mib=1, repeats=3), topology.nodes())
