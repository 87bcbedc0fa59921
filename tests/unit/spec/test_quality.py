"""What a comparison of answers may ask, and how a wrong one is answered."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from spillway.spec.experiment import Experiment, launched, resolve
from spillway.spec.number import data_files, figures_drawn
from spillway.spec.quality import Quality
from spillway.spec.read import SpecError, read
from tests.conftest import ROOT

ON: dict[str, Any] = {
    "model": "m",
    "seed": 1,
    "systems": {"one": {}, "other": {"arguments": {"dtype": "float32"}, "at_once": 2}},
    "comparisons": {"c": {"a": "one", "b": "other"}},
    "tasks": {"gsm8k": {"tier": "own", "max_tokens": 9, "margin_fraction": 0.05}},
}


def faults(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "e8.yaml"
    path.write_text(yaml.safe_dump({"question": "?", "measures": "quality", "hosts": {"cpu": ON | changes}}))
    with pytest.raises(SpecError) as raised:
        read(Experiment, path)
    return str(raised.value)


def test_systems_are_launched_as_arms() -> None:
    on = Quality.model_validate(
        ON | {"systems": ON["systems"] | {"vendor": {"remote": {"url": "https://x.org", "model": "m"}}}}
    )
    arms = launched(on).arms
    assert list(arms) == ["one", "other"] and arms["other"].arguments == {"dtype": "float32"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"comparisons": {"c": {"a": "one", "b": "two"}}},
            "comparisons.c.b: found 'two'; expected one of the systems: one, other",
        ),
        ({"comparisons": {"c": {"a": "one", "b": "one"}}}, "comparisons.c: found 'one' twice"),
        ({"tasks": {"mmlu": ON["tasks"]["gsm8k"]}}, "mmlu"),
        ({"tasks": {}}, "hosts.cpu: tasks: found none; expected one or more, or `agreement`"),
        (
            {
                "tasks": {},
                "agreement": {"greedy_tokens": 4},
                "systems": ON["systems"] | {"v": {"remote": {"url": "u", "model": "m"}}},
            },
            "systems.v.remote: found one without tasks; expected it beside tasks",
        ),
        (
            {"tasks": {"gsm8k": ON["tasks"]["gsm8k"] | {"margin_fraction": 5.0}}},
            "hosts.cpu.tasks.gsm8k.margin_fraction: found 5.0",
        ),
        (
            {"tasks": {"gsm8k": ON["tasks"]["gsm8k"] | {"max_tokens": 2**63}}},
            "hosts.cpu.tasks.gsm8k.max_tokens: found 9223372036854775808; expected:",
        ),
        (
            {"systems": ON["systems"] | {"one": {"at_once": 2**63}}},
            "hosts.cpu.systems.one.at_once: found 9223372036854775808; expected:",
        ),
        (
            {"systems": ON["systems"] | {"one": {"remote": {"url": "u", "model": "m"}, "arguments": {"dtype": "half"}}}},
            "expected only at_once",
        ),
        (
            {"systems": ON["systems"] | {"one": {"routing": {"unpopular": 1, "cold_share": 0.1}}}},
            "answers under a synthetic one",
        ),
        (
            {"systems": ON["systems"] | {"one": {"options": {"temperature": 1}}}},
            "options.temperature: found a field that is the same for all systems",
        ),
        (
            {"systems": {name: {"remote": {"url": "u", "model": "m"}} for name in ("one", "other")}},
            "use `spillway quality`",
        ),
        (
            {"systems": ON["systems"] | {"v": {"remote": {"url": "u", "model": "m", "input_price_per_million": 1.0}}}},
            "expected both or none",
        ),
    ],
)
def test_faults_name_key_found_and_expected(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert said in faults(tmp_path, **changes)


def test_without_tasks_agreement_is_enough_and_there_are_no_tables_of_answers() -> None:
    asked = Quality.model_validate(ON)
    alone = Quality.model_validate({key: ON[key] for key in ON if key != "tasks"} | {"agreement": {"greedy_tokens": 4}})
    assert asked.not_made == {"arms"}
    assert alone.not_made == {"arms", "quality_systems", "quality_answers", "quality_tasks", "quality_paired"}
    placed = ON["systems"] | {"other": {"plan": {"choose": "random", "host_share": 0.25, "seed": 1}}}
    assert Quality.model_validate(ON | {"systems": placed}).not_made == frozenset()


@pytest.mark.parametrize(("host", "asked", "placed"), [("cpu", True, False), ("h200", False, True)])
def test_the_paper_needs_no_file_of_a_table_that_a_host_does_not_make(host: str, asked: bool, placed: bool) -> None:
    needed = {file.split(".")[1] for file in data_files(ROOT, host) if file.startswith(f"{host}/e8_quality.")}
    assert {"quality_agreement", "quality_published"} <= needed
    assert ({"quality_paired", "quality_answers"} <= needed) == asked == ("quality" in figures_drawn(ROOT, host))
    assert ("arms" in needed) == placed


def test_keys_of_another_kind_of_experiment_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(yaml.safe_dump({"question": "?", "measures": "load", "hosts": {"cpu": ON}}))
    with pytest.raises(SpecError, match="keys of another kind of experiment"):
        read(Experiment, path)


def test_the_converted_models_hash_is_that_of_the_set_up() -> None:
    asked = resolve(ROOT, "e8_quality", "cpu")
    listed = dict(reversed(line.split()) for line in (ROOT / "envs/smollm2.sha256").read_text().splitlines())
    assert asked.model.source.sha256 == listed["model.safetensors"]
