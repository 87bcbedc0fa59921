"""The forest plot: a line for every judged pair and for every interval of the article, and none for what is not known."""

import pandas as pd

from spillway.paper.quality_figures import draw_quality

PAIR = {"comparison": "placed", "same": False, "reading": "all items", "task": "gsm8k", "verdict": "inconclusive", "items": 150,
        "difference_fraction": -0.01, "low_fraction": -0.04, "high_fraction": 0.02, "margin_fraction": 0.05}  # fmt: skip
PUBLISHED = {"task": "gsm8k", "published_difference_fraction": 0.0, "published_low_fraction": None, "items": 150,
             "published_high_fraction": None, "score_low_fraction": -0.025, "score_high_fraction": 0.025}  # fmt: skip


def test_a_line_for_each_interval() -> None:
    ours = [
        PAIR,
        PAIR | {"comparison": "A/A", "same": True, "low_fraction": -0.03},
        PAIR | {"reading": "without flagged"},
        PAIR | {"task": "ifeval", "verdict": "not judged", "low_fraction": None},
    ]
    published = [
        PUBLISHED,
        PUBLISHED | {"task": "humaneval", "published_low_fraction": -0.049, "published_high_fraction": 0.012},
    ]
    figure = draw_quality(
        {"e8_quality.quality_paired": pd.DataFrame(ours), "e8_quality.quality_published": pd.DataFrame(published)}
    )
    [axes] = figure.axes
    intervals = [tuple(line.get_xdata()) for line in axes.lines if len(set(line.get_xdata())) == 2 and line.get_ydata()[0] >= 1]
    assert intervals == [(-0.04, 0.02), (-0.03, 0.02), (-0.025, 0.025), (-0.049, 0.012), (-0.025, 0.025)]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] == "placed" and labels[1] == "GSM8K, 150 items"
    assert "HumanEval, 150 items, as stated" in labels and "GSM8K, 150 items, as stated" not in labels
