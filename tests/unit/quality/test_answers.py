"""From a reply's body to an answer: what is scored, what is flagged, and how timeouts and missing replies count."""

from typing import Any

import pytest

from spillway.quality import answers, confined
from spillway.quality.answers import MARK, Answer
from spillway.quality.confined import Outcome
from spillway.quality.items import Item, own_items
from spillway.quality.replies import Reply
from spillway.spec.quality import TaskName

GSM8K = Item("gsm8k", "1", {"question": "6 * 7?", "answer": "#### 42"})
HUMANEVAL = own_items("humaneval")[0]


def reply(item: Item, message: dict[str, Any] | None, finish: str = "stop", failures: tuple[str, ...] = ()) -> Reply:
    response = None if message is None else {"choices": [{"message": message, "finish_reason": finish}]}
    return Reply("a", item.task, item.name, 0, {"max_tokens": 9}, response, {}, list(failures), "2026-01-01", 0.1)


def judged(item: Item, message: dict[str, Any] | None, **more: Any) -> Answer:
    given = reply(item, message, **more)
    [answer] = answers.answers([item], {given.id: given}, "a", "limits only")
    return answer


@pytest.mark.parametrize(
    ("message", "finish", "flags", "score"),
    [
        ({"content": "#### 42"}, "stop", set(), 1),
        ({"content": "#### 42"}, "length", {"truncated"}, 1),
        ({"content": "#### 41"}, "stop", set(), 0),
        ({"content": ""}, "stop", {"empty"}, 0),
        ({"content": None}, "stop", {"empty"}, 0),
        ({"content": "No idea."}, "stop", {"extraction_failed"}, 0),
        ({"content": "", "refusal": "I cannot."}, "stop", {"empty", "refused"}, 0),
        ({"content": "#### 42"}, "content_filter", {"refused"}, 1),
        ({"content": "<think>#### 41</think>#### 42"}, "stop", set(), 1),
        ({"content": "<think>is it 42"}, "length", {"truncated", "empty"}, 0),
    ],
)
def test_flags_and_score(message: dict[str, Any], finish: str, flags: set[str], score: int) -> None:
    answer = judged(GSM8K, message, finish=finish)
    assert answer.flags == flags and answer.scores == {"right": score}


def test_a_retried_answer_and_one_that_never_came() -> None:
    retried = judged(GSM8K, {"content": "#### 42"}, failures=("HTTP 500: no",))
    assert retried.flags == {"retried"} and retried.scores == {"right": 1}
    failed = judged(GSM8K, None, failures=("HTTP 500: no", "HTTP 500: still no"))
    assert failed.flags == {"failed"} and failed.scores == {"right": 0} and failed.message == "HTTP 500: still no"


def test_instructions_are_scored_as_a_whole_and_as_a_share() -> None:
    item = next(item for item in own_items("ifeval") if len(item.entry["kwargs"]) == 2)
    assert judged(item, {"content": "The harbour is near."}).scores == {"all instructions": 1, "instructions": 1}
    assert judged(item, {"content": "The sea is near."}).scores == {"all instructions": 0, "instructions": 0.5}


def test_a_program_that_meets_its_limit_is_run_once_more_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[float] = []

    def run(program: str, mark: str, *, time_s: float, confinement: confined.Confinement) -> Outcome:
        assert "def double" in program and mark == MARK
        runs.append(time_s)
        return Outcome("timeout", "") if len(runs) == 1 else Outcome("passed", "")

    monkeypatch.setattr(confined, "run", run)
    answer = judged(HUMANEVAL, {"content": "```python\ndef double(n): return 2 * n\n```"})
    assert runs == [answers.PROGRAM_S, answers.PROGRAM_ALONE_S]
    assert answer.scores == {"passed": 1} and answer.message is None and answer.confinement == "limits only"


def test_programs_are_really_run() -> None:
    right = judged(HUMANEVAL, {"content": "```python\ndef double(n):\n    return 2 * n\n```"})
    wrong = judged(HUMANEVAL, {"content": "```python\ndef double(n):\n    return n\n```"})
    none = judged(HUMANEVAL, {"content": "Twice n."})
    assert (right.scores["passed"], wrong.scores["passed"], none.scores["passed"]) == (1, 0, 0)
    assert wrong.message is not None and "AssertionError" in wrong.message
    assert none.flags == {"extraction_failed"} and none.confinement is None


def test_price_of_what_was_used_and_of_the_most_that_can_be() -> None:
    usages = [{"prompt_tokens": 1000, "completion_tokens": 500}, {"prompt_tokens": 0, "completion_tokens": 500}]
    assert answers.spend(usages, 2.0, 10.0) == pytest.approx(0.012)
    assert answers.spend([{}], 2.0, 10.0) is None, "a server that does not count gives no price"
    assert answers.most_spend([("x" * 300, 500)], 2.0, 10.0) == pytest.approx((100 * 2 + 500 * 10) / 1e6)


@pytest.mark.parametrize("task", ["gsm8k", "humaneval", "ifeval"])
def test_every_measure_is_scored_also_without_a_reply(task: TaskName) -> None:
    answer = judged(own_items(task)[0], None, failures=("no",))
    assert tuple(answer.scores) == answers.MEASURES[task]
