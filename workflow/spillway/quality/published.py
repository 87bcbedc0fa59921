"""The article's quality figures, recomputed: its intervals by a percentile bootstrap, and the score intervals beside them.

The article prints differences and intervals, not counts. The counts here are inferred: those that give its difference and
come closest to its interval.
"""

import math
from collections.abc import Mapping
from typing import Any

from spillway.quality import statistics

# figure -> (items, wins, losses)
INFERRED = {
    "quality.humaneval_difference": (164, 2, 5),
    "quality.ifeval_difference": (150, 4, 2),
}
GSM8K = ("quality.gsm8k_local", "quality.gsm8k_reference", "quality.gsm8k_items")


def published_rows(figures: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """One row for each published comparison; `figures`: id -> value, low, high of published/figures.csv, NaN if not stated.

    Raises KeyError for a figure that is absent.
    """
    rows = []
    for figure, (n, wins, losses) in INFERRED.items():
        stated = figures[figure]
        rows.append(_row(figure.split(".")[1].split("_")[0], stated["value"], stated["low"], stated["high"], n, wins, losses))
    local, reference, items = (figures[figure]["value"] for figure in GSM8K)
    return [_row("gsm8k", local - reference, math.nan, math.nan, round(items), 0, 0), *rows]


def _row(task: str, difference: float, low: float, high: float, n: int, wins: int, losses: int) -> dict[str, Any]:
    bootstrap = statistics.percentile_bootstrap(wins, losses, n)
    score = statistics.tango(wins, losses, n)
    stated = not math.isnan(low)
    return {
        "task": task,
        "published_difference_fraction": round(difference, 6),  # of two published decimals, so without float noise
        "published_low_fraction": low if stated else None,
        "published_high_fraction": high if stated else None,
        "items": n,
        "wins": wins,
        "losses": losses,
        "bootstrap_low_fraction": bootstrap[0],
        "bootstrap_high_fraction": bootstrap[1],
        "reproduced": [round(each, 3) for each in bootstrap] == [low, high] if stated else None,
        "score_low_fraction": score[0],
        "score_high_fraction": score[1],
        "mcnemar_p": statistics.mcnemar(wins, losses),
    }
