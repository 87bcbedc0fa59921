"""The line below which decode cannot go while host experts are read in place, on rows whose answer is known."""

from pathlib import Path
from typing import Any

import pytest

from spillway.measure.link_line import link_lines
from spillway.spec.experiment import OnHost, Resolved, resolve

ROOT = Path(__file__).resolve().parents[3]
CELL = "decode cold_share=0.05"


@pytest.fixture
def on() -> OnHost:
    asked = resolve(ROOT, "e2_stock_offload", "h200")
    assert isinstance(asked, Resolved) and isinstance(asked.on, OnHost)
    return asked.on


def tables(**changes: Any) -> dict[str, list[dict[str, Any]]]:
    speeds = {"all in VRAM": 0.004, "placed": 0.0084, "placed, counted": 0.009, "uva, KV blocks of 128": 0.027}
    request = {"cell": CELL, "phase": "measured", "outcome": "ok"}
    nothing = dict.fromkeys(("decode_steps", "host_reads", "host_read_bytes"))
    counted = {"decode_steps": 100, "host_reads": 2000, "host_read_bytes": 20_000_000_000} | changes
    return {
        "requests": [request | {"arm": arm, "tpot_s": tpot_s * part} for arm, tpot_s in speeds.items() for part in (0.9, 1, 3)]
        + [request | {"arm": "placed", "tpot_s": 9.0, "phase": "warmup"}],
        "cells": [{"run": "r", "arm": a, "cell": CELL} | (counted if a == "placed, counted" else nothing) for a in speeds],
        "arms": [{"arm": arm, "host_read_bytes_per_s": 50e9 if "placed" in arm else None} for arm in speeds],
    }


def test_the_line_is_all_in_vram_and_the_time_of_the_bytes_read(on: OnHost) -> None:
    rows = {row["arm"]: row for row in link_lines(on, tables())}
    assert list(rows) == ["placed", "placed, counted"]
    # 200 MB a step at 50 GB/s take 4 ms, on top of 4.
    assert rows["placed"] == {
        "run": "r", "arm": "placed", "cell": CELL, "step_host_bytes": 200e6, "host_read_bytes_per_s": 50e9,
        "in_vram_tpot_s": 0.004, "line_s": pytest.approx(0.008), "tpot_s": pytest.approx(0.0084),
        "over_line_ratio": pytest.approx(1.05),
    }  # fmt: skip


def test_without_steps_counted_or_a_rate_there_is_no_line(on: OnHost) -> None:
    assert link_lines(on, tables(decode_steps=0)) == []
    unread = tables()
    unread["arms"] = [row | {"host_read_bytes_per_s": None} for row in unread["arms"]]
    assert link_lines(on, unread) == []
