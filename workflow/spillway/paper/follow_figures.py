"""What is drawn of residency that follows traffic: one clock for all arms, and where reads of experts went."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from spillway.paper.style import label, shares
from spillway.record.parquet import RecordError


def first_start(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first start of the server of each arm."""
    first: pd.DataFrame = rows[rows["boot"] == rows["boot"].min()]
    return first


def clocks(cells: pd.DataFrame, shifts: pd.DataFrame) -> tuple[float, dict[str, float]]:
    """Time between two shifts, and what to add to each arm's clock so that shifts come at whole multiples of it; in seconds.

    `cells` and `shifts` hold the rows of one cell and start. Shifts come at multiples of the period in Unix time, so with one
    that is known they are known for every arm. Raises RecordError if fewer than two shifts were recorded: the period is not
    known then.
    """
    if len(shifts) < 2:
        raise RecordError(f"e15_follow.shifts: {len(shifts)} shifts in the first start; expected two or more: measure longer")
    every_s = float(shifts["at_s"].diff().min())
    began = {
        str(arm): datetime.fromisoformat(at).timestamp() for arm, at in zip(cells["arm"], cells["started_at"], strict=True)
    }
    shift = began[str(shifts["arm"].iloc[0])] + float(shifts["at_s"].iloc[0])
    return every_s, {arm: (start - shift) % every_s for arm, start in began.items()}


def draw_cold_share(
    axes: Axes, residency: pd.DataFrame, styles: Mapping[str, Mapping[str, Any]], ahead_s: Mapping[str, float]
) -> None:
    """Share of expert reads that met the host over a cell's time, of each following arm's first boot.

    `residency` holds the rows of one cell; `styles` has the line of each arm, as in the panel above; `ahead_s` is added to the
    arm's clock.
    """
    for arm, part in residency.groupby("arm", sort=False):
        known = part[part["host_share_fraction"].notna()].sort_values("t_s")
        axes.plot(known["t_s"] + ahead_s[str(arm)], known["host_share_fraction"], **(dict(styles[str(arm)]) | {"label": arm}))
    label(axes, "", "reads on the host")
    shares(axes.yaxis)
