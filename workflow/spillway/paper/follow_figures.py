"""Where reads of experts went while residency followed traffic: the panel below TPOT over time."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from spillway.paper.style import label, shares


def draw_cold_share(axes: Axes, residency: pd.DataFrame, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Share of expert reads that met the host over a cell's time, of each following arm's first boot.

    `residency` holds the rows of one cell; `styles` has the line of each arm, as in the panel above.
    """
    for arm, part in residency.groupby("arm", sort=False):
        first = part[(part["boot"] == part["boot"].min()) & part["host_share_fraction"].notna()].sort_values("t_s")
        axes.plot(first["t_s"], first["host_share_fraction"], **(dict(styles[str(arm)]) | {"markersize": 1.5, "label": arm}))
    label(axes, "", "reads on the host")
    shares(axes.yaxis)
