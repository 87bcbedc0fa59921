"""Rows of the table `memory`: both sides by component, each with its source, in the table's columns."""

from pathlib import Path

from spillway.fit.architectures import describe
from spillway.fit.budget import GIB, Capacity, Demand, OnHost, budget
from spillway.fit.placing import spread
from spillway.fit.rows import Amount, amounts, memory_rows
from spillway.record import parquet


def test_one_row_for_each_component_of_either_side(tmp_path: Path) -> None:
    predicted = {"routed experts": Amount(10, "computed"), "norms": Amount(1, "computed")}
    measured = {"routed experts": Amount(11, "checkpoint header"), "whole process": Amount(99, "process memory")}
    rows = memory_rows("run", 0, "host", predicted, measured)
    assert [(row["component"], row["predicted_bytes"], row["measured_bytes"]) for row in rows] == [
        ("routed experts", 10, 11),
        ("norms", 1, None),
        ("whole process", None, 99),
    ]
    assert rows[2]["predicted_from"] is None
    parquet.write(tmp_path / "e1.memory.parquet", "memory", rows, {})


def test_a_budget_as_amounts(qwen3_30b: dict[str, object]) -> None:
    model = describe(qwen3_30b)
    capacity = Capacity(1, 140 * GIB, 130 * GIB, 256 * GIB)
    found = budget(model, capacity, Demand(4096, 1, "bf16"), OnHost(spread(model, 100)), [("headroom", 5, "stated")])
    on_gpu, on_host = amounts(found, "gpu"), amounts(found, "host")
    assert sum(amount.bytes for amount in on_gpu.values()) == found.total("gpu")
    assert on_host == {"routed experts": Amount(100 * 3 * 2048 * 768 * 2, "computed")}
    assert on_gpu["headroom"] == Amount(5, "stated")
