"""One look for all figures: colours that stay apart in grey, sizes, fonts."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Frames = dict[str, pd.DataFrame]

DARK, MIDDLE, LIGHT = "#1b3a5c", "#6b8fb3", "#c9d6e3"  # their greys differ by a third of the scale each
STYLE: dict[Any, Any] = {
    "pdf.fonttype": 42,  # TrueType, not Type 3: text in the figures can be searched and is accepted by publishers
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.constrained_layout.use": True,
}
WIDE_IN, HALF_IN, HEIGHT_IN = 5.6, 3.05, 2.3


def one_axes(width_in: float = WIDE_IN, height_in: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(width_in, height_in))
    return figure, figure.subplots()
