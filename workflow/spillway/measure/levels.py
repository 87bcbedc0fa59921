"""The table `capacity`: how fast a stream was at each level of streams, and which levels hold the experiment's floor.

All starts of an arm are judged together: one start of a large model has too few requests for a 5th percentile.
"""

import statistics
from collections.abc import Mapping
from typing import Any

from spillway.load import capacity
from spillway.load.latency import TooFewSamples
from spillway.measure.run import Rows
from spillway.spec.experiment import OnHost, Resolved


def capacity_rows(asked: Resolved, on: OnHost, tables: Mapping[str, Rows]) -> Rows:
    """Rows of the table `capacity`, by arm, cold share, situation and level; none for an experiment without a floor."""
    if asked.experiment.floor_tok_per_s is None:
        return []
    judge = {"floor_tok_per_s": asked.experiment.floor_tok_per_s, "margin_fraction": asked.experiment.margin_fraction}
    parts: dict[tuple[Any, ...], Rows] = {}
    for row in tables.get("requests", []):
        parts.setdefault((row.get("arm"), row.get("cold_share_fraction"), on.situations()[row["cell"]]), []).append(row)
    rows: Rows = []
    for (arm, share, situation), part in parts.items():
        columns = {
            "run": part[0]["run"],
            "boot": max(row["boot"] for row in part),
            **({} if arm is None else {"arm": arm}),
            **({} if share is None else {"cold_share_fraction": share}),
            "situation": situation,
        }
        rows += [columns | level for level in _levels(part, judge)]
    return rows


def _levels(requests: Rows, judge: dict[str, float]) -> Rows:
    """The levels of one situation, each with the capacity that all of them give."""
    counted: dict[int, Rows] = {}
    for row in requests:
        level = counted.setdefault(row["streams"], [])
        if row["phase"] == "measured" and row["outcome"] == "ok" and row["rate_tok_per_s"] is not None:
            level.append(row)
    rates = {streams: [row["rate_tok_per_s"] for row in level] for streams, level in counted.items()}
    levels = [capacity.level(streams, rates[streams]) for streams in sorted(rates)]
    found = capacity.capacity(levels, **judge)
    return [
        judge
        | {
            "streams": each.streams,
            "requests": len(rates[each.streams]),
            "median_prompt_tokens": _median([row["prompt_tokens"] for row in counted[each.streams]]),
            "median_tok_per_s": _known(each.median_tok_per_s),
            "p5_tok_per_s": _known(each.p5_tok_per_s),
            "holds": _known(capacity.holds(each, **judge)),
            "capacity_streams": found.streams,
            "capacity_is": "at least" if found.at_least else "exact",
        }
        for each in levels
    ]


def _median(values: list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def _known(value: Any) -> Any:
    return None if isinstance(value, TooFewSamples) else value
