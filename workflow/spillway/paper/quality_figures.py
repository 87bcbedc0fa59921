"""The figure about quality: paired differences with their intervals and margins, and the article's beside them."""

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spillway.paper.style import BLACK, BLUE, GREY, ORANGE, SMALL, WIDE_IN, Frames

ROW_IN = 0.24
PUBLISHED = "published: the article against its vendor's API"
LABELS = {"gsm8k": "GSM8K", "ifeval": "IFEval", "humaneval": "HumanEval"}


def draw_quality(frames: Frames) -> Figure:
    """Forest plot: one line for each comparison and task, A/A in grey; below, the article's comparison as published."""
    ours = frames["e8_quality.quality_paired"]
    ours = ours[(ours["reading"] == "all items") & (ours["verdict"] != "not judged")]
    published = frames["e8_quality.quality_published"]
    comparisons = list(dict.fromkeys(ours["comparison"]))
    rows = len(ours) + len(comparisons) + 2 * len(published) + 1
    figure = Figure(figsize=(WIDE_IN, 0.7 + ROW_IN * rows))
    axes = figure.subplots()
    labels: list[tuple[float, str]] = []
    y = 0.0
    for comparison in comparisons:
        part = ours[ours["comparison"] == comparison]
        labels.append((y, comparison))
        color = GREY if bool(part["same"].iloc[0]) else BLUE
        for row in part.to_dict("records"):
            y += 1
            _line(axes, y, row["difference_fraction"], row["low_fraction"], row["high_fraction"], color, "o")
            axes.plot([-row["margin_fraction"]] * 2, [y - 0.4, y + 0.4], color=BLACK, linewidth=0.8)
            labels.append((y, f"{LABELS[row['task']]}, {row['items']} items"))
        y += 1
    labels.append((y, PUBLISHED))
    for row in published.to_dict("records"):
        for low, high, what, marker in (
            (row["published_low_fraction"], row["published_high_fraction"], "as stated", "s"),
            (row["score_low_fraction"], row["score_high_fraction"], "score interval", "D"),
        ):
            if pd.notna(low):
                y += 1
                _line(axes, y, row["published_difference_fraction"], low, high, ORANGE, marker)
                labels.append((y, f"{LABELS[row['task']]}, {row['items']} items, {what}"))
    axes.axvline(0, color=BLACK, linewidth=0.6)
    axes.set_yticks([at for at, _ in labels], [text for _, text in labels], fontsize=SMALL)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y + 0.6, -0.6)
    axes.set_xlabel("share of items solved: a less b, 95 percent interval; upright: margin")
    return figure


def _line(axes: Axes, y: float, middle: float, low: float, high: float, color: str, marker: str) -> None:
    axes.plot([low, high], [y, y], color=color, linewidth=1.2)
    axes.plot([middle], [y], marker, color=color, markersize=4)


FIGURES: dict[str, Callable[[Frames], Figure]] = {"quality": draw_quality}
