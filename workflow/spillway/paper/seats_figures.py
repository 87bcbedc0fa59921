"""The figures about seats, from the tables of e10_activity and e11_seats."""

from collections.abc import Callable, Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spillway.paper.style import (
    DARK,
    HALF_IN,
    LIGHT,
    MIDDLE,
    PALE,
    SMALL,
    WIDE_IN,
    Frames,
    categories,
    label,
    legend_below,
    level,
    one_axes,
    panels,
    shares,
)

LINES = [(DARK, "-"), (MIDDLE, "-"), (DARK, "--"), (MIDDLE, "--"), (DARK, ":"), (MIDDLE, ":"), (DARK, "-."), (MIDDLE, "-.")]
HEIGHT_IN = 2.4
FLOOR_SHARE = 1e-4
"""Overload below this is not drawn: nobody notices three seconds in a working day."""
CRITERIA = {"clock time": (DARK, "o", "-"), "experienced": (MIDDLE, "s", "--")}


def draw_seats_overload(frames: Frames) -> Figure:
    """Overload of one server against its developers, by model, with the levels and both seat counts of the article's model."""
    rows, models = frames["e11_seats.seats_overload"], frames["e11_seats.seats_models"]
    figure, axes = one_axes(WIDE_IN, HEIGHT_IN)
    for (name, part), (color, dashes) in zip(rows.groupby("model", sort=False), LINES, strict=False):
        shown = part[part["clock_fraction"] >= FLOOR_SHARE]
        axes.plot(shown["developers"], shown["clock_fraction"], color=color, linestyle=dashes, label=str(name))
    first = models["model"].iloc[0]
    felt = rows[(rows["model"] == first) & (rows["experienced_fraction"] >= FLOOR_SHARE)]
    name = "independent, of experienced time"
    axes.plot(felt["developers"], felt["experienced_fraction"], color="black", linewidth=0.7, label=name)
    base = models[models["model"] == first]
    for share in sorted(base["level_fraction"].unique()):
        level(axes, float(share), f"{share:.0%}")
    strictest = base[base["level_fraction"] == base["level_fraction"].min()].set_index("criterion")
    for criterion, (_, marker, _) in CRITERIA.items():
        at = strictest.loc[criterion]
        name = f"{at['seats']} seats at {at['level_fraction']:.0%}, {criterion}"
        axes.plot([at["seats"]], [at["level_fraction"]], marker, color="black", markersize=4, zorder=5, label=name)
    axes.set_yscale("log")
    label(axes, "developers on one server", "share of time in overload", from_zero=False)
    axes.set_ylim(FLOOR_SHARE, 1)
    shares(axes.yaxis, logarithmic=True)
    axes.set_xlim(0, rows["developers"].max())
    figure.legend(loc="outside right center")
    return figure


def draw_seats_correlation(frames: Frames) -> Figure:
    """Seats against the correlation of two developers, by both criteria at the lower level, with the break-even."""
    rows = frames["e11_seats.seats_correlation"]
    rows = rows[rows["level_fraction"] == rows["level_fraction"].min()]
    figure, axes = one_axes(HALF_IN, HEIGHT_IN)
    for criterion, (color, marker, dashes) in CRITERIA.items():
        part = rows[rows["criterion"] == criterion]
        axes.plot(part["rho"], part["seats"], color=color, marker=marker, linestyle=dashes, label=criterion)
    _break_even(axes, float(rows["break_even_developers"].iloc[0]))
    label(axes, "correlation of two developers' busy times", f"seats at {rows['level_fraction'].iloc[0]:.0%} overload")
    axes.set_xlim(left=0)
    axes.legend()
    return figure


