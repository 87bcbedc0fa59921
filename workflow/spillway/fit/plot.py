"""Bytes per GPU, stacked by component, against what a GPU has: without a plan, with one, all experts on the host."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spillway.fit.budget import GIB, MIB
from spillway.fit.report import Placed

FAR_ABOVE = 3
"""A limit so many times the tallest bar is named and not drawn, or the bars could not be read."""
SMALL_SHARE = 0.02
"""Components below this share of the tallest bar are drawn as one, or the legend would be longer than the plot."""
# Okabe and Ito's colours, which people with any colour vision tell apart; grey for what is neither weights nor cache.
COLOURS = {
    "routed experts": "#0072B2",
    "engram tables": "#56B4E9",
    "shared experts": "#009E73",
    "attention": "#E69F00",
    "embedding": "#F0E442",
    "head": "#CC79A7",
    "draft layers": "#8C564B",
    "dense MLP": "#BCBD22",
    "vision": "#17BECF",
    "KV cache": "#D55E00",
    "other weights": "#555555",
}
HEADROOM_COLOURS = ("#B0B0B0", "#D0D0D0", "#E4E4E4")


def plot_placements(placements: Sequence[Placed], title: str) -> Figure:
    """A figure with one stacked bar for each placement; the caller saves it."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes: Axes = figure.add_subplot()
    capacity, usable = placements[0].budget.capacity, placements[0].budget.usable_bytes
    tallest = max(placed.budget.total(capacity.main) for placed in placements)
    unit, scale = ("GiB", GIB) if tallest >= GIB else ("MiB", MIB)
    stacks = [_stack(placed, tallest) for placed in placements]
    names = list(dict.fromkeys(name for stack in stacks for name in stack))
    greys = cycle(HEADROOM_COLOURS)
    bottoms = [0.0] * len(placements)
    for name in names:
        heights = [stack.get(name, 0) / scale for stack in stacks]
        colour = COLOURS.get(name) or next(greys)
        axes.bar(range(len(placements)), heights, 0.6, bottoms, label=name, color=colour, edgecolor="white", linewidth=0.5)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    limits = [("the engine may use", usable, "--")]
    if capacity.gpus:
        limits.insert(0, ("one GPU has", capacity.gpu_bytes, "-"))
    drawn = [size for _, size, _ in limits if size <= FAR_ABOVE * tallest]
    for what, size, style in limits:
        label = f"{what} {size / scale:,.1f}"
        if size in drawn:
            axes.axhline(size / scale, color="black", linestyle=style, label=label)
        else:
            axes.plot([], [], color="black", linestyle=style, label=f"{label}, above")
    for position, top in enumerate(bottoms):
        axes.annotate(
            f"{top:.1f}",
            (position, top),
            (0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    axes.set_xticks(range(len(placements)), [placed.name for placed in placements])
    axes.set_xlim(-0.5, len(placements) - 0.5)
    axes.set_ylim(0, 1.1 * max(tallest, *drawn, 1) / scale)
    axes.set_ylabel(f"{unit} on each GPU" if capacity.gpus else f"{unit} of host memory")
    figure.suptitle(title, x=0.01, ha="left", fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small")
    return figure


def save_plot(placements: Sequence[Placed], title: str, path: Path) -> None:
    """Write the figure; the ending of `path` chooses the format (.pdf, .svg, .png)."""
    plot_placements(placements, title).savefig(path, dpi=150)


def _stack(placed: Placed, tallest: int) -> dict[str, int]:
    """Component -> bytes, largest weights first, small components together, cache and headroom on top."""
    budget = placed.budget
    kinds = {line.component: line.kind for line in budget.lines}
    amounts = budget.by_component(budget.capacity.main)
    weights = {name: size for name, size in amounts.items() if kinds[name] == "weights"}
    large = {name: size for name, size in weights.items() if size >= SMALL_SHARE * tallest or name == "routed experts"}
    small = sum(weights.values()) - sum(large.values())
    stack = dict(sorted(large.items(), key=lambda item: list(COLOURS).index(item[0]) if item[0] in COLOURS else 99))
    if small:
        stack["other weights"] = stack.get("other weights", 0) + small
    return stack | {name: size for name, size in amounts.items() if kinds[name] != "weights"}
