"""All tables of a comparison from its replies and readings: what the workflow and `spillway quality` have in common."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spillway.quality import agreement
from spillway.quality.agreement import Reading
from spillway.quality.answers import Answer, answers, most_spend, spend
from spillway.quality.ask import Endpoint, Question
from spillway.quality.compare import answer_rows, paired_rows, task_rows
from spillway.quality.errors import QualityError
from spillway.quality.items import Item, load_items
from spillway.quality.replies import Id, Reply
from spillway.spec.quality import AskedTask, Comparison, Confinement, Remote, TaskName

Rows = list[dict[str, Any]]
Tables = dict[str, Rows]


def load(tasks: Mapping[TaskName, AskedTask], data: Path | None) -> dict[TaskName, list[Item]]:
    """Task -> its items; raises QualityError where they cannot be had, or are fewer than two."""
    items = {task: load_items(task, how.tier, data)[: how.items] for task, how in tasks.items()}
    for task, found in items.items():
        if len(found) < 2:
            raise QualityError(f"{task}: found {len(found)} item; expected two or more, or there is nothing to compare")
    return items


def questions(tasks: Mapping[TaskName, AskedTask], items: Mapping[TaskName, Sequence[Item]]) -> list[Question]:
    """Every item with the budget of its task."""
    return [Question(item, tasks[task].max_tokens) for task, found in items.items() for item in found]


def estimate(asked: Sequence[Question], prices: Remote | None) -> float | None:
    """What asking may cost at most; None without prices."""
    if prices is None or prices.input_price_per_million is None or prices.output_price_per_million is None:
        return None
    prompts = [(question.item.prompt, question.max_tokens) for question in asked]
    return most_spend(prompts, prices.input_price_per_million, prices.output_price_per_million)


def answer_tables(
    tasks: Mapping[TaskName, AskedTask],
    items: Mapping[TaskName, Sequence[Item]],
    systems: Sequence[str],
    comparisons: Mapping[str, Comparison],
    replies: Mapping[Id, Reply],
    confinement: Confinement,
    say: Callable[[str], None],
) -> Tables:
    """The tables of answers, tasks and pairs; programs are run here. Raises QualityError if they cannot be confined."""
    judged: dict[tuple[str, TaskName], list[Answer]] = {}
    tables: Tables = {"quality_answers": [], "quality_tasks": [], "quality_paired": []}
    for system in systems:
        for task, found in items.items():
            judged[system, task] = answers(found, replies, system, confinement, say)
            tables["quality_answers"] += answer_rows(system, tasks[task].tier, judged[system, task])
            tables["quality_tasks"] += task_rows(system, task, judged[system, task])
    for name, pair in comparisons.items():
        tables["quality_paired"] += paired_rows(name, pair.a, pair.b, pair.same, tasks, judged)
    return tables


def agreement_tables(comparisons: Mapping[str, Comparison], readings: Mapping[str, Mapping[str, Reading]]) -> Tables:
    """The tables of token-level agreement, for the comparisons whose systems both read the texts.

    Raises QualityError if two servers do not read the same tokens.
    """
    tables: Tables = {"quality_agreement": [], "quality_texts": [], "quality_tokens": []}
    for name, pair in comparisons.items():
        if pair.a not in readings or pair.b not in readings:
            continue
        keys = {"comparison": name, "a": pair.a, "b": pair.b, "same": pair.same}
        tokens: Rows = []
        texts: Rows = []
        for text, a in readings[pair.a].items():
            b = readings[pair.b][text]
            try:
                rows = agreement.token_rows(text, a, b)
            except ValueError as error:
                raise QualityError(f"{name}: {error}") from None
            tokens += rows
            texts.append(agreement.text_row(text, a, b, rows))
        tables["quality_agreement"].append(keys | agreement.comparison_row(tokens, texts))
        tables["quality_texts"] += [keys | row for row in texts]
        tables["quality_tokens"] += [keys | row for row in tokens]
    return tables


def system_row(
    endpoint: Endpoint,
    replies: Sequence[Reply],
    *,
    prices: Remote | None,
    estimated: float | None,
    arguments: str,
    startup_s: float | None,
) -> dict[str, Any]:
    """The row of one system: how it was asked, what that took and cost. No address but the host's name stands in it."""
    usages = [(reply.response or {}).get("usage") or {} for reply in replies if reply.response is not None]
    counted = all("prompt_tokens" in usage and "completion_tokens" in usage for usage in usages)
    cost = None
    if prices is not None and prices.input_price_per_million is not None and prices.output_price_per_million is not None:
        cost = spend(usages, prices.input_price_per_million, prices.output_price_per_million)
    sent = sorted(reply.sent_at for reply in replies)
    first = replies[0].request
    return {
        "system": endpoint.system,
        "model": endpoint.model,
        "server": "launched" if startup_s is not None else urlsplit(endpoint.url).hostname or endpoint.url,
        "arguments": arguments,
        "at_once": endpoint.at_once,
        "temperature": float(first["temperature"]),
        "seed": first["seed"],
        "startup_s": startup_s,
        "asked": len(replies),
        "answered": len(usages),
        "retries": sum(reply.retries for reply in replies),
        "prompt_tokens": sum(usage["prompt_tokens"] for usage in usages) if counted else None,
        "output_tokens": sum(usage["completion_tokens"] for usage in usages) if counted else None,
        "answering_s": sum(reply.wall_s for reply in replies),
        "first_sent_at": sent[0],
        "last_sent_at": sent[-1],
        "estimated_price": estimated,
        "price": cost,
        "currency": prices.currency if cost is not None and prices is not None else None,
    }
