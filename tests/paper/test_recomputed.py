"""Every number of the paper once more, in plain Python from the rows: no pandas, and none of the code that makes numbers."""

import bisect
import csv
import itertools
import math
import statistics
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from spillway.paper.numbers import evaluate
from tests.conftest import ROOT

HOST = "cpu"
FACTORS = {
    "s": 1.0, "ms": 1e3, "min": 1 / 60, "h": 1 / 3600, "B": 1.0, "kB": 1e-3, "MB": 1e-6, "GB": 1e-9, "KiB": 1 / 1024,
    "MiB": 1 / 1024**2, "GiB": 1 / 1024**3, "MB/s": 1e-6, "GB/s": 1e-9, "us": 1e6,
}  # fmt: skip
MEASURED = ("_s", "_bytes")  # columns in seconds, in bytes, and in bytes per second


def quantile(values: list[float], fraction: float) -> float:
    """Between the two samples that the fraction falls between, in proportion."""
    ordered = sorted(values)
    below = math.floor(at := fraction * (len(ordered) - 1))
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


STATISTICS: dict[str, Callable[[list[Any]], float]] = {
    "only": lambda values: float(values[0]),
    "distinct": lambda values: float(len(set(values))),
    "min": lambda values: float(min(values)),
    "max": lambda values: float(max(values)),
    "mean": lambda values: statistics.fmean(values),
    "median": lambda values: float(statistics.median(values)),
    "sum": lambda values: math.fsum(values),
    "p5": lambda values: quantile(values, 0.05),
    "p95": lambda values: quantile(values, 0.95),
}


def rows_of(file: str) -> list[dict[str, Any]]:
    path = ROOT / "data" / file
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    with path.open(newline="", encoding="utf-8") as text:
        return [{name: number(cell) for name, cell in row.items()} for row in csv.DictReader(text)]


