"""The committed lists and own items, and that a set which is not the known one is refused."""

import os
import random
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import get_args

import pytest

from spillway.quality import gsm8k, ifeval, items
from spillway.quality.errors import QualityError
from spillway.quality.items import ItemList
from spillway.spec.quality import TaskName

TASKS: tuple[TaskName, ...] = get_args(TaskName)
SIZES = {"gsm8k": 1319, "humaneval": 164, "ifeval": 510}


@pytest.fixture
def trial_data() -> Path:
    if "SPILLWAY_TRIAL_DATA" not in os.environ:
        pytest.skip("SPILLWAY_TRIAL_DATA names no folder with the public sets")
    return Path(os.environ["SPILLWAY_TRIAL_DATA"]) / "quality"


@pytest.mark.parametrize("task", TASKS)
def test_lists_are_drawn_as_their_heads_say(task: TaskName) -> None:
    listed = items.item_list(task)
    assert len(listed.full) == len(set(listed.full)) == SIZES[task]
    assert len(listed.fast) == 150
    assert sorted(listed.fast) == sorted(random.Random(150).sample(listed.full, 150))
    assert set(listed.known_bad) <= set(listed.full)


@pytest.mark.parametrize("task", TASKS)
def test_a_dozen_own_items_with_the_keys_of_the_set(task: TaskName) -> None:
    own = items.load_items(task, "own", None)
    assert len({item.name for item in own}) == 12
    assert len({item.prompt for item in own}) == 12
    for item in own:
        match task:
            case "gsm8k":
                assert gsm8k.right(item.entry, gsm8k.extract(item.entry["answer"]))
            case "ifeval":
                assert len(ifeval.strict(item.entry, "Some reply.")) == len(item.entry["kwargs"])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("tier", ["fast", "full"])
def test_real_sets_are_read_and_hold_every_listed_item(task: TaskName, tier: items.Tier, trial_data: Path) -> None:
    found = items.load_items(task, tier, trial_data)
    assert len(found) == (150 if tier == "fast" else SIZES[task])
    assert all(item.prompt for item in found)
    if task == "gsm8k":
        assert all(gsm8k.right(item.entry, gsm8k.extract(item.entry["answer"])) for item in found)
    if task == "ifeval":
        assert {kind for item in found for kind in item.entry["instruction_id_list"]} == set(ifeval.CHECKS)


def test_a_set_with_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    with pytest.raises(QualityError, match=r"gsm8k_test\.jsonl: found SHA-256 .*; expected 3730d312f6e3"):
        items.load_items("gsm8k", "fast", tmp_path)


def test_an_absent_set_and_an_absent_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(QualityError, match=r"HumanEval\.jsonl\.gz: no such file; .*--download"):
        items.load_items("humaneval", "full", tmp_path)
    with pytest.raises(QualityError, match=r"need HumanEval\.jsonl\.gz in a data folder"):
        items.load_items("humaneval", "full", None)


def test_a_list_that_names_absent_ids_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    digest = items.sha256(tmp_path / "gsm8k_test.jsonl")
    monkeypatch.setattr(
        items, "item_list", lambda task: ItemList(sha256=digest, known_bad=[], fast=["0", "7", "9"], full=["0"])
    )
    with pytest.raises(QualityError, match=r"gsm8k\.yaml: fast: found '7' and 1 more that .* does not hold"):
        items.load_items("gsm8k", "fast", tmp_path)
    assert [item.name for item in items.load_items("gsm8k", "full", tmp_path)] == ["0"]


@pytest.fixture
def origin() -> Iterator[str]:
    """A web server that has one file, and not the right one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/file" else 404)
            self.end_headers()
            self.wfile.write(b'{"question": "?", "answer": "#### 1"}\n')

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_download_keeps_only_the_known_file(origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QualityError, match="found SHA-256"):
        items.download("gsm8k", tmp_path / "data", f"{origin}/file")
    assert list((tmp_path / "data").iterdir()) == []
    with pytest.raises(QualityError, match="404"):
        items.download("gsm8k", tmp_path / "data", f"{origin}/absent")
    expected = items.item_list("gsm8k")
    (tmp_path / "expected").write_bytes(b'{"question": "?", "answer": "#### 1"}\n')
    digest = items.sha256(tmp_path / "expected")
    monkeypatch.setattr(items, "item_list", lambda task: expected.model_copy(update={"sha256": digest}))
    path = items.download("gsm8k", tmp_path / "data", f"{origin}/file")
    assert path.read_bytes() == (tmp_path / "expected").read_bytes()
    assert items.download("gsm8k", tmp_path / "data", f"{origin}/absent") == path, "what is there is not fetched again"
