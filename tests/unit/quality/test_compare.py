"""Rows of a comparison from answers with known wins and losses: differences, readings, gates, verdicts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from spillway.quality import compare
from spillway.quality.answers import Answer
from spillway.quality.items import Item
from spillway.quality.replies import Reply
from spillway.record import parquet
from spillway.spec.quality import AskedTask, TaskName


def answers(
    scores: Sequence[float], task: TaskName = "gsm8k", flags: dict[int, str] | None = None, bad: int = -1
) -> list[Answer]:
    """One answer for each score; place -> flag; one item known to be bad."""
    measures = {"gsm8k": "right", "humaneval": "passed", "ifeval": "all instructions"}
    found = []
    for place, score in enumerate(scores):
        item = Item(task, str(place), {"question": "?"}, known_bad=place == bad)
        given = Reply("s", task, item.name, place, {"max_tokens": 8}, {}, {}, [], "2026-01-01T00:00:00+00:00", 0.1)
        marks = frozenset({flags[place]} if flags and place in flags else ())
        both = {measures[task]: float(score >= 1), "instructions": score} if task == "ifeval" else {measures[task]: score}
        found.append(Answer(item, given, f"text {score}", "stop", {"completion_tokens": 3}, "1", both, marks))
    return found


def pairs(wins: int, losses: int, both: int, neither: int) -> tuple[list[float], list[float]]:
    a = [1.0] * wins + [0.0] * losses + [1.0] * both + [0.0] * neither
    b = [0.0] * wins + [1.0] * losses + [1.0] * both + [0.0] * neither
    return a, b


def rows(a: list[Answer], b: list[Answer], margin: float = 0.05) -> list[dict]:
    task = a[0].item.task
    asked = {task: AskedTask(tier="full", max_tokens=8, margin_fraction=margin)}
    return compare.paired_rows("c", "a", "b", False, asked, {("a", task): a, ("b", task): b})


def test_the_articles_humaneval_counts() -> None:
    a, b = pairs(2, 5, 155, 2)
    [row] = rows(answers(a, "humaneval"), answers(b, "humaneval"))
    assert (row["items"], row["wins"], row["losses"]) == (164, 2, 5)
    assert row["difference_fraction"] == pytest.approx(-3 / 164)
    assert (round(row["low_fraction"], 3), round(row["high_fraction"], 3)) == (-0.059, 0.017)
    assert row["mcnemar_p"] == pytest.approx(0.4531, abs=1e-4)
    assert row["verdict"] == "inconclusive", "7 of 164 discordant cannot exclude a loss of 5 points"
    assert row["flip_fraction"] == pytest.approx(7 / 164) and round(row["detectable_fraction"], 3) == 0.045


@pytest.mark.parametrize(
    ("wins", "losses", "both", "margin", "verdict"),
    [(0, 0, 144, 0.05, "non-inferior"), (0, 30, 110, 0.05, "inferior"), (0, 0, 5, 0.05, "uninformative")],
)
def test_verdicts(wins: int, losses: int, both: int, margin: float, verdict: str) -> None:
    a, b = pairs(wins, losses, both, 150 - wins - losses - both)
    assert rows(answers(a), answers(b), margin)[0]["verdict"] == verdict


def test_without_a_discordant_item_the_interval_and_what_can_be_detected_are_not_nothing() -> None:
    a, b = pairs(0, 0, 144, 6)
    [row] = rows(answers(a), answers(b))
    assert (round(row["low_fraction"], 3), round(row["high_fraction"], 3)) == (-0.025, 0.025)
    assert row["detectable_fraction"] > 0.03 and round(row["flip_high_fraction"], 3) == 0.024


def test_flags_give_a_second_reading_and_both_extremes() -> None:
    a, b = pairs(1, 0, 8, 1)
    found = {row["reading"]: row for row in rows(answers(a, flags={0: "truncated"}), answers(b, flags={9: "refused"}))}
    assert set(found) == {"all items", "without flagged"}
    whole = found["all items"]
    assert whole["difference_fraction"] == pytest.approx(0.1) and whole["flagged_fraction"] == pytest.approx(0.2)
    assert (whole["worst_fraction"], whole["best_fraction"]) == pytest.approx((-0.2, 0.2))
    assert found["without flagged"]["items"] == 8 and found["without flagged"]["wins"] == 0


def test_items_known_to_be_bad_stay_in_and_are_left_out_in_a_reading_of_their_own() -> None:
    a, b = pairs(1, 0, 8, 1)
    found = {row["reading"]: row for row in rows(answers(a, bad=0), answers(b, bad=0))}
    assert found["all items"]["wins"] == 1 and found["without known bad"]["wins"] == 0


def test_fractions_are_compared_by_the_error_over_items_and_judge_nothing() -> None:
    found = rows(answers([1.0, 0.5, 0.0], "ifeval"), answers([0.5, 0.5, 0.0], "ifeval"))
    by_measure = {row["measure"]: row for row in found}
    share = by_measure["instructions"]
    assert share["interval"] == "clustered" and share["verdict"] == "not judged" and share["holm_p"] is None
    assert share["difference_fraction"] == pytest.approx(1 / 6)
    assert share["high_fraction"] - share["low_fraction"] == pytest.approx(2 * 1.959964 / 6)
    assert by_measure["all instructions"]["interval"] == "Tango"


def test_holm_is_over_the_tasks() -> None:
    a, b = pairs(0, 0, 90, 10)
    tasks: tuple[TaskName, ...] = ("gsm8k", "humaneval")
    asked = {task: AskedTask(tier="full", max_tokens=8, margin_fraction=0.05) for task in tasks}
    given = {(side, task): answers(scores, task) for side, scores in (("a", a), ("b", b)) for task in tasks}
    found = compare.paired_rows("c", "a", "b", False, asked, given)
    assert [row["holm_p"] for row in found] == pytest.approx([2 * row["noninferior_p"] for row in found])


def test_one_system_has_wilsons_interval_gates_and_extremes() -> None:
    [row] = compare.task_rows("a", "gsm8k", answers([1.0] * 144 + [0.0] * 6, flags={0: "truncated", 149: "truncated"}))
    assert (round(row["low_fraction"], 3), round(row["high_fraction"], 3)) == (0.915, 0.982)
    assert row["truncated_fraction"] == pytest.approx(2 / 150) and row["gate_open"] is False
    assert row["worst_fraction"] == pytest.approx(143 / 150) and row["best_fraction"] == pytest.approx(145 / 150)
    [open_] = compare.task_rows("a", "gsm8k", answers([1.0] * 150, flags={0: "retried"}))
    assert open_["gate_open"] is True, "one of 150 is below 1 %"


def test_rows_fit_their_tables(tmp_path: Path) -> None:
    found = answers([1.0, 0.5, 0.0], "ifeval", flags={1: "empty"})
    tables = {
        "quality_answers": compare.answer_rows("a", "own", found),
        "quality_tasks": compare.task_rows("a", "ifeval", found),
        "quality_paired": rows(found, found, 0.3),
    }
    for table, content in tables.items():
        parquet.write(tmp_path / f"{table}.parquet", table, [{"run": "r"} | row for row in content], {})
        assert len(parquet.read(tmp_path / f"{table}.parquet")) == len(content) > 0
