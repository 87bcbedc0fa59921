"""One look for all figures: sizes, fonts, colours that stay apart in grey and for the colour-blind, and the set-up of axes."""

import atexit
import functools
import logging
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import pandas as pd
from fontTools.ttLib import TTFont
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

Frames = dict[str, pd.DataFrame]

WIDE_IN, HALF_IN, HEIGHT_IN = 6.2, 3.05, 2.1
"""Widths of a figure over the whole line and over half of it, as they stand in the paper: nothing is scaled there."""
SMALL = 7
"""Size of the smallest text, in points."""

DARK, MIDDLE, LIGHT, PALE = "#1b3a5c", "#6b8fb3", "#c9d6e3", "#e4ebf2"  # one hue; greys a quarter of the scale apart
BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"  # these eight: Okabe and Ito, for all eyes
PURPLE, SKY, YELLOW, BLACK = "#cc79a7", "#56b4e9", "#f0e442", "#222222"
GREY = "#999999"

# Words in an arm's name -> its colour and marker, the same in every figure; the first that fit count.
_ARMS: Sequence[tuple[str, str, str]] = (
    ("follow", GREEN, "D"),
    ("whole layers", SKY, "v"),
    ("random", PURPLE, "^"),
    ("prefetch", VERMILION, ">"),
    ("uva", ORANGE, "s"),
    ("all in vram", BLACK, "o"),
    ("coldest", BLUE, "o"),
    ("placed", BLUE, "o"),
    ("static", BLUE, "o"),
)
_OTHERS: Sequence[tuple[str, str]] = ((DARK, "P"), (MIDDLE, "*"), (GREY, "h"))
_DASHES = ("-", "--", ":", "-.")


def arm_styles(arms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Arm -> colour, marker and dashes of its line; arms of one family share a colour and differ in their dashes."""
    styles: dict[str, dict[str, Any]] = {}
    for arm in dict.fromkeys(arms):
        strangers = sum(style["color"] in {color for color, _ in _OTHERS} for style in styles.values())
        found = next(((color, marker) for words, color, marker in _ARMS if words in arm.lower()), None)
        color, marker = found or (_OTHERS[strangers % len(_OTHERS)] if arm else (DARK, "o"))
        family = sum(style["color"] == color for style in styles.values())
        styles[arm] = {"color": color, "marker": marker, "linestyle": _DASHES[family % len(_DASHES)]}
    return styles


_FONT = "Spillway Sans"
# What this font, made for TeX, has at other places than ASCII; the next font in the list supplies them.
_ELSEWHERE = "\"'<>\\^_`{|}~"


@functools.cache
def _add_text_font() -> None:
    """Make Computer Modern Sans, which goes with the paper's Latin Modern, known without the glyphs that it shows wrongly."""
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it warns of the font's date, of which nothing depends
    font = TTFont(Path(mpl.get_data_path(), "fonts/ttf/cmss10.ttf"), recalcTimestamp=False)
    for table in font["cmap"].tables:
        table.cmap = {code: glyph for code, glyph in table.cmap.items() if 32 <= code < 127 and chr(code) not in _ELSEWHERE}
    for record in font["name"].names:
        record.string = _FONT if record.nameID != 6 else _FONT.replace(" ", "")
    folder = tempfile.TemporaryDirectory(prefix="spillway-font-")
    atexit.register(folder.cleanup)
    path = Path(folder.name, "sans.ttf")
    font.save(path, reorderTables=None)
    font_manager.fontManager.addfont(path)


def rc() -> dict[Any, Any]:
    """matplotlib's settings for every figure."""
    _add_text_font()
    return {
        "pdf.fonttype": 42,  # TrueType, not Type 3: text in the figures can be searched and is accepted by publishers
        "font.size": 8,
        "font.family": [_FONT, "DejaVu Sans"],
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "legend.fontsize": SMALL,
        "legend.frameon": False,
        "lines.linewidth": 1.1,
        "lines.markersize": 3.5,
        "figure.constrained_layout.use": True,
    }


def one_axes(width_in: float = WIDE_IN, height_in: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(width_in, height_in))
    return figure, figure.subplots()


def panels(columns: int, height_in: float = HEIGHT_IN, rows: int = 1, **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure over the whole line with `columns` x `rows` axes, row by row."""
    figure = Figure(figsize=(WIDE_IN if columns > 1 else HALF_IN, height_in))
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).flat)


def label(axes: Axes, x: str, y: str, *, from_zero: bool = True) -> None:
    """Name both axes; `from_zero`: the vertical one starts at 0, as a length or a speed must."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if from_zero:
        axes.set_ylim(bottom=0)


def shares(axis: Axis, *, logarithmic: bool = False) -> None:
    """Print an axis of fractions in percent, with as many digits as a logarithmic one needs."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%") if logarithmic else PercentFormatter(1))


def times(axis: Axis) -> None:
    """A logarithmic axis of times, with plain numbers at one, two and five of each power of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def categories(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a horizontal chart, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def contexts(axes: Axes, tokens: Iterable[int]) -> None:
    """A logarithmic axis of context lengths, each named: 4096 tokens are 4K."""
    ticks = sorted({int(value) for value in tokens})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick // 1024}K" if tick >= 1024 and not tick % 1024 else f"{tick:,}" for tick in ticks])
    axes.minorticks_off()


def level(axes: Axes, value: float, text: str, across: Literal["horizontal", "vertical"] = "horizontal") -> None:
    """A dotted line at a value that matters, named at its end."""
    if across == "horizontal":
        axes.axhline(value, color="black", linewidth=0.7, linestyle=":", zorder=0)
        place, coordinates = (1.0, value), ("axes fraction", "data")
    else:
        axes.axvline(value, color="black", linewidth=0.7, linestyle=":", zorder=0)
        place, coordinates = (value, 1.0), ("data", "axes fraction")
    axes.annotate(text, place, xytext=(0, 1.5), textcoords="offset points", xycoords=coordinates, ha="right", va="bottom",
                  fontsize=SMALL)  # fmt: skip


def legend_below(figure: Figure, columns: int = 2) -> None:
    """One legend of all axes, below them, each name once."""
    found = {text: handle for axes in figure.axes for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)
