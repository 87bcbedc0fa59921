"""What all figures share: one look, one style for an arm, and text that shows what it says."""

import itertools
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib import font_manager
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from spillway.paper.arm_figures import draw_follow, draw_plan_choice, draw_stock_offload
from spillway.paper.figures import FIGURES, draw_agents
from spillway.paper.memory_figure import draw_memory
from spillway.paper.statistic import FEWEST
from spillway.paper.style import arm_styles, contexts, rc
from spillway.paper.tables import by_arm
from spillway.record.parquet import RecordError
from spillway.spec.number import figures_drawn, files_drawn, read_figures

ROOT = Path(__file__).parents[3]
ARMS = ["all in VRAM", "placed", "uva, KV blocks of 64", "uva, KV blocks of 128", "prefetch"]
GOOD = {"phase": "measured", "outcome": "ok", "boot": 0}


def requests(cell: str, tokens: int, arms: list[str], **columns: object) -> list[dict[str, object]]:
    return [GOOD | {"arm": arm, "cell": cell, "asked_output_tokens": tokens, "tpot_s": 0.004, "ttft_s": 0.2, "streams": 1,
                    "first_output_s": 1.0} | columns for arm in arms]  # fmt: skip


def test_every_figure_of_the_list_has_a_function_and_the_other_way_round() -> None:
    assert set(read_figures(ROOT, "cpu")) == set(FIGURES)


def test_an_arm_looks_the_same_whoever_stands_beside_it() -> None:
    alone, together = arm_styles(["placed"]), arm_styles(ARMS)
    assert alone["placed"] == together["placed"]
    assert arm_styles(["following", "placed"])["placed"] == alone["placed"]


def test_arms_of_one_kind_share_a_colour_and_differ_in_their_dashes() -> None:
    styles = arm_styles(ARMS)
    small, large = styles["uva, KV blocks of 64"], styles["uva, KV blocks of 128"]
    assert small["color"] == large["color"]
    assert small["linestyle"] != large["linestyle"]


def test_no_two_arms_look_alike_even_without_colour() -> None:
    styles = [*arm_styles([*ARMS, "coldest", "random", "whole layers", "following", "one", "another"]).values()]
    assert len({(style["color"], style["linestyle"]) for style in styles}) == len(styles)
    for one, other in itertools.combinations(styles, 2):
        grey = [sum(weight * part for weight, part in zip((0.30, 0.59, 0.11), to_rgb(style["color"]), strict=True))
                for style in (one, other)]  # fmt: skip
        assert abs(grey[0] - grey[1]) > 0.02 or one["marker"] != other["marker"] or one["linestyle"] != other["linestyle"]


def test_a_table_without_arms_has_one_without_a_name() -> None:
    assert list(by_arm(pd.DataFrame({"x": [1]}))) == [""]
    assert list(by_arm(pd.DataFrame({"arm": ["b", "a", "b"]}))) == ["b", "a"]


def test_contexts_are_named_in_binary_thousands_where_they_are_such() -> None:
    axes = Figure().subplots()
    contexts(axes, [256, 4096, 131072, 260000])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["256", "4K", "128K", "260,000"]


@pytest.mark.parametrize("character", "<>|_{}\\\"'`^~")
def test_the_text_font_lacks_what_it_would_show_as_something_else(character: str) -> None:
    font = font_manager.get_font(font_manager.findfont(rc()["font.family"][0], fallback_to_default=False))
    assert ord("A") in font.get_charmap()
    assert ord(character) not in font.get_charmap()


def test_an_arm_that_never_answered_is_named_as_such_and_takes_no_room() -> None:
    rows = requests("decode", 64, ARMS[:3]) + requests("prefill", 2, ARMS[:3])
    arms = pd.DataFrame({"arm": ARMS[:4]})
    figure = draw_stock_offload({"e2_stock_offload.requests": pd.DataFrame(rows), "e2_stock_offload.arms": arms})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*ARMS[:3], f"{ARMS[3]}: no answer"]
    for axes in figure.axes:
        lines = [float(line.get_ydata()[0]) for line in axes.lines if line.get_label() in ARMS[:3]]
        assert lines == pytest.approx([-0.7 / 3, 0, 0.7 / 3])
    assert [text.get_text() for axes in figure.axes for text in axes.get_yticklabels()] == ["decode", "prefill"]