def draw_seats_servers(frames: Frames) -> Figure:
    """Servers of each team by reading and routing; at each bar the saving over subscriptions."""
    rows = frames["e11_seats.seats_servers"]
    teams = sorted(rows["developers"].unique())
    readings = list(dict.fromkeys(rows["reading"]))
    figure, all_axes = panels(len(teams), 0.6 + 0.19 * len(readings), sharey=True)
    for axes, team in zip(all_axes, teams, strict=True):
        part = rows[rows["developers"] == team].set_index("reading").reindex(readings)
        colors = [LIGHT if saving < 0 else DARK for saving in part["saving_fraction"]]
        axes.barh(range(len(readings)), part["servers"], color=colors, edgecolor=DARK, linewidth=0.5, height=0.7)
        for y, (servers, saving) in enumerate(zip(part["servers"], part["saving_fraction"], strict=True)):
            _beside(axes, servers, y, f"{servers:.0f} ({saving:+.0%})".replace("-", "−"))
        categories(axes, readings)
        axes.set_xlim(0, 1.45 * part["servers"].max())
        axes.set_xlabel("servers (saving)")
        axes.set_title(f"{team} developers")
    return figure


def draw_seats_fan(frames: Frames) -> Figure:
    """Seats against the streams of a server, as sure as q is: the median and bands around it, both criteria."""
    rows = frames["e11_seats.seats_fan"]
    figure, pair = panels(2, HEIGHT_IN, sharey=True)
    for axes, column, title in zip(pair, ("clock_seats", "experienced_seats"), CRITERIA, strict=True):
        seats = rows.pivot(index="streams", columns="quantile", values=column)
        for (low, high), color in zip(_bands([float(str(quantile)) for quantile in seats]), (PALE, LIGHT, MIDDLE), strict=True):
            axes.fill_between(seats.index, seats[low], seats[high], color=color, linewidth=0, label=f"{high - low:.0%}")
        axes.plot(seats.index, seats[0.5], color=DARK, marker="o", label="median")
        axes.set_title(title)
        label(axes, "streams at the floor", "")
    pair[0].set_ylabel("seats of one server")
    pair[0].legend(loc="upper left")
    return figure


def draw_seats_assumptions(frames: Frames) -> Figure:
    """Tornado: seats when one assumption changes, the most costly on top, with the unchanged count and the break-even."""
    rows = frames["e11_seats.seats_assumptions"]
    base = int(rows["base_seats"].iloc[0])
    rows = rows.assign(change=rows["seats"] - base).sort_values("seats", kind="stable")
    figure, axes = one_axes(WIDE_IN, 2.7)
    colors = [DARK if change < 0 else MIDDLE for change in rows["change"]]
    axes.barh(range(len(rows)), rows["change"], left=base, color=colors, height=0.7)
    for y, seats in enumerate(rows["seats"]):
        _beside(axes, seats, y, str(seats), left=seats < base)
    categories(axes, list(rows["assumption"] + ": " + rows["setting"]))
    axes.axvline(base, color="black", linewidth=0.7)
    _break_even(axes, float(rows["break_even_developers"].iloc[0]), vertical=True)
    axes.set_xlim(0, 1.18 * rows["seats"].max())
    axes.set_xlabel(f"seats (unchanged: {base})")
    return figure


def draw_seats_cost(frames: Frames) -> Figure:
    """Both seat counts of one server beside the break-even, by what is paid."""
    rows = frames["e11_seats.seats_cost"].drop_duplicates("setting")
    figure, axes = one_axes(height_in=0.9 + 0.25 * len(rows))
    axes.barh(range(len(rows)), rows["break_even_developers"], color=LIGHT, edgecolor=DARK, linewidth=0.5, height=0.6,
              label="break-even: a full server pays if more sit on it")  # fmt: skip
    for column, (criterion, (color, _, dashes)) in zip(("clock_seats", "experienced_seats"), CRITERIA.items(), strict=True):
        axes.axvline(float(rows[column].iloc[0]), color=color, linestyle=dashes, label=f"seats by {criterion}")
    categories(axes, list(rows["setting"]))
    axes.set_xlabel("developers")
    legend_below(figure, columns=3)
    return figure


