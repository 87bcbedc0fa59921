"""Time to recover after a shift, and step times by phase, on rows whose answer is known."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from spillway.measure.shifts import recoveries, shift_tables
from spillway.spec.experiment import OnHost, Resolved, resolve

ROOT = Path(__file__).resolve().parents[3]
EVERY_S = 10.0


def requests(speeds: dict[float, float]) -> pd.DataFrame:
    """One request for each time of a first token -> TPOT in ms; each lasts 0.9 s."""
    rows = [{"first_output_s": at, "last_output_s": at + 0.9, "tpot_s": ms / 1e3} for at, ms in speeds.items()]
    return pd.DataFrame(rows)


def test_recovery_counts_from_the_shift_to_the_first_of_three_fast_requests() -> None:
    # The cell's clock read 0 at 1003 s, so shifts come at 7, 17 and 27 s.
    slow = {8: 30, 9: 8, 10: 30, 11: 8, 12: 8, 13: 8, 14: 8, 15: 8, 16: 8, 18: 30, 19: 30, 26: 30, 28: 8, 29: 8, 30: 8}
    found = recoveries(requests({5.0: 8.0} | {float(at): float(ms) for at, ms in slow.items()}), EVERY_S, 1003.0, 0.0085)
    assert found == [
        {"at_s": 7.0, "recovered_s": 4.0},  # the lone fast one at 9 s is chance
        {"at_s": 17.0, "recovered_s": None},  # not before the next shift
    ]  # that of 27 s is not followed for its whole time


def test_a_shift_that_the_end_cuts_off_says_nothing() -> None:
    assert recoveries(requests({5.0: 8.0, 8.0: 30.0, 9.0: 30.0}), EVERY_S, 1003.0, 0.0085) == []
    assert recoveries(requests({5.0: 8.0, 6.0: 8.0}), EVERY_S, 1003.0, 0.0085) == []


def rows_of(arm: str, tpots: list[float]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Requests a second long from 0 s on, each with three chunks; the steps of one take its TPOT."""
    keys = {"run": "r", "boot": 0, "arm": arm, "cell": "decode"}
    requests, chunks = [], []
    for number, tpot_s in enumerate(tpots):
        times = [number + 0.1 + i * tpot_s for i in range(3)]
        ends = {"first_output_s": times[0], "last_output_s": times[-1], "tpot_s": tpot_s}
        requests.append(keys | {"request": number, "phase": "measured", "outcome": "ok"} | ends)
        chunks += [keys | {"request": number, "chunk": i, "at_s": at, "kind": "text"} for i, at in enumerate(times)]
        chunks.append(keys | {"request": number, "chunk": 3, "at_s": times[-1], "kind": "none"})  # the usage alone: no step
    # A warm-up request, which counts for nothing.
    requests.append(keys | {"request": 99, "phase": "warmup", "outcome": "ok", "first_output_s": 0.0, "last_output_s": 9.0,
                            "tpot_s": 9.0})  # fmt: skip
    chunks += [keys | {"request": 99, "chunk": i, "at_s": 9.0 * i, "kind": "text"} for i in range(2)]
    return requests, chunks


def test_both_tables_of_the_experiment() -> None:
    asked = resolve(ROOT, "e15_follow", "h200")
    assert isinstance(asked, Resolved) and isinstance(asked.on, OnHost)
    every_s = asked.on.served()["following"].routing.shift_every_s  # type: ignore[union-attr]
    assert every_s == 30
    # The cells begin 10 s before a shift to the second set of experts, for which the plan is not.
    speeds = {
        "all in VRAM": [0.004] * 45, "static, no shift": [0.008] * 45, "following, no shift": [0.008] * 45,
        "static": [0.008] * 10 + [0.02] * 30 + [0.008] * 5, "following": [0.008] * 10 + [0.03] * 5 + [0.008] * 30,
    }  # fmt: skip
    tables: dict[str, list[dict[str, Any]]] = {"requests": [], "chunks": [], "cells": [], "residency": []}
    for arm, tpots in speeds.items():
        sent, chunks = rows_of(arm, tpots)
        tables["requests"] += sent
        tables["chunks"] += chunks
        started = {"started_at": "2023-11-14T22:13:20.000+00:00"}  # 1,700,000,000 s: 20 s of an even turn are over
        tables["cells"].append({"run": "r", "boot": 0, "arm": arm, "cell": "decode"} | started)
    for second in range(1, 46):
        row = {"run": "r", "boot": 0, "cell": "decode", "t_s": float(second), "swaps": 3 if 11 <= second <= 15 else 0}
        tables["residency"].append(row | {"arm": "following"})
    made = shift_tables(asked.on, tables)
    (shift,) = made["shifts"]
    assert shift == {"run": "r", "boot": 0, "arm": "following", "cell": "decode", "shift": 0, "matched_tpot_s": 0.008,
                     "at_s": 10.0, "recovered_s": pytest.approx(5.1)}  # fmt: skip
    times = {(row["arm"], row["phase"]): (row["steps"], round(row["median_s"], 6)) for row in made["step_times"]}
    assert times[("all in VRAM", "all")] == (90, 0.004)
    assert times[("following", "experts move")] == (10, 0.03)
    assert times[("static", "plan does not match")] == (60, 0.02)
    assert ("static, no shift", "plan does not match") not in times and len(times) == 7
    # Where the arm that recovery is held against gave nothing, no shift is judged.
    unmatched = [row for row in tables["requests"] if row["arm"] != "static, no shift"]
    assert shift_tables(asked.on, tables | {"requests": unmatched})["shifts"] == []


def test_experiments_without_shifts_have_neither() -> None:
    asked = resolve(ROOT, "e14_plan_choice", "h200")
    assert isinstance(asked, Resolved) and isinstance(asked.on, OnHost)
    sent, chunks = rows_of("coldest", [0.008])
    assert shift_tables(asked.on, {"requests": sent, "chunks": chunks, "cells": [], "residency": []}) == {}
