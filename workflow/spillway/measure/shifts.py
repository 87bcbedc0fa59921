"""What a change of the hot experts costs, from the rows of a run: time to recover, and how long steps take meanwhile.

    python -m spillway.measure.shifts RUN_FOLDER      # the same for a run that was measured before these tables were

Both tables are computed from the run's others, at its end, by the definitions in record/tables.py.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spillway.measure.run import Rows, Tables
from spillway.measure.tpot import median_tpot_s
from spillway.record import parquet
from spillway.record.provenance import commit
from spillway.spec.arm import Arm, Routing
from spillway.spec.experiment import OnHost, Resolved, resolve

WITHIN = 1.1
IN_A_ROW = 3
NEEDED = ("requests", "chunks", "cells", "residency")


def shift_tables(on: OnHost, tables: Mapping[str, Rows]) -> Tables:
    """The tables `shifts` and `step_times`; nothing where no arm follows a routing that shifts."""
    arms = on.served()
    if not any(follows(arm) and shifting(arm) for arm in arms.values()) or any(not tables.get(name) for name in NEEDED):
        return {}
    requests, chunks, cells, residency = (pd.DataFrame(tables[name]) for name in NEEDED)
    requests = requests[(requests["phase"] == "measured") & (requests["outcome"] == "ok") & requests["tpot_s"].notna()]
    shifts: Rows = []
    steps: Rows = []
    for cell in cells.to_dict("records"):
        arm, start_s = arms[str(cell["arm"])], datetime.fromisoformat(str(cell["started_at"])).timestamp()
        keys = {name: cell[name] for name in ("run", "boot", "arm", "cell")}
        of_cell = _of(requests, keys).sort_values("first_output_s")
        still = _still(arms, arm) if follows(arm) and shifting(arm) else None
        matched_s = None if still is None else median_tpot_s(tables, still, keys["cell"])
        if matched_s is not None:
            found = recoveries(of_cell, period_s(arm), start_s, WITHIN * matched_s)
            shifts += [keys | {"shift": i, "matched_tpot_s": matched_s} | each for i, each in enumerate(found)]
        gaps = _gaps(_of(chunks, keys), of_cell)
        for phase, chosen in _phases(arm, gaps, _of(residency, keys), start_s):
            if len(chosen):
                spread = {"median_s": float(np.median(chosen)), "p99_s": float(np.quantile(chosen, 0.99))}
                steps.append(keys | {"phase": phase, "steps": len(chosen)} | spread)
    return {"shifts": shifts, "step_times": steps}


def recoveries(requests: pd.DataFrame, every_s: float, start_s: float, bound_s: float) -> Rows:
    """Shifts inside the time of one cell's requests, sorted by first token, and when speed was back after each.

    `start_s` is the Unix time at which the cell's clock read 0. A shift counts if the requests go on until the next one.
    """
    first, last = requests["first_output_s"].min(), requests["last_output_s"].max()
    times, good = requests["first_output_s"].to_numpy(), (requests["tpot_s"] <= bound_s).to_numpy()
    found: Rows = []
    at_s = np.ceil((start_s + first) / every_s) * every_s - start_s
    while at_s < last:
        inside = np.flatnonzero((times >= at_s) & (times < at_s + every_s))
        back = next((i for i in inside if i + IN_A_ROW <= len(good) and good[i : i + IN_A_ROW].all()), None)
        if at_s + every_s <= last:
            found.append({"at_s": float(at_s), "recovered_s": None if back is None else float(times[back] - at_s)})
        at_s += every_s
    return found


def follows(arm: Arm) -> bool:
    """Whether the arm's experts move."""
    return arm.residency is not None and arm.residency.startswith("follow")


def shifting(arm: Arm) -> bool:
    """Whether its hot experts change."""
    return arm.routing is not None and arm.routing.shift_every_s is not None


def period_s(arm: Arm) -> float:
    """Time between two shifts of an arm whose routing shifts."""
    assert arm.routing is not None and arm.routing.shift_every_s is not None
    return arm.routing.shift_every_s


def _still(arms: Mapping[str, Arm], arm: Arm) -> str | None:
    """The arm with the same plan whose experts stay, under the same routing without shifts: what recovery is held against."""
    assert arm.routing is not None
    same = Routing(**arm.routing.model_dump(exclude={"shift_every_s", "sets"}))
    others = (name for name, other in arms.items() if other.plan == arm.plan and other.routing == same and not follows(other))
    return next(others, None)


def _of(rows: pd.DataFrame, keys: Mapping[str, Any]) -> pd.DataFrame:
    for name, wanted in keys.items():
        rows = rows[rows[name] == wanted]
    return rows


def _gaps(chunks: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """Time between two chunks of one answer of a measured request, `gap_s`, at the later one's `at_s`."""
    # A chunk without output, such as the usage alone at an answer's end, is no step.
    chunks = chunks[(chunks["kind"] != "none") & chunks["request"].isin(requests["request"])].sort_values(["request", "chunk"])
    return chunks.assign(gap_s=chunks.groupby("request")["at_s"].diff()).dropna(subset="gap_s")


def _phases(
    arm: Arm, gaps: pd.DataFrame, residency: pd.DataFrame, start_s: float
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Gaps by phase: all of them; and where an arm with a plan meets shifts, those that the definitions single out."""
    yield "all", gaps["gap_s"].to_numpy()
    if arm.plan is None or not shifting(arm):
        return
    if follows(arm):
        ends, moved = residency["t_s"].to_numpy(), residency["swaps"].to_numpy() > 0
        at = np.searchsorted(ends, gaps["at_s"].to_numpy())
        yield "experts move", gaps["gap_s"].to_numpy()[np.append(moved, False)[at]]
    else:
        assert arm.routing is not None
        turn = (gaps["at_s"].to_numpy() + start_s) // period_s(arm) % arm.routing.sets
        yield "plan does not match", gaps["gap_s"].to_numpy()[turn > 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    folder: Path = parser.parse_args().run
    files = {path.name.split(".")[1]: path for path in folder.glob("*.parquet")}
    if absent := [name for name in NEEDED if name not in files]:
        sys.exit(f"shifts: {folder}: no table {absent[0]}; expected the tables of a run whose residency follows traffic")
    origin = parquet.provenance(files["requests"])
    asked = resolve(Path("."), origin["experiment"], origin["host"])
    if not isinstance(asked, Resolved) or not isinstance(asked.on, OnHost) or asked.hash != origin["spec_hash"]:
        sys.exit(f"shifts: {folder}: the experiment has changed since this run was measured; measure it anew")
    made = shift_tables(asked.on, {name: parquet.read_rows(files[name]) for name in NEEDED})
    for table, rows in made.items():
        path = folder / f"{origin['experiment']}.{table}.parquet"
        parquet.write(path, table, rows, origin | {"computed_by": str(commit(Path(".")))})
        print(f"{path}: {len(rows)} rows; now: spillway publish {folder}")


if __name__ == "__main__":
    main()
