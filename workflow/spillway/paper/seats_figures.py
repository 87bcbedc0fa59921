"""The figures about seats: from the tables of e10_activity and e11_seats, readable in grey."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from spillway.paper.style import DARK, LIGHT, MIDDLE, WIDE_IN, Frames, one_axes

LINES = [(DARK, "-"), (MIDDLE, "-"), (DARK, "--"), (MIDDLE, "--"), (DARK, ":"), (MIDDLE, ":"), (DARK, "-."), (MIDDLE, "-.")]
HEIGHT_IN = 3.0
FLOOR_SHARE = 1e-4
"""Overload below this is not drawn: nobody notices three seconds in a working day."""


def draw_seats_overload(frames: Frames) -> Figure:
    """Overload of one server against its developers, by model, with the levels and both seat counts of the article's model."""
    rows, models = frames["e11_seats.seats_overload"], frames["e11_seats.seats_models"]
    figure, axes = one_axes(height_in=3.6)
    for (name, part), (color, dashes) in zip(rows.groupby("model", sort=False), LINES, strict=False):
        shown = part[part["clock_fraction"] >= FLOOR_SHARE]
        axes.plot(shown["developers"], shown["clock_fraction"], color=color, linestyle=dashes, label=str(name))
    base = models[models["model"] == models["model"].iloc[0]]
    felt = rows[(rows["model"] == models["model"].iloc[0]) & (rows["experienced_fraction"] >= FLOOR_SHARE)]
    axes.plot(
        felt["developers"], felt["experienced_fraction"], color="black", linewidth=0.8, label="independent, of stream time"
    )
    for level in sorted(base["level_fraction"].unique()):
        axes.axhline(level, color="black", linewidth=0.6)
        axes.annotate(f"{level:.0%}", (1, level), xycoords=("axes fraction", "data"), ha="left", va="center", fontsize=8)
    first = base[(base["level_fraction"] == base["level_fraction"].min())].set_index("criterion")["seats"]
    for criterion, marker in (("clock time", "o"), ("experienced", "s")):
        share = "clock time" if criterion == "clock time" else "stream time"
        label = f"{first[criterion]} seats: {base['level_fraction'].min():.0%} of {share}"
        axes.plot(
            [first[criterion]], [base["level_fraction"].min()], marker, color="black", markersize=5, zorder=5, label=label
        )
    axes.set_yscale("log")
    axes.set_ylim(FLOOR_SHARE, 1)
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.set_xlim(0, rows["developers"].max())
    axes.set_xlabel("developers on one server")
    axes.set_ylabel("time in overload")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure


def draw_seats_correlation(frames: Frames) -> Figure:
    """Seats against the correlation of two developers, by both criteria at the lower level, with the break-even."""
    rows = frames["e11_seats.seats_correlation"]
    rows = rows[rows["level_fraction"] == rows["level_fraction"].min()]
    figure, axes = one_axes(height_in=HEIGHT_IN)
    styles = {"clock time": (DARK, "o", "-"), "experienced": (MIDDLE, "s", "--")}
    for criterion, (color, marker, dashes) in styles.items():
        part = rows[rows["criterion"] == criterion]
        axes.plot(part["rho"], part["seats"], color=color, marker=marker, linestyle=dashes, markersize=4, label=criterion)
    _break_even(axes, float(rows["break_even_developers"].iloc[0]), "h")
    axes.set_xlabel("correlation of two developers' busy times")
    axes.set_ylabel(f"seats at {rows['level_fraction'].iloc[0]:.0%} overload")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend()
    return figure


