"""The items of each task: public sets from a local file whose hash is known, committed lists of them, and items of our own."""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from spillway.quality import gsm8k, humaneval, ifeval
from spillway.quality.errors import QualityError
from spillway.record.parquet import sha256
from spillway.spec.quality import TaskName, Tier
from spillway.spec.read import Strict, read, read_yaml

FOLDER = Path(__file__).parent / "items"
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Set:
    """A public set: its file in a data folder, where that comes from, how an entry is named and put as a question."""

    file: str
    origin: str
    name: Callable[[int, Entry], str]
    prompt: Callable[[Entry], str]


SETS: dict[TaskName, Set] = {
    "gsm8k": Set(
        "gsm8k_test.jsonl",
        "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/test.jsonl",
        lambda line, _: str(line),
        gsm8k.prompt,
    ),
    "humaneval": Set(
        "HumanEval.jsonl.gz",
        "https://raw.githubusercontent.com/openai/human-eval/master/data/HumanEval.jsonl.gz",
        lambda _, entry: str(entry["task_id"]),
        humaneval.prompt,
    ),
    "ifeval": Set(
        "ifeval_input_data.jsonl",
        "https://raw.githubusercontent.com/google-research/google-research/master/instruction_following_eval/data/input_data.jsonl",
        lambda _, entry: str(entry["key"]),
        ifeval.prompt,
    ),
}


@dataclass(frozen=True)
class Item:
    """One question of a task. `known_bad` was declared before anything was measured."""

    task: TaskName
    name: str
    entry: Entry
    known_bad: bool = False

    @property
    def prompt(self) -> str:
        return SETS[self.task].prompt(self.entry)


class ItemList(Strict):
    """A file of items/: which entries of a set are asked."""

    sha256: str
    known_bad: list[str]
    fast: list[str]
    full: list[str]


def item_list(task: TaskName) -> ItemList:
    """The committed list of a task's items."""
    return read(ItemList, FOLDER / f"{task}.yaml")


def own_items(task: TaskName) -> list[Item]:
    """The dozen items of a task that were written for this project."""
    return [Item(task, name, entry) for name, entry in read_yaml(FOLDER / "own.yaml")[task].items()]


def texts() -> dict[str, str]:
    """Name -> text for token-level agreement, written for this project."""
    return dict(read_yaml(FOLDER / "texts.yaml"))


def load_items(task: TaskName, tier: Tier, data: Path | None) -> list[Item]:
    """The items of a task in the order of the list: `own` needs no data, `fast` and `full` the set's file in `data`.

    Raises QualityError if the file is absent or not the known one, or if the list names an entry that it does not hold.
    """
    if tier == "own":
        return own_items(task)
    listed = item_list(task)
    if data is None:
        raise QualityError(
            f"{task}: the items {tier!r} need {SETS[task].file} in a data folder; name one, or ask for the tier 'own'"
        )
    entries = read_set(task, data / SETS[task].file, listed.sha256)
    names = listed.fast if tier == "fast" else listed.full
    if absent := [name for name in names if name not in entries]:
        raise QualityError(
            f"{FOLDER / task}.yaml: {tier}: found {absent[0]!r} and {len(absent) - 1} more that "
            f"{data / SETS[task].file} does not hold; expected ids of its entries"
        )
    return [Item(task, name, entries[name], name in listed.known_bad) for name in names]


def read_set(task: TaskName, path: Path, expected_sha256: str) -> dict[str, Entry]:
    """Name -> entry of a set's file, JSON lines; raises QualityError if it is absent or its hash is another."""
    if not path.is_file():
        raise QualityError(
            f"{path}: no such file; `spillway quality --download --data {path.parent} ...` brings it from its origin"
        )
    if (found := sha256(path)) != expected_sha256:
        raise QualityError(
            f"{path}: found SHA-256 {found}; expected {expected_sha256}: the set was changed, or its origin has a new version, "
            "and results would not be comparable"
        )
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines if line.strip()]
    return {SETS[task].name(number, entry): entry for number, entry in enumerate(entries)}


def download(task: TaskName, data: Path, origin: str | None = None) -> Path:
    """Bring a set's file from its public origin, unless it is there; raises QualityError if it is not to be had.

    A file whose hash is another one than the list's is not kept.
    """
    path = data / SETS[task].file
    if path.exists():
        return path
    address = origin or SETS[task].origin
    try:
        answer = httpx.get(address, timeout=60, follow_redirects=True).raise_for_status()
    except httpx.HTTPError as error:
        raise QualityError(f"{address}: could not be had: {error}; bring the file to {path} by hand") from None
    data.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial-{path.name}")
    partial.write_bytes(answer.content)
    try:
        read_set(task, partial, item_list(task).sha256)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
