"""The figures: one function each, from the tables that `paper/figures.yaml` lists for it to a PDF readable in grey.

python -m spillway.paper.figures NAME --host HOST --out build/HOST/figures/NAME.pdf
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from spillway.paper import seats_figures
from spillway.paper.numbers import NumberError, Sources
from spillway.paper.style import DARK, HALF_IN, LIGHT, MIDDLE, STYLE, Frames, one_axes
from spillway.record.parquet import RecordError
from spillway.spec.number import data_file, read_figures
from spillway.spec.read import SpecError


def draw_memory(frames: Frames) -> Figure:
    """Bytes of each component of the weights, predicted and stored."""
    rows = frames["e1_memory.memory"]
    weights = rows[(rows["place"] == "checkpoint") & (rows["boot"] == rows["boot"].min())].sort_values("predicted_bytes")
    figure, axes = one_axes()
    at = range(len(weights))
    axes.barh([y + 0.2 for y in at], weights["predicted_bytes"] / 2**20, height=0.38, color=DARK, label="predicted")
    axes.barh([y - 0.2 for y in at], weights["measured_bytes"] / 2**20, height=0.38, color=LIGHT, edgecolor=DARK, hatch="////",
              linewidth=0.5, label="stored")  # fmt: skip
    axes.set_yticks(list(at), weights["component"])
    axes.set_xlabel("MiB")
    axes.legend(loc="lower right")
    return figure


def draw_tpot_context(frames: Frames) -> Figure:
    """TPOT of every measured request against the context before it, and the medians."""
    return _against_context(frames["e3_tpot_context.requests"], "tpot_s", 1e3, "TPOT (ms)")


def draw_ttft_context(frames: Frames) -> Figure:
    """TTFT of every measured cold prompt against its length, and the medians."""
    return _against_context(frames["e4_ttft_context.requests"], "ttft_s", 1, "TTFT (s)")


def draw_agents(frames: Frames) -> Figure:
    """Speed of one stream against the streams at work, median and 5th percentile, with the floor for fluent answers."""
    rows, published = frames["e13_agents.requests"], frames["published/figures.csv"].set_index("id")["value"]
    levels = counted(rows).groupby("streams")["rate_tok_per_s"]
    figure, axes = one_axes(HALF_IN)
    axes.plot(levels.median(), color=DARK, marker="o", label="median")
    axes.plot(levels.quantile(0.05), color=MIDDLE, marker="s", linestyle="--", label="5th percentile")
    floor = float(published["agents.floor"])
    axes.axhline(floor, color="black", linewidth=0.7, linestyle=":")
    axes.annotate("floor", (1, floor), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    axes.set_xticks(sorted(rows["streams"].unique()))
    axes.set_xlabel("streams at work")
    axes.set_ylabel("token/s per stream")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def counted(rows: pd.DataFrame) -> pd.DataFrame:
    """The requests that count: measured ones, not warm-up, that succeeded."""
    return rows[(rows["phase"] == "measured") & (rows["outcome"] == "ok")]


def _against_context(rows: pd.DataFrame, column: str, factor: float, label: str) -> Figure:
    good = counted(rows)
    figure, axes = one_axes(HALF_IN)
    axes.plot(
        good["prompt_tokens"], good[column] * factor, "o", color=MIDDLE, markersize=4, markerfacecolor="none", label="requests"
    )
    axes.plot(good.groupby("prompt_tokens")[column].median() * factor, color=DARK, label="median")
    axes.set_xscale("log", base=2)
    ticks = sorted(good["prompt_tokens"].unique())
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens of context")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


FIGURES: dict[str, Callable[[Frames], Figure]] = {
    "memory": draw_memory,
    "tpot_context": draw_tpot_context,
    "ttft_context": draw_ttft_context,
    "agents": draw_agents,
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
        files = read_figures(root)[options.figure].files
        frames = {file: sources.table(data_file(file, options.host)) for file in files}
    except (NumberError, RecordError, SpecError) as error:
        sys.exit(f"spillway: figure {options.figure}: {error}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        FIGURES[options.figure](frames).savefig(options.out, metadata={"CreationDate": None})


if __name__ == "__main__":
    main()
