"""The journal: nothing answered is asked again, nothing half-written is believed, nobody writes beside another."""

import json
from pathlib import Path

import pytest

from spillway.quality.errors import QualityError
from spillway.quality.replies import Journal, Reply, without_secrets

REQUEST = {"model": "m", "max_tokens": 4}


def reply(item: str, *, answered: bool = True) -> Reply:
    response = {"choices": [{"message": {"content": "ä 1"}}]} if answered else None
    return Reply("a", "gsm8k", item, 0, REQUEST, response, {}, [] if answered else ["HTTP 500: no"], "2026-01-01", 0.1)


def test_what_is_answered_is_known_when_it_is_opened_again(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add(reply("1"))
        journal.add(reply("2", answered=False))
    with Journal(tmp_path, resume=True) as journal:
        assert journal.answered("a", "gsm8k", "1", REQUEST)
        assert not journal.answered("a", "gsm8k", "2", REQUEST), "a failure is asked again"
        assert not journal.answered("b", "gsm8k", "1", REQUEST)
        journal.add(reply("2"))
    with Journal(tmp_path, resume=True) as journal:
        assert journal.answered("a", "gsm8k", "2", REQUEST)
        assert journal.replies["a", "gsm8k", "1"] == reply("1")


@pytest.mark.parametrize("kept", [1, 20, -2])
def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path: Path, kept: int) -> None:
    with Journal(tmp_path) as journal:
        journal.add(reply("1"))
        journal.add(reply("2"))
    first, second = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(first + second[:kept])
    with Journal(tmp_path, resume=True) as journal:
        assert journal.answered("a", "gsm8k", "1", REQUEST) and not journal.answered("a", "gsm8k", "2", REQUEST)
        journal.add(reply("3"))
    lines = journal.path.read_text().splitlines()
    assert [json.loads(line)["item"] for line in lines] == ["1", "3"]


def test_replies_are_not_continued_unasked(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add(reply("1"))
    with pytest.raises(QualityError, match=r"holds replies already; .* --resume"):
        Journal(tmp_path)


def test_replies_to_other_settings_are_not_mixed(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add(reply("1"))
        with pytest.raises(QualityError, match="another model, prompt, budget"):
            journal.answered("a", "gsm8k", "1", REQUEST | {"max_tokens": 5})


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(QualityError, match="another process is writing it"):
        Journal(tmp_path, resume=True)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text('{"system": "a"}\n')
    with pytest.raises(QualityError, match="line 1: not a reply"):
        Journal(tmp_path, resume=True)


def test_secrets_are_hidden_as_they_are_and_as_json_writes_them() -> None:
    assert without_secrets('a"b ' + json.dumps('a"b'), ['a"b']) == '[key] "[key]"'