def test_a_level_with_too_few_turns_has_no_5th_percentile() -> None:
    few, enough = (
        requests("agents", 64, ["placed"] * turns, rate_tok_per_s=50.0) for turns in (FEWEST["p5"] - 1, FEWEST["p5"])
    )
    rows = pd.DataFrame(few + [row | {"streams": 2} for row in enough])
    capacity = pd.DataFrame({"floor_tok_per_s": [40.0]})
    (axes,) = draw_agents({"e13_agents.requests": rows, "e13_agents.capacity": capacity}).axes
    drawn = {str(line.get_label()): list(line.get_xdata()) for line in axes.lines}
    assert (drawn["median"], drawn["5th percentile"]) == ([1, 2], [2])


def test_cells_of_one_batch_share_a_panel_of_the_plan_choice() -> None:
    rows = [row for share in (0.01, 0.3) for row in requests(f"cold_share={share}", 64, ["coldest"], cold_share_fraction=share)]
    (axes,) = draw_plan_choice({"e14_plan_choice.requests": pd.DataFrame(rows)}).axes
    assert list(axes.lines[0].get_xdata()) == [0.01, 0.3]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([4.0, 4.0])


def follow_frames(shifts_at_s: list[float]) -> dict[str, pd.DataFrame]:
    """Two starts of three arms; shifts every 10 s of Unix time, and the cells of the first start begin at 1003 and 1006 s."""
    arms = {
        "static": "1970-01-01T00:16:46+00:00",
        "following": "1970-01-01T00:16:43+00:00",
        "no shift": "1970-01-01T00:16:40+00:00",
    }
    rows = requests("decode", 64, list(arms)) + requests("decode", 64, list(arms), boot=1)
    cells = [{"arm": arm, "boot": 0, "started_at": at} for arm, at in arms.items()]
    routing = [{"arm": arm, "boot": 0, "routing": "stays" if arm == "no shift" else "changes"} for arm in arms]
    shifts = [{"arm": "following", "boot": 0, "at_s": at_s} for at_s in shifts_at_s]
    shifts.append({"arm": "following", "boot": 1, "at_s": 2.0})
    shares = [{"arm": arm, "boot": 0, "t_s": 2.0, "host_share_fraction": 0.1} for arm in ("following", "no shift")]
    tables = {"requests": rows, "cells": cells, "arms": routing, "shifts": shifts, "residency": shares}
    return {f"e15_follow.{table}": pd.DataFrame(rows) for table, rows in tables.items()}


def test_all_arms_that_meet_shifts_are_drawn_over_the_first_start_by_a_clock_with_the_same_shifts() -> None:
    above, below = draw_follow(follow_frames([7.0, 17.0, 27.0])).axes
    drawn = {str(line.get_label()): list(line.get_xdata()) for line in above.lines if len(line.get_xdata()) == 1}
    assert drawn == {"static": [pytest.approx(7.0)], "following": [pytest.approx(4.0)]}
    (share,) = (line for line in below.lines if line.get_label() == "following")
    assert list(share.get_xdata()) == [pytest.approx(5.0)]
    assert {line.get_xdata()[0] % 10 for line in above.lines if len(line.get_xdata()) == 2} == {0.0}
    assert "no shift" not in {line.get_label() for line in [*above.lines, *below.lines]}


def test_with_one_shift_the_clock_is_not_known() -> None:
    with pytest.raises(RecordError, match=r"e15_follow\.shifts: 1 shifts"):
        draw_follow(follow_frames([7.0]))


def test_a_figure_that_names_a_host_is_of_its_data_in_every_edition() -> None:
    figure = read_figures(ROOT, "cpu")["follow"]
    for host in ("cpu", "h200", "h200x2"):
        assert files_drawn(figure, host)[0] == "h200/e15_follow.requests.parquet"
        assert "follow" in figures_drawn(ROOT, host)
    assert files_drawn(read_figures(ROOT, "cpu")["memory"], "cpu") == ["cpu/e1_memory.memory.parquet"]


def test_a_place_of_which_nothing_is_predicted_still_has_its_scale() -> None:
    rows = pd.DataFrame(
        {"boot": 0, "place": "host", "component": ["whole process"], "predicted_bytes": [None], "measured_bytes": [3 * 2**30]}
    ).astype({"predicted_bytes": float})
    with mpl.rc_context(rc()):
        (axes,) = draw_memory({"e1_memory.memory": rows}).axes
    assert axes.get_title(loc="left") == "host (GiB)"
