"""The figures of experiments that compare arms: stock offloading, the choice of a plan, residency that follows traffic."""

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from spillway.paper.follow_figures import clocks, draw_cold_share, first_start
from spillway.paper.format import words
from spillway.paper.style import LIGHT, WIDE_IN, Frames, arm_styles, categories, label, legend_below, panels, shares, times
from spillway.paper.tables import by_arm, counted

PREFILL_TOKENS = 8
"""A cell whose answers are no longer measures reading, not writing."""
FILLS = {"-": "full", "--": "none", ":": "left", "-.": "bottom"}
"""For single marks, what dashes are for lines: arms of one family share a colour."""
LATENCIES = (("tpot_s", 1e3, "TPOT (ms)"), ("ttft_s", 1.0, "TTFT (s)"))


def draw_stock_offload(frames: Frames) -> Figure:
    """Median TPOT and TTFT of each cell, a mark for each arm that answered there; of one that never did, the legend says so."""
    return _marks(counted(frames["e2_stock_offload.requests"]), frames["e2_stock_offload.arms"])


def draw_all_in_vram(frames: Frames) -> Figure:
    """The same marks for the model wholly in GPU memory and placed."""
    return _marks(counted(frames["e9_all_in_vram.requests"]), frames["e9_all_in_vram.arms"])


def draw_plan_choice(frames: Frames) -> Figure:
    """Median TPOT against the share of picks that fall on unpopular experts, by the plan's choice; a panel for each batch."""
    rows = counted(frames["e14_plan_choice.requests"])
    rows = rows[rows["tpot_s"].notna()]
    batches = sorted(rows["streams"].dropna().unique())
    styles = arm_styles(by_arm(rows))
    figure, all_axes = panels(len(batches), 2.3, sharey=False)
    for axes, batch in zip(all_axes, batches, strict=True):
        for arm, part in by_arm(rows[rows["streams"] == batch]).items():
            medians = part.groupby("cold_share_fraction")["tpot_s"].median() * 1e3
            axes.plot(medians, label=arm, **styles[arm])
        axes.set_title(f"{batch:.0f} at once")
        label(axes, "picks on unpopular experts", "")
        shares(axes.xaxis)
    all_axes[0].set_ylabel("TPOT (ms)")
    legend_below(figure, columns=4 if len(batches) > 1 else 2)
    return figure


def draw_follow(frames: Frames) -> Figure:
    """TPOT over time of the arms whose hot experts change; below, the share of reads on the host where residency follows."""
    rows, residency, shifts, cells, arms = (
        first_start(frames[f"e15_follow.{table}"]) for table in ("requests", "residency", "shifts", "cells", "arms")
    )
    rows, every_s, ahead_s = counted(rows), *clocks(cells, shifts)
    routing = dict(zip(arms["arm"], arms["routing"], strict=True))
    changing = [arm for arm in ahead_s if routing[arm] == routing[shifts["arm"].iloc[0]]]
    styles = arm_styles(changing)
    figure, (above, below) = panels(1, 3.2, 2, sharex=True, height_ratios=(3, 2))
    figure.set_figwidth(WIDE_IN)
    for arm in changing:
        part = rows[(rows["arm"] == arm) & rows["tpot_s"].notna()].sort_values("first_output_s")
        moves = "-" if arm in set(shifts["arm"]) else "--"
        styles[arm] |= {"linestyle": moves, "markersize": 2.0}
        above.plot(part["first_output_s"] + ahead_s[arm], part["tpot_s"] * 1e3, label=arm, **styles[arm])
    label(above, "", "TPOT (ms)")
    draw_cold_share(below, residency[residency["arm"].isin(changing)], styles, ahead_s)
    below.set_xlabel("time, with a shift at each dotted line (s)")
    end = below.get_xlim()[1]
    for axes in (above, below):
        for number in range(int(end // every_s) + 1):
            axes.axvline(number * every_s, color="black", linestyle=":", linewidth=0.9, zorder=0)
        axes.set_xlim(0, end)
    legend_below(figure, columns=5)
    return figure


def _marks(requests: pd.DataFrame, arms: pd.DataFrame) -> Figure:
    """TPOT of the cells that write a text beside TTFT of those that write a token or two; a row for each cell."""
    names = list(dict.fromkeys(arms["arm"]))
    styles = arm_styles(names)
    written = requests.groupby("cell", sort=False)["asked_output_tokens"].max()
    cells = [list(written.index[written > PREFILL_TOKENS]), list(written.index[written <= PREFILL_TOKENS])]
    answered = set(requests["arm"])
    drawn = [arm for arm in names if arm in answered]
    most = requests.groupby("cell")["arm"].nunique().max()
    figure, pair = panels(2, 0.9 + max(map(len, cells)) * (0.12 + 0.06 * most))
    for axes, of_panel, (column, factor, name) in zip(pair, cells, LATENCIES, strict=True):
        medians = requests.groupby(["arm", "cell"])[column].median() * factor
        for arm in drawn:
            # Values may be equal, so that each has a line of its own in its cell's row.
            beside = [[other for other in drawn if (other, cell) in medians.index] for cell in of_panel]
            there = [(y, others) for y, others in enumerate(beside) if arm in others]
            at = [y + (others.index(arm) - (len(others) - 1) / 2) * 0.7 / most for y, others in there]
            values = [medians[(arm, of_panel[y])] for y, _ in there]
            look = styles[arm] | {"linestyle": "none", "fillstyle": FILLS[styles[arm]["linestyle"]]}
            axes.plot(values, at, label=arm, **look)
        for arm in (arm for arm in names if arm not in answered):
            axes.plot([], [], linestyle="none", label=f"{arm}: no answer")
        categories(axes, [words(cell) for cell in of_panel])
        for y in range(len(of_panel) - 1):
            axes.axhline(y + 0.5, color=LIGHT, linewidth=0.6, zorder=0)
        axes.set_xscale("log")
        times(axes.xaxis)
        axes.set_xlabel(name)
    legend_below(figure, columns=3)
    return figure


FIGURES: dict[str, Callable[[Frames], Figure]] = {
    "stock_offload": draw_stock_offload,
    "all_in_vram": draw_all_in_vram,
    "plan_choice": draw_plan_choice,
    "follow": draw_follow,
}
