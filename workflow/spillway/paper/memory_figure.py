"""The figure of memory: what each place holds, stacked by component, predicted above measured."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spillway.paper import style
from spillway.paper.style import Frames
from spillway.paper.tables import by_arm

TOTALS = ("whole process", "whole GPU")
"""What a place holds in all, as the system reports it: drawn as an outline around the parts."""
_COLORS = {
    "routed experts": style.BLUE,
    "placed experts": style.BLUE,
    "shared experts": style.SKY,
    "all weights": style.SKY,
    "attention": style.ORANGE,
    "embedding": style.GREEN,
    "head": style.PURPLE,
    "engram tables": style.YELLOW,
    "KV cache": style.GREY,
    "draft layers": style.VERMILION,
    "vision": style.BLACK,
}
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def draw_memory(frames: Frames) -> Figure:
    """Bytes at each place in the first boot, a panel for each, on a scale of its own."""
    rows = frames["e1_memory.memory"]
    rows = rows[rows["boot"] == rows["boot"].min()]
    places = [(arm, str(place), part) for arm, of in by_arm(rows).items() for place, part in of.groupby("place", sort=False)]
    figure = Figure(figsize=(style.WIDE_IN, 0.45 + 0.62 * len(places)))
    for axes, (arm, place, part) in zip(figure.subplots(len(places), 1, squeeze=False).flat, places, strict=True):
        unit = _stack(axes, part)
        axes.set_title(f"{arm}: {place} ({unit})" if arm else f"{place} ({unit})", loc="left", pad=2)
    style.legend_below(figure, columns=6)
    return figure


def _stack(axes: Axes, part: pd.DataFrame) -> str:
    """Both stacks of one place; returns the unit of the axis."""
    sides = {"predicted": part["predicted_bytes"], "measured": part["measured_bytes"]}
    most = pd.concat(list(sides.values())).max()
    unit, size = next(((name, size) for name, size in _UNITS if most >= size), _UNITS[-1])
    for y, values in enumerate(sides.values()):
        left = 0.0
        for component, value in zip(part["component"], values / size, strict=True):
            if pd.isna(value):
                continue
            if component in TOTALS:
                axes.barh(y, value, height=0.8, facecolor="none", edgecolor=style.BLACK, linewidth=0.7, linestyle="--",
                          label=component)  # fmt: skip
            else:
                axes.barh(y, value, left=left, height=0.6, color=_COLORS.get(component, style.LIGHT), edgecolor="white",
                          linewidth=0.3, label=component)  # fmt: skip
                left += value
    style.categories(axes, list(sides))
    axes.set_xlim(left=0)
    return unit
