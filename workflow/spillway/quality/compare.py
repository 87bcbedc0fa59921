"""Rows of a comparison: each system by task, and each pair of systems by task, with intervals, tests and gates."""

from collections.abc import Mapping, Sequence
from typing import Any

from spillway.quality import statistics
from spillway.quality.answers import FLAGS, FRACTIONAL, MEASURES, Answer
from spillway.quality.replies import request_hash
from spillway.spec.quality import AskedTask, TaskName

GATE = 0.01
ALPHA = 0.05
ALL, UNFLAGGED, SOUND = "all items", "without flagged", "without known bad"
Rows = list[dict[str, Any]]


def answer_rows(system: str, tier: str, answers: Sequence[Answer]) -> Rows:
    """One row for each answer, with the whole text that came."""
    return [
        {
            "system": system,
            "task": answer.item.task,
            "tier": tier,
            "item": answer.item.name,
            "known_bad": answer.item.known_bad,
            "order": answer.reply.order,
            "sent_at": answer.reply.sent_at,
            "request_sha256": request_hash(answer.reply.request),
            "max_tokens": answer.reply.request["max_tokens"],
            "reply": answer.text,
            "finish_reason": answer.finish_reason,
            "prompt_tokens": answer.usage.get("prompt_tokens"),
            "output_tokens": answer.usage.get("completion_tokens"),
            "extracted": answer.extracted if answer.item.task != "ifeval" else None,
            "score": answer.scores[MEASURES[answer.item.task][0]],
            "instructions_fraction": answer.scores.get("instructions"),
            "strict_score": answer.other.get("strict"),
            "flexible_score": answer.other.get("flexible"),
            "loose_score": answer.other.get("loose"),
            **{flag: flag in answer.flags for flag in FLAGS if flag != "retried"},
            "retries": answer.reply.retries,
            "confinement": answer.confinement,
            "message": answer.message,
        }
        for answer in answers
    ]


def task_rows(system: str, task: TaskName, answers: Sequence[Answer]) -> Rows:
    """One row for each measure of a task: the score with its interval, and the share of answers with each flag.

    Above 1 % of flagged answers the gate is closed: the score without them and both extremes are to be read beside it.
    """
    n = len(answers)
    flagged = [bool(answer.flags) for answer in answers]
    gate = {f"{flag}_fraction": sum(flag in answer.flags for answer in answers) / n for flag in FLAGS}
    rows: Rows = []
    for measure in MEASURES[task]:
        scores = [answer.scores[measure] for answer in answers]
        left = [score for score, out in zip(scores, flagged, strict=True) if not out]
        if measure in FRACTIONAL:
            interval, method = statistics.clustered_interval(scores), "clustered"
        else:
            interval, method = statistics.wilson(round(sum(scores)), n), "Wilson"
        rows.append(
            {
                "system": system,
                "task": task,
                "measure": measure,
                "items": n,
                "score_fraction": sum(scores) / n,
                "low_fraction": interval[0] if interval else None,
                "high_fraction": interval[1] if interval else None,
                "interval": method,
                **gate,
                "flagged_fraction": sum(flagged) / n,
                "gate_open": all(share <= GATE for share in gate.values()),
                "unflagged_items": len(left),
                "unflagged_fraction": sum(left) / len(left) if left else None,
                "worst_fraction": sum(left) / n,
                "best_fraction": (sum(left) + sum(flagged)) / n,
            }
        )
    return rows


def paired_rows(
    name: str,
    a: str,
    b: str,
    same: bool,
    asked: Mapping[TaskName, AskedTask],
    answers: Mapping[tuple[str, TaskName], Sequence[Answer]],
) -> Rows:
    """Rows of one comparison: each task, measure and reading. Holm's adjustment is over the tasks, within a reading."""
    rows: Rows = []
    for reading in (ALL, UNFLAGGED, SOUND):
        found: Rows = []
        for task, how in asked.items():
            pairs = [pair for pair in zip(answers[a, task], answers[b, task], strict=True) if _counts(reading, pair)]
            whole = len(pairs) == len(answers[a, task])
            if not pairs or (whole and reading != ALL):
                continue  # nothing is left, or nothing differs from the reading of all items
            found += [_paired(task, measure, pairs, how.margin_fraction) for measure in MEASURES[task]]
        judged = {row["task"]: row["noninferior_p"] for row in found if row["measure"] == MEASURES[row["task"]][0]}
        adjusted = statistics.holm(judged)
        for row in found:
            judges = row["measure"] == MEASURES[row["task"]][0]
            row["holm_p"] = adjusted[row["task"]] if judges else None
            row["verdict"] = _verdict(row) if judges else "not judged"
            rows.append({"comparison": name, "a": a, "b": b, "same": same, "reading": reading} | row)
    return rows


def _counts(reading: str, pair: tuple[Answer, Answer]) -> bool:
    if reading == UNFLAGGED:
        return not (pair[0].flags or pair[1].flags)
    return reading == ALL or not pair[0].item.known_bad


def _paired(task: TaskName, measure: str, pairs: Sequence[tuple[Answer, Answer]], margin: float) -> dict[str, Any]:
    n = len(pairs)
    both = [(one.scores[measure], other.scores[measure]) for one, other in pairs]
    differences = [mine - theirs for mine, theirs in both]
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    changed = (wins + losses) / n
    at_most = statistics.clopper_pearson(wins + losses, n)[1]
    flagged = [bool(one.flags or other.flags) for one, other in pairs]
    rest = sum(d for d, out in zip(differences, flagged, strict=True) if not out)
    row: dict[str, Any] = {
        "task": task,
        "measure": measure,
        "items": n,
        "a_fraction": sum(mine for mine, _ in both) / n,
        "b_fraction": sum(theirs for _, theirs in both) / n,
        "difference_fraction": sum(differences) / n,
        "wins": wins,
        "losses": losses,
        "flip_fraction": changed,
        "flip_high_fraction": at_most,
        "text_changed_fraction": sum(one.text != other.text for one, other in pairs) / n,
        "flagged_fraction": sum(flagged) / n,
        "worst_fraction": (rest - sum(flagged)) / n,
        "best_fraction": (rest + sum(flagged)) / n,
        "margin_fraction": margin,
    }
    if measure in FRACTIONAL:
        interval = statistics.clustered_interval(differences)
        error = statistics.clustered(differences)[1] if n > 1 else 0.0
        z = statistics.detectable(1.0, 1)
        return row | {
            "low_fraction": interval[0] if interval else None,
            "high_fraction": interval[1] if interval else None,
            "interval": "clustered",
            "mcnemar_p": None,
            "noninferior_p": statistics.clustered_non_inferiority(differences, margin),
            "detectable_fraction": z * error if error > 0 else None,
        }
    low, high = statistics.tango(wins, losses, n)
    return row | {
        "low_fraction": low,
        "high_fraction": high,
        "interval": "Tango",
        "mcnemar_p": statistics.mcnemar(wins, losses),
        "noninferior_p": statistics.non_inferiority(wins, losses, n, margin),
        # Without a discordant item the share is known only from above.
        "detectable_fraction": statistics.detectable(changed or at_most, n),
    }


def _verdict(row: Mapping[str, Any]) -> str:
    if row["b_fraction"] <= row["margin_fraction"]:
        return "uninformative"  # the reference itself scores so little that a loss of the margin is not possible
    if row["holm_p"] <= ALPHA:
        return "non-inferior"
    return "inferior" if row["high_fraction"] < -row["margin_fraction"] else "inconclusive"