def draw_activity_concurrency(frames: Frames) -> Figure:
    """Time with a number of streams of one developer busy, as a share of the time with any, by source."""
    rows = frames["e10_activity.activity_concurrency"]
    sources = list(dict.fromkeys(rows["source"]))
    figure, axes = one_axes(HALF_IN, HEIGHT_IN)
    width = 0.8 / len(sources)
    for number, (source, color) in enumerate(zip(sources, (DARK, MIDDLE), strict=False)):
        part = rows[rows["source"] == source]
        at = part["streams"] + (number - (len(sources) - 1) / 2) * width
        axes.bar(at, part["fraction"], width=width, color=color, label=source)
        for x, share in zip(at, part["fraction"], strict=True):
            axes.annotate(f"{share:.3%}", (x, share), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=SMALL)
    axes.set_yscale("log")
    label(axes, "streams of one developer at once", "share of busy time", from_zero=False)
    axes.set_ylim(min(1e-5, rows["fraction"].min() / 2), 3)
    shares(axes.yaxis, logarithmic=True)
    axes.set_xticks(sorted(rows["streams"].unique()))
    axes.legend()
    return figure


def draw_seats_episodes(frames: Frames) -> Figure:
    """Share of overload episodes that last at most so long, by developers on one server."""
    lengths = frames["e11_seats.seats_episode_lengths"]
    counts = frames["e11_seats.seats_episodes"].set_index("developers")["episodes_per_window"].to_dict()
    figure, axes = one_axes(HALF_IN, HEIGHT_IN)
    for (number, part), (color, dashes) in zip(lengths.groupby("developers"), LINES[::2] + LINES[1::2], strict=False):
        name = f"{number} developers, {counts[number]:.0f} a day"
        axes.plot(part["length_s"], part["cumulative_fraction"], color=color, linestyle=dashes, label=name)
    axes.set_xscale("log")
    ticks = [0.1, 0.3, 1, 3, 10, 30, 100]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    label(axes, "length of an overload episode (s)", "share of episodes", from_zero=False)
    shares(axes.yaxis)
    axes.set_ylim(0, 1.02)
    axes.legend()
    return figure


def draw_seats_routing(frames: Frames) -> Figure:
    """Each routing: stream time in overload against turns that find a cold prefix; both should be small."""
    rows = frames["e11_seats.seats_routing"]
    figure, axes = one_axes(WIDE_IN, HEIGHT_IN)
    markers = dict(zip(dict.fromkeys(rows["routing"]), "o^sDvP", strict=False))
    teams = dict(zip(sorted(rows["developers"].unique()), ((MIDDLE, "none", 4), (DARK, DARK, 5.5)), strict=False))
    for _, row in rows.iterrows():
        color, fill, size = teams[row["developers"]]
        y = max(row["experienced_fraction"], FLOOR_SHARE)
        axes.plot([row["cold_fraction"]], [y], markers[row["routing"]], color=color, markersize=size, markerfacecolor=fill)
    for routing, marker in markers.items():
        axes.plot([], [], marker, color="black", markerfacecolor="none", label=routing)
    servers = rows.drop_duplicates("developers").set_index("developers")["servers"]
    for team, (color, fill, _) in teams.items():
        axes.plot([], [], "o", color=color, markerfacecolor=fill, label=f"{team} on {servers[team]} servers")
    axes.set_yscale("log")
    label(axes, "turns that must read their context again", "stream time in overload", from_zero=False)
    axes.set_ylim(FLOOR_SHARE, 1)
    axes.set_xlim(-0.03, 1)
    shares(axes.yaxis, logarithmic=True)
    shares(axes.xaxis)
    figure.legend(loc="outside right center")
    return figure


def _break_even(axes: Axes, value: float, *, vertical: bool = False) -> None:
    level(axes, value, f"break-even {value:.1f}", "vertical" if vertical else "horizontal")


def _beside(axes: Axes, x: float, y: float, text: str, *, left: bool = False) -> None:
    """A bar's value just past its end."""
    shift, side = (-3, "right") if left else (3, "left")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}
    axes.annotate(text, (x, y), xytext=(shift, 0), textcoords="offset points", va="center", ha=side, fontsize=SMALL, bbox=box)


def _bands(quantiles: list[float]) -> Iterator[tuple[float, float]]:
    """Pairs of quantiles around the median, the widest first."""
    for position in range(len(quantiles) // 2):
        yield quantiles[position], quantiles[-1 - position]


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
