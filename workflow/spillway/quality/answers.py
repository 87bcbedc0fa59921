"""From a raw reply to an answer: what was extracted, how it scores, and what speaks against taking it as it is."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spillway.quality import confined, gsm8k, humaneval, ifeval
from spillway.quality.items import Item
from spillway.quality.replies import Id, Reply
from spillway.spec.quality import Confinement, TaskName

FLAGS = ("truncated", "empty", "refused", "extraction_failed", "failed", "retried")
PROGRAM_S = 5.0
PROGRAM_ALONE_S = 20.0
MARK = "spillway: all tests passed"
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)

MEASURES: dict[TaskName, tuple[str, ...]] = {
    "gsm8k": ("right",),
    "humaneval": ("passed",),
    "ifeval": ("all instructions", "instructions"),
}
"""The scores of each task, the one that it is judged by first. `instructions` is a fraction, the others are 0 or 1."""
FRACTIONAL = frozenset({"instructions"})


@dataclass(frozen=True)
class Answer:
    """One system's answer to one item. `other` are readings that are recorded beside the scores and judge nothing."""

    item: Item
    reply: Reply
    text: str
    finish_reason: str | None
    usage: Mapping[str, Any]
    extracted: str | None
    scores: Mapping[str, float]
    flags: frozenset[str]
    other: Mapping[str, float] = field(default_factory=dict)
    confinement: Confinement | None = None
    message: str | None = None


def answers(
    items: Sequence[Item],
    replies: Mapping[Id, Reply],
    system: str,
    confinement: Confinement,
    say: Callable[[str], None] = lambda text: None,
) -> list[Answer]:
    """A system's answers to all items, in their order; programs are run here, one after the other.

    A program that meets its time limit is run once more at the end, alone and with more time. Raises QualityError where
    programs are to be run and the confinement cannot be had, and KeyError for an item without a reply.
    """
    judged = [_answer(item, replies[system, item.task, item.name]) for item in items]
    programs = [
        (place, humaneval.program(answer.item.entry, answer.extracted, MARK))
        for place, answer in enumerate(judged)
        if answer.item.task == "humaneval" and answer.extracted is not None
    ]
    if programs:
        say(f"{system}: running {len(programs)} programs, confinement: {confinement}")
    late = []
    for place, program in programs:
        outcome = confined.run(program, MARK, time_s=PROGRAM_S, confinement=confinement)
        if outcome.ending == "timeout":
            late.append((place, program))
        judged[place] = _with_outcome(judged[place], outcome, confinement)
    for place, program in late:
        outcome = confined.run(program, MARK, time_s=PROGRAM_ALONE_S, confinement=confinement)
        judged[place] = _with_outcome(judged[place], outcome, confinement)
    return judged


def _with_outcome(answer: Answer, outcome: confined.Outcome, confinement: Confinement) -> Answer:
    message = {"passed": None, "failed": outcome.message or "failed", "timeout": "timeout, also when run alone"}[outcome.ending]
    return Answer(
        **{name: getattr(answer, name) for name in ("item", "reply", "text", "finish_reason", "usage", "extracted", "flags")},
        scores={"passed": float(outcome.ending == "passed")},
        confinement=confinement,
        message=message,
    )


def _answer(item: Item, reply: Reply) -> Answer:
    if reply.response is None:
        nothing = dict.fromkeys(MEASURES[item.task], 0.0)
        return Answer(
            item,
            reply,
            "",
            None,
            {},
            None,
            nothing,
            frozenset({"failed"}),
            message=reply.failures[-1] if reply.failures else "",
        )
    # Anything but the documented shape is an answer without text.
    match reply.response.get("choices"):
        case [{"message": {} as message} as choice, *_]:
            pass
        case _:
            choice, message = {}, {}
    content = message.get("content")
    text = _THOUGHT.sub("", content).strip() if isinstance(content, str) else ""
    finish = choice.get("finish_reason")
    flags = {
        "truncated": finish == "length",
        "empty": not text,
        "refused": finish == "content_filter" or bool(message.get("refusal")),
        "retried": reply.retries > 0,
    }
    extracted, scores, other = _score(item, text)
    flags["extraction_failed"] = extracted is None and bool(text)
    return Answer(
        item,
        reply,
        text,
        finish,
        reply.response.get("usage") or {},
        extracted,
        scores,
        frozenset(name for name, raised in flags.items() if raised),
        other,
    )


def _score(item: Item, text: str) -> tuple[str | None, dict[str, float], dict[str, float]]:
    """What is extracted from an answer's text, its scores, and the other readings; programs are not run here."""
    entry = item.entry
    match item.task:
        case "gsm8k":
            number = gsm8k.extract(text)
            other = {"strict": gsm8k.right_strict(entry, text), "flexible": gsm8k.right_flexible(entry, text)}
            return number, {"right": float(gsm8k.right(entry, number))}, {name: float(is_) for name, is_ in other.items()}
        case "humaneval":
            return humaneval.extract(text, entry["entry_point"]), {"passed": 0.0}, {}
        case "ifeval":
            followed = ifeval.strict(entry, text)
            scores = {"all instructions": float(all(followed)), "instructions": sum(followed) / len(followed)}
            return text or None, scores, {"loose": float(all(ifeval.loose(entry, text)))}


def spend(usages: Iterable[Mapping[str, Any]], input_per_million: float, output_per_million: float) -> float | None:
    """The price of all requests by the servers' own token counts; None if one of them did not count."""
    total = 0.0
    for usage in usages:
        if "prompt_tokens" not in usage or "completion_tokens" not in usage:
            return None
        total += usage["prompt_tokens"] * input_per_million + usage["completion_tokens"] * output_per_million
    return total / 1e6


def most_spend(prompts: Iterable[tuple[str, int]], input_per_million: float, output_per_million: float) -> float:
    """The price if every answer takes its whole budget and a token of the prompt is three characters: an upper estimate."""
    return sum(len(prompt) / 3 * input_per_million + max_tokens * output_per_million for prompt, max_tokens in prompts) / 1e6
