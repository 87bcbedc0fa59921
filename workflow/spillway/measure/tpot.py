"""The speed of an arm, as other tables hold theirs against it."""

import statistics
from collections.abc import Mapping

from spillway.measure.run import Rows


def median_tpot_s(tables: Mapping[str, Rows], arm: str, cell: str) -> float | None:
    """Over the measured requests of all boots; None where none of them has a TPOT."""
    wanted = (arm, cell, "measured", "ok")
    rows = [row for row in tables["requests"] if (row["arm"], row["cell"], row["phase"], row["outcome"]) == wanted]
    found = [row["tpot_s"] for row in rows if row["tpot_s"] is not None]
    return statistics.median(found) if found else None
