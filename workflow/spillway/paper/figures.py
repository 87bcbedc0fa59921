"""The figures: one function each, from the tables that `paper/figures.yaml` lists for it to a PDF.

python -m spillway.paper.figures NAME --host HOST --out build/HOST/figures/NAME.pdf
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from spillway.paper import arm_figures, quality_figures, seats_figures
from spillway.paper.memory_figure import draw_memory
from spillway.paper.numbers import NumberError, Sources
from spillway.paper.statistic import FEWEST
from spillway.paper.style import HALF_IN, Frames, arm_styles, contexts, label, level, one_axes, panels, rc
from spillway.paper.tables import by_arm, counted
from spillway.record.parquet import RecordError
from spillway.spec.number import files_drawn, read_figures
from spillway.spec.read import SpecError


def draw_tpot_context(frames: Frames) -> Figure:
    """TPOT of every measured request against the context before it, and the medians."""
    return _against_context(frames, "e3_tpot_context.requests", "tpot_s", 1e3, "TPOT (ms)")


def draw_ttft_context(frames: Frames) -> Figure:
    """TTFT of every measured cold prompt against its length, and the medians."""
    return _against_context(frames, "e4_ttft_context.requests", "ttft_s", 1, "TTFT (s)")


def draw_agents(frames: Frames) -> Figure:
    """Speed of one stream against the streams at work, median and 5th percentile, with the floor; a panel for each arm.

    A level with too few turns for a 5th percentile has none, as in the paper's table.
    """
    arms = by_arm(counted(frames["e13_agents.requests"]))
    floor = float(frames["e13_agents.capacity"]["floor_tok_per_s"].iloc[0])
    styles = arm_styles(arms)
    columns = min(len(arms), 4)
    rows = -(-len(arms) // columns)
    figure, all_axes = panels(columns, 0.5 + 1.7 * rows, rows, sharex=True, sharey=True)
    for axes, (arm, part) in zip(all_axes, arms.items(), strict=False):
        levels = part.groupby("streams")["rate_tok_per_s"]
        color = styles[arm]["color"]
        axes.plot(levels.median(), color=color, marker="o", label="median")
        tail = levels.quantile(0.05)[levels.count() >= FEWEST["p5"]]
        if not tail.empty:
            axes.plot(tail, color=color, marker="s", markerfacecolor="white", linestyle="--", label="5th percentile")
        level(axes, floor, "floor")
        axes.set_xticks(sorted(part["streams"].unique()))
        axes.set_title(arm)
        label(axes, "streams at work", "")
    for axes in all_axes[len(arms) :]:
        axes.set_visible(False)
    for axes in all_axes[::columns]:
        axes.set_ylabel("token/s per stream")
    all_axes[0].legend()
    return figure


def _against_context(frames: Frames, table: str, column: str, factor: float, name: str) -> Figure:
    arms = by_arm(counted(frames[table]))
    styles = arm_styles(arms)
    figure, axes = one_axes(HALF_IN)
    for arm, part in arms.items():
        style = styles[arm]
        points = {"color": style["color"], "markerfacecolor": "none", "alpha": 0.5}
        axes.plot(part["prompt_tokens"], part[column] * factor, "o", label="requests" if not arm else "_", **points)
        medians = part.groupby("prompt_tokens")[column].median() * factor
        axes.plot(medians, color=style["color"], linestyle=style["linestyle"], label=arm or "median")
    contexts(axes, frames[table]["prompt_tokens"].dropna())
    label(axes, "tokens of context", name)
    axes.legend()
    return figure


FIGURES: dict[str, Callable[[Frames], Figure]] = {
    "memory": draw_memory,
    "tpot_context": draw_tpot_context,
    "ttft_context": draw_ttft_context,
    "agents": draw_agents,
    **arm_figures.FIGURES,
    **quality_figures.FIGURES,
    **seats_figures.FIGURES,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("figure", choices=sorted(FIGURES))
    parser.add_argument("--host", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    root = Path(".")
    try:
        sources = Sources(root, options.host)
        figure = read_figures(root, options.host)[options.figure]
        drawn = zip(figure.files, files_drawn(figure, options.host), strict=True)
        frames = {file: sources.table(path) for file, path in drawn}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(rc()):
            FIGURES[options.figure](frames).savefig(options.out, metadata={"CreationDate": None})
    except (NumberError, RecordError, SpecError) as error:
        sys.exit(f"spillway: figure {options.figure}: {error}")


if __name__ == "__main__":
    main()