def number(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return cell or None


def fits(rows: list[dict[str, Any]], where: dict[str, Any]) -> list[dict[str, Any]]:
    for column, wanted in where.items():
        if wanted == "@known":
            rows = [row for row in rows if row[column] is not None]
        elif wanted not in ("@min", "@max"):
            rows = [row for row in rows if row[column] == wanted]
    for column, wanted in where.items():
        if wanted in ("@min", "@max"):
            extreme = {"@min": min, "@max": max}[wanted](row[column] for row in rows)
            rows = [row for row in rows if row[column] == extreme]
    return rows


def test_every_number_is_what_its_rows_give() -> None:
    content = evaluate(ROOT, HOST)
    definitions = yaml.safe_load((ROOT / "paper/numbers.yaml").read_text(encoding="utf-8"))
    checked = 0
    for key, values in content.numbers.items():
        asked = definitions[key]
        if not asked.get("file") or "provenance" in asked or "over_boots" in asked or "relative_to" in asked:
            continue
        by = asked.get("by", [])
        groups = [by] if isinstance(by, str) else by
        host = asked.get("host", HOST)
        if not (ROOT / "data" / host / f"{asked['file']}.parquet").exists():
            host = asked.get("otherwise", host)
        file = asked["file"] if "/" in asked["file"] else f"{host}/{asked['file']}.parquet"
        if not (ROOT / "data" / file).exists():
            assert values == [], f"{key}: a value of a table that is not there"
            continue
        rows = fits(rows_of(file), asked.get("where", {}))
        for value in values:
            mine = [row for row in rows if tuple(str(row.get(group, "")) for group in groups) == value.parts]
            assert len(mine) == value.rows, value.name
            if asked["statistic"] == "count":
                assert value.value == len(mine), value.name
            elif asked.get("text"):
                assert value.value in ", ".join(dict.fromkeys(str(row[asked["column"]]) for row in mine)), value.name
            elif isinstance(value.value, float):
                column = [row[asked["column"]] for row in mine]
                expected = STATISTICS[asked["statistic"]](column) * asked.get("scale", 1.0)
                if asked["column"].endswith(MEASURED) and asked["statistic"] != "distinct":
                    expected *= FACTORS.get(asked.get("unit", ""), 1.0)
                if asked["column"].endswith("_fraction") and asked.get("unit") == "%":
                    expected *= 100
                assert value.value == pytest.approx(expected, rel=1e-12), value.name
            checked += 1
    assert checked > 200


def of_h200(table: str) -> list[dict[str, Any]]:
    return rows_of(f"h200/e15_follow.{table}.parquet")


def period_of(routing: str) -> float:
    """As the arms' table says it: `2 sets of them in turn, 30 s each`."""
    return float(routing.split(" s each")[0].split()[-1])


def counted_by_arm() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(of_h200("requests"), key=lambda row: row["first_output_s"] or 0.0):
        if row["phase"] == "measured" and row["outcome"] == "ok" and row["tpot_s"] is not None:
            found.setdefault(row["arm"], []).append(row)
    return found


def starts_of_cells() -> dict[str, float]:
    return {row["arm"]: datetime.fromisoformat(row["started_at"]).timestamp() for row in of_h200("cells")}


def test_times_to_recover_follow_from_requests_and_the_clock() -> None:
    served, began = counted_by_arm(), starts_of_cells()
    matched = statistics.median(row["tpot_s"] for row in served["static, no shift"])
    (every_s,) = {period_of(row["routing"]) for row in of_h200("arms") if row["arm"] == "following"}
    rows = served["following"]
    expected = {}
    for turn in range(math.ceil((began["following"] + rows[0]["first_output_s"]) / every_s), 10**12):
        at_s = turn * every_s - began["following"]
        if at_s + every_s > rows[-1]["last_output_s"]:
            break
        threes = zip(rows, rows[1:], rows[2:], strict=False)
        back = (three[0]["first_output_s"] for three in threes
                if three[0]["first_output_s"] >= at_s and all(row["tpot_s"] <= 1.1 * matched for row in three))  # fmt: skip
        first = next(back, math.inf) - at_s
        expected[round(at_s, 3)] = first if first < every_s else None
    recorded = {round(row["at_s"], 3): row["recovered_s"] for row in of_h200("shifts")}
    assert len(expected) > 1
    assert recorded == pytest.approx(expected, rel=1e-9)
    for row in of_h200("shifts"):
        assert row["matched_tpot_s"] == pytest.approx(matched, rel=1e-9)


def test_step_times_follow_from_chunks_seconds_and_the_clock() -> None:
    served, began = counted_by_arm(), starts_of_cells()
    every_s = {row["arm"]: period_of(row["routing"]) for row in of_h200("arms") if " s each" in row["routing"]}
    arrived: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in (row for row in of_h200("chunks") if row["kind"] != "none"):
        arrived.setdefault((row["arm"], row["request"]), []).append((row["chunk"], row["at_s"]))
    seconds = sorted((row["t_s"], row["swaps"]) for row in of_h200("residency") if row["arm"] == "following")
    ends = [end for end, _ in seconds]
    gaps: dict[tuple[str, str], list[float]] = {}
    for arm, rows in served.items():
        for row in rows:
            times = [at_s for _, at_s in sorted(arrived[arm, row["request"]])]
            for before, at_s in itertools.pairwise(times):
                phases = ["all"]
                second = bisect.bisect_left(ends, at_s)
                if arm == "following" and second < len(ends) and seconds[second][1] > 0:
                    phases.append("experts move")
                if arm == "static" and (at_s + began[arm]) // every_s[arm] % 2 == 1:
                    phases.append("plan does not match")
                for phase in phases:
                    gaps.setdefault((arm, phase), []).append(at_s - before)
    recorded = {(row["arm"], row["phase"]): row for row in of_h200("step_times")}
    assert set(recorded) == set(gaps)
    for key, row in recorded.items():
        assert row["steps"] == len(gaps[key]), key
        assert row["median_s"] == pytest.approx(statistics.median(gaps[key]), rel=1e-9), key
        assert row["p99_s"] == pytest.approx(quantile(gaps[key], 0.99), rel=1e-9), key


def test_both_languages_print_the_rounding_of_the_value() -> None:
    for values in evaluate(ROOT, HOST).numbers.values():
        for value in values:
            if isinstance(value.value, str):
                continue
            english = Decimal(value.texts["en"].replace(",", "").replace("−", "-"))
            spanish = Decimal(value.texts["es"].replace("\u202f", "").replace(",", ".").replace("−", "-"))
            assert english == spanish, value.name
            half = Decimal(5).scaleb(-1 + int(english.as_tuple().exponent))
            assert abs(english - Decimal(repr(float(value.value)))) <= half, value.name


def test_the_plain_statistics_are_right() -> None:
    assert quantile([4, 1, 3, 2], 0.05) == pytest.approx(1.15) and quantile([7], 0.95) == 7
    assert fits([{"a": 1, "b": None}, {"a": 2, "b": 3}, {"a": 2, "b": 5}], {"a": "@max", "b": "@known"}) == [
        {"a": 2, "b": 3}, {"a": 2, "b": 5},
    ]  # fmt: skip
