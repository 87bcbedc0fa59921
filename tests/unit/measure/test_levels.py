"""Levels of streams are judged over all starts of an arm, each cold share and situation on its own."""

import dataclasses
from typing import Any

import pytest

from spillway.measure.levels import capacity_rows
from spillway.record import parquet
from spillway.spec.experiment import OnHost, Resolved, resolve
from tests.conftest import ROOT


def asked_of(name: str, host: str) -> tuple[Resolved, OnHost]:
    asked = resolve(ROOT, name, host)
    assert isinstance(asked, Resolved) and isinstance(asked.on, OnHost)
    return asked, asked.on


@pytest.mark.parametrize("name", ["e6_situations", "e13_agents"])
def test_of_one_start_it_is_what_was_recorded_when_each_start_was_judged(name: str) -> None:
    requests = parquet.read_rows(ROOT / f"data/cpu/{name}.requests.parquet")
    recorded = parquet.read_rows(ROOT / f"data/cpu/{name}.capacity.parquet")
    found = capacity_rows(*asked_of(name, "cpu"), {"requests": requests})
    assert len(found) == len(recorded) and [{key: row[key] for key in recorded[0]} for row in found] == recorded


def request(boot: int, arm: str, rate: float) -> dict[str, Any]:
    return {
        "run": "r",
        "boot": boot,
        "arm": arm,
        "cell": "agents streams=1",
        "cold_share_fraction": 0.05,
        "streams": 1,
        "phase": "measured",
        "outcome": "ok",
        "prompt_tokens": 100 * (boot + 1),
        "rate_tok_per_s": rate,
    }


def test_several_starts_together_have_the_turns_for_a_percentile_that_one_lacks() -> None:
    asked, on = asked_of("e13_agents", "h200")
    rows = [request(boot, "30B, 5 % cold", 50.0 + turn) for boot in range(3) for turn in range(24)]
    failed = [request(0, "30B, 5 % cold", 1.0) | {"outcome": "timeout"}, request(0, "30B, 5 % cold", 1.0) | {"phase": "warmup"}]
    (together,) = capacity_rows(asked, on, {"requests": rows + failed})
    (alone,) = capacity_rows(asked, on, {"requests": rows[:24]})
    assert (together["boot"], together["requests"], together["median_prompt_tokens"]) == (2, 72, 200)
    assert together["p5_tok_per_s"] is not None and together["holds"] is True
    assert (alone["boot"], alone["p5_tok_per_s"], alone["holds"], alone["capacity_is"]) == (0, None, None, "at least")
    slower = [request(0, "30B, uniform", 10.0) for _ in range(24)]
    assert [(row["arm"], row["capacity_streams"]) for row in capacity_rows(asked, on, {"requests": rows + slower})] == [
        ("30B, 5 % cold", 1),
        ("30B, uniform", 0),
    ]


def test_without_a_floor_nothing_is_judged() -> None:
    asked, on = asked_of("e13_agents", "h200")
    plain = dataclasses.replace(asked, experiment=asked.experiment.model_copy(update={"floor_tok_per_s": None}))
    assert capacity_rows(plain, on, {"requests": [request(0, "30B, 5 % cold", 50.0)]}) == []