def draw_seats_servers(frames: Frames) -> Figure:
    """Servers of each team by reading and routing; at each bar the saving over subscriptions."""
    rows = frames["e11_seats.seats_servers"]
    teams = sorted(rows["developers"].unique())
    readings = list(dict.fromkeys(rows["reading"]))
    figure = Figure(figsize=(WIDE_IN, 0.5 + 0.26 * len(readings)))
    for axes, team in zip(np.atleast_1d(figure.subplots(1, len(teams), sharey=True)), teams, strict=True):
        part = rows[rows["developers"] == team].set_index("reading").reindex(readings)
        colors = [LIGHT if saving < 0 else DARK for saving in part["saving_fraction"]]
        axes.barh(range(len(readings)), part["servers"], color=colors, edgecolor=DARK, linewidth=0.5, height=0.7)
        for y, (servers, saving) in enumerate(zip(part["servers"], part["saving_fraction"], strict=True)):
            text = f"{servers:.0f} ({saving:+.0%})"
            axes.annotate(text, (servers, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7)
        axes.set_yticks(range(len(readings)), readings, fontsize=7)
        axes.set_xlim(0, 1.55 * part["servers"].max())
        axes.set_ylim(len(readings) - 0.5, -0.5)
        axes.set_xlabel("servers (saving)")
        axes.set_title(f"{team} developers", fontsize=9)
    return figure


def draw_seats_fan(frames: Frames) -> Figure:
    """Seats against the streams of a server, as sure as q is: median and bands of 50, 80 and 95 %, both criteria."""
    rows = frames["e11_seats.seats_fan"]
    figure = Figure(figsize=(WIDE_IN, HEIGHT_IN))
    pair = figure.subplots(1, 2, sharey=True)
    for axes, (column, title) in zip(
        pair, (("clock_seats", "clock time"), ("experienced_seats", "experienced time")), strict=True
    ):
        seats = rows.pivot(index="streams", columns="quantile", values=column)
        quantiles = [float(str(quantile)) for quantile in seats.columns]
        for low, color in zip(range(len(quantiles) // 2), ("#e4ebf2", LIGHT, MIDDLE), strict=True):
            high = len(quantiles) - 1 - low
            share = quantiles[high] - quantiles[low]
            axes.fill_between(
                seats.index, seats[quantiles[low]], seats[quantiles[high]], color=color, linewidth=0, label=f"{share:.0%}"
            )
        axes.plot(seats.index, seats[0.5], color=DARK, marker="o", markersize=3, label="median")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("streams at the floor")
        axes.set_ylim(bottom=0)
    pair[0].set_ylabel("seats of one server at 1 %")
    pair[0].legend(loc="upper left")
    return figure


def draw_seats_assumptions(frames: Frames) -> Figure:
    """Tornado: seats when one assumption changes, the most costly on top, with the unchanged count and the break-even."""
    rows = frames["e11_seats.seats_assumptions"]
    base = int(rows["base_seats"].iloc[0])
    rows = rows.assign(change=(rows["seats"] - base)).sort_values("seats", kind="stable", ascending=False)
    figure, axes = one_axes(height_in=0.7 + 0.24 * len(rows))
    colors = [DARK if change < 0 else MIDDLE for change in rows["change"]]
    axes.barh(range(len(rows)), rows["change"], left=base, color=colors, height=0.7)
    for y, seats in enumerate(rows["seats"]):
        side = -1 if seats < base else 1
        text = axes.annotate(str(seats), (seats, y), xytext=(3 * side, 0), textcoords="offset points", va="center", fontsize=8)
        text.set_horizontalalignment("right" if side < 0 else "left")
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    labels = [f"{assumption}: {setting}" for assumption, setting in zip(rows["assumption"], rows["setting"], strict=True)]
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.axvline(base, color="black", linewidth=0.8)
    _break_even(axes, float(rows["break_even_developers"].iloc[0]), "v")
    axes.set_xlim(0, 1.12 * rows["seats"].max())
    axes.set_xlabel(f"seats (unchanged: {base})")
    return figure


def draw_seats_cost(frames: Frames) -> Figure:
    """Both seat counts of one server beside the break-even, by what is paid."""
    rows = frames["e11_seats.seats_cost"].drop_duplicates("setting")
    figure, axes = one_axes(height_in=0.9 + 0.3 * len(rows))
    axes.barh(range(len(rows)), rows["break_even_developers"], color=LIGHT, edgecolor=DARK, linewidth=0.5, height=0.6,
              label="break-even: a full server pays if more sit on it")  # fmt: skip
    for column, dashes, label in (
        ("clock_seats", "-", "seats by clock time"),
        ("experienced_seats", "--", "seats by experienced time"),
    ):
        axes.axvline(float(rows[column].iloc[0]), color=DARK, linestyle=dashes, label=label)
    axes.set_yticks(range(len(rows)), rows["setting"], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("developers")
    figure.legend(loc="outside lower center", ncols=1, fontsize=8)
    return figure


def draw_activity_concurrency(frames: Frames) -> Figure:
    """Time with 1, 2, ... streams of one developer busy, as a share of the time with any, by source."""
    rows = frames["e10_activity.activity_concurrency"]
    sources = list(dict.fromkeys(rows["source"]))
    figure, axes = one_axes(height_in=HEIGHT_IN)
    width = 0.8 / len(sources)
    for number, (source, color) in enumerate(zip(sources, (DARK, MIDDLE), strict=False)):
        part = rows[rows["source"] == source]
        at = part["streams"] + (number - (len(sources) - 1) / 2) * width
        axes.bar(at, part["fraction"], width=width, color=color, label=source)
        for x, fraction in zip(at, part["fraction"], strict=True):
            axes.annotate(f"{fraction:.3%}", (x, fraction), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7)
    axes.set_yscale("log")
    axes.set_ylim(min(1e-5, rows["fraction"].min() / 2), 3)
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.set_xticks(sorted(rows["streams"].unique()))
    axes.set_xlabel("streams of one developer at once")
    axes.set_ylabel("share of busy time")
    axes.legend()
    return figure


def draw_seats_episodes(frames: Frames) -> Figure:
    """Share of overload episodes that last at most so long, by developers on one server."""
    lengths = frames["e11_seats.seats_episode_lengths"]
    counts = frames["e11_seats.seats_episodes"].set_index("developers")["episodes_per_window"].to_dict()
    figure, axes = one_axes(height_in=HEIGHT_IN)
    for (number, part), (color, dashes) in zip(lengths.groupby("developers"), LINES[::2] + LINES[1::2], strict=False):
        label = f"{number} developers, {counts[number]:.0f} a day"
        axes.plot(part["length_s"], part["cumulative_fraction"], color=color, linestyle=dashes, label=label)
    axes.set_xscale("log")
    ticks = [0.1, 0.3, 1, 3, 10, 30, 100]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("length of an overload episode (s)")
    axes.set_ylabel("share of episodes")
    axes.legend()
    return figure


def draw_seats_routing(frames: Frames) -> Figure:
    """Each routing: stream time in overload against turns that find a cold prefix; both should be small."""
    rows = frames["e11_seats.seats_routing"]
    figure, axes = one_axes(height_in=HEIGHT_IN)
    markers = dict(zip(dict.fromkeys(rows["routing"]), "o^sDvP", strict=False))
    teams = sorted(rows["developers"].unique())
    for team, color, size in zip(teams, (MIDDLE, DARK), (5, 7), strict=False):
        for _, row in rows[rows["developers"] == team].iterrows():
            x, y = row["cold_fraction"], max(row["experienced_fraction"], FLOOR_SHARE)
            fill = "none" if color == MIDDLE else color
            axes.plot([x], [y], markers[row["routing"]], color=color, markersize=size, markerfacecolor=fill)
    for routing, marker in markers.items():
        axes.plot([], [], marker, color="black", markerfacecolor="none", label=routing)
    servers = rows.drop_duplicates("developers").set_index("developers")["servers"]
    for team, color in zip(teams, (MIDDLE, DARK), strict=False):
        axes.plot(
            [],
            [],
            "o",
            color=color,
            markerfacecolor="none" if color == MIDDLE else color,
            label=f"{team} on {servers[team]} servers",
        )
    axes.set_yscale("log")
    axes.set_ylim(FLOOR_SHARE, 1)
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlim(-0.03, 1)
    axes.set_xlabel("turns that must read their context again")
    axes.set_ylabel("stream time in overload")
    figure.legend(loc="outside right center", fontsize=8)
    return figure


def _break_even(axes: Axes, value: float, direction: str) -> None:
    if direction == "h":
        axes.axhline(value, color="black", linewidth=0.7, linestyle=":")
        axes.annotate(
            f"break-even {value:.1f}", (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8
        )
    else:
        axes.axvline(value, color="black", linewidth=0.7, linestyle=":")
        axes.annotate(
            f"break-even {value:.1f}", (value, 1), xycoords=("data", "axes fraction"), ha="right", va="bottom", fontsize=8
        )


def _percent(value: float, _: int) -> str:
    """A tick of a logarithmic axis, with as many digits as it needs."""
    return f"{100 * value:g}%"


FIGURES: dict[str, Callable[[Frames], Figure]] = {
    "seats_overload": draw_seats_overload,
    "seats_correlation": draw_seats_correlation,
    "seats_servers": draw_seats_servers,
    "seats_fan": draw_seats_fan,
    "seats_assumptions": draw_seats_assumptions,
    "seats_cost": draw_seats_cost,
    "seats_routing": draw_seats_routing,
    "seats_episodes": draw_seats_episodes,
    "activity_concurrency": draw_activity_concurrency,
}
FILES: dict[str, Sequence[str]] = {
    "seats_overload": ("e11_seats.seats_overload", "e11_seats.seats_models"),
    "seats_correlation": ("e11_seats.seats_correlation",),
    "seats_servers": ("e11_seats.seats_servers",),
    "seats_fan": ("e11_seats.seats_fan",),
    "seats_assumptions": ("e11_seats.seats_assumptions",),
    "seats_cost": ("e11_seats.seats_cost",),
    "seats_routing": ("e11_seats.seats_routing",),
    "seats_episodes": ("e11_seats.seats_episode_lengths", "e11_seats.seats_episodes"),
    "activity_concurrency": ("e10_activity.activity_concurrency",),
}
"""The tables that each figure reads, for `paper/figures.yaml`."""
