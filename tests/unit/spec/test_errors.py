"""A wrong file is answered with its name, the key, what was found and what was expected."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from spillway.spec.experiment import Experiment, NotRun, Resolved, names, resolve
from spillway.spec.host import Host, Model
from spillway.spec.read import SpecError, read

ENGINE = {"environment": "engine-cpu", "module": "m", "ready_timeout_s": 60.0, "arguments": {"max-num-seqs": 2}}
HOST = {"title": "a machine", "measured": True, "engine": ENGINE}
TINY = {
    "kind": "tiny_moe", "layers": 2, "experts": 4, "experts_per_token": 2, "hidden": 8, "expert_hidden": 8,
    "sha256": "0" * 64,
}  # fmt: skip
MODEL = {
    "title": "a model", "weights": "random", "source": TINY, "max_model_len": 1000, "first_prompt_token": 4,
    "last_prompt_token": 1000,
}  # fmt: skip
SWEEP = {"workload": {"kind": "prompt_sweep", "output_tokens": 10, "requests": 2}, "sweep": {"prompt_tokens": [100, 200]}}
EXPERIMENT = {
    "question": "How fast?",
    "measures": "load",
    "hosts": {"here": {"model": "m", "seed": 1, "cells": [SWEEP]}, "there": {"not_run": "it has no GPU at all"}},
}


def changed(content: object, key: str, value: object) -> object:
    """A copy of nested dicts and lists in which the dotted key has another value; a value of `...` deletes it."""
    head, _, rest = key.partition(".")
    if isinstance(content, list):
        return [changed(item, rest, value) if str(at) == head else item for at, item in enumerate(content)]
    assert isinstance(content, dict)
    if rest:
        return content | {head: changed(content[head], rest, value)}
    return {k: v for k, v in content.items() if k != head} if value is ... else content | {head: value}


def project(root: Path, host: object = HOST, model: object = MODEL, experiment: object = EXPERIMENT) -> Path:
    for file, content in {"hosts/here": host, "hosts/there": HOST, "models/m": model, "e1": experiment}.items():
        path = root / "experiments" / f"{file}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))
    return root


HOST_FAULTS = [
    ("titel", "x", r"titel: unknown key, found 'x'; did you mean title\?; expected one of: engine, gpus"),
    ("engine.argument", {}, r"engine\.argument: unknown key.*did you mean arguments"),
    ("engine.ready_timeout_s", "300 s", r"engine\.ready_timeout_s: found '300 s'; expected: Input should be a valid number"),
    ("engine.ready_timeout_s", -1.0, r"engine\.ready_timeout_s: found -1\.0; expected: .*greater than 0"),
    ("engine", ..., r"engine: found nothing; expected a value"),
    ("gpus", {"name": "H200", "count": 1, "memory_gb": 141}, r"gpus\.memory_gb: unknown key.*did you mean memory_gib"),
    ("gpus", {"name": "H200", "count": 1.5, "memory_gib": 139.8}, r"gpus\.count: found 1\.5"),
    ("engine.arguments.port", 8000, r"engine\.arguments\.port: found an argument that the launcher sets itself"),
    ("engine.arguments.--dtype", "auto", r"found an option with dashes; expected the name alone: dtype"),
    ("engine.arguments.tensor-parallel-size", 2, r"tensor-parallel-size: found more than 1; expected 1 on a host without"),
]
MODEL_FAULTS = [
    ("source.experts_per_token", 5, r"source.*: found 5; expected at most the 4 experts"),
    ("source.kv_heads", 3, r"source.*: heads: found 4; expected a multiple of kv_heads, 3"),
    ("source.format", "fp8", r"source.*: hidden: found 8; expected a multiple of 128, the block of fp8"),
    ("source.format", "int4", r"source.*format: found 'int4'; expected: .*'bf16' or 'fp8'"),
    ("source.kind", "gguf", r"source.*gguf"),
    ("source.layer", 3, r"source\.layer: unknown key, found 3; did you mean layers"),
    ("weights", "trained", r"weights: found 'trained'; expected 'random' for tiny_moe"),
    ("max_model_len", "8K", r"max_model_len: found '8K'; expected: Input should be a valid integer"),
    ("last_prompt_token", 100, r"last_prompt_token: found 100; expected at least 259"),
]
EXPERIMENT_FAULTS = [
    ("measures", "speed", r"measures: found 'speed'; expected: .*'memory', 'load'"),
    ("hosts.here.sed", 1, r"hosts\.here\.sed: unknown key.*did you mean seed"),
    ("hosts.here.cells", [], r"hosts\.here\.cells: found 0 groups; expected at least one"),
    ("hosts.here.cells.0.workload.requests", 0, r"workload of cell 'prompt_tokens=100': requests: found 0"),
    ("hosts.here.cells.0.workload.requests", 2**63, r"requests: found 9223372036854775808; expected: .*2147483647"),
    ("hosts.here.seed", 2**63, r"hosts\.here\.seed: found 9223372036854775808; expected: .*2147483647"),
    ("hosts.here.cells.0.workload.prompt", 7, r"workload of cell 'prompt_tokens=100': prompt: found 7"),
    ("hosts.here.cells.0.workload.kind", "sweep", r"workload of cell .*sweep"),
    ("hosts.here.cells.0.sweep.output_tokens", [1], r"sweep\.output_tokens: found here and in workload"),
    ("hosts.here.cells.0.sweep.prompt_tokens", [100, 100], r"found the cell 'prompt_tokens=100' twice"),
    ("hosts.there.not_run", "no", r"hosts\.there\.not_run: found 'no'"),
]


@pytest.mark.parametrize(
    ("kind", "content", "key", "value", "message"),
    [(Host, HOST, *fault) for fault in HOST_FAULTS]
    + [(Model, MODEL, *fault) for fault in MODEL_FAULTS]
    + [(Experiment, EXPERIMENT, *fault) for fault in EXPERIMENT_FAULTS],
)
def test_fault_is_named(tmp_path: Path, kind: type, content: object, key: str, value: object, message: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(yaml.safe_dump(content))
    read(kind, path)  # without the fault it is right
    path.write_text(yaml.safe_dump(changed(content, key, value)))
    with pytest.raises(SpecError) as caught:
        read(kind, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert re.search(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: a\ntitle: b\n", "key 'title' stands twice"),
        ("title: [\n", "not valid YAML"),
        ("- a list\n", r"found \['a list'\]; expected keys: title"),
        ("", "found None; expected keys: title"),
        ("\x00", "not valid YAML"),
    ],
)
def test_what_is_not_yaml_of_this_kind(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        read(Host, path)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_bytes(b"title: \xff\n")
    with pytest.raises(SpecError, match="not UTF-8 text: byte 7 is 0xff"):
        read(Host, tmp_path / "file.yaml")


COMBINATIONS: list[tuple[str, Callable[[Path], Path], str]] = [
    ("e2", lambda root: project(root), r"e2\.yaml: no such file; in that folder: e1"),
    ("e1", lambda root: project(root, model=changed(MODEL, "max_model_len", 205)), r"found 210 tokens in one sequence of cell "
     r"'prompt_tokens=200'; expected at most max_model_len = 205"),
    ("e1", lambda root: project(root, experiment=changed(changed(EXPERIMENT, "hosts.here.cells.0.workload.streams", 4),
     "hosts.here.cells.0.workload.requests", 4)), r"found 4 streams at once.*expected at most max-num-seqs = 2"),
    ("e1", lambda root: project(root, experiment=changed(EXPERIMENT, "hosts.here.model", "x")), r"models/x\.yaml: no such"),
    ("e1", lambda root: project(root, experiment=changed(EXPERIMENT, "hosts.here", ...)), r"hosts\.here: found nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "message"), COMBINATIONS)
def test_impossible_combination(tmp_path: Path, name: str, make: Callable[[Path], Path], message: str) -> None:
    root = make(tmp_path)
    with pytest.raises(SpecError, match=message):
        resolve(root, name, "here")


def test_not_run_is_an_answer(tmp_path: Path) -> None:
    assert resolve(project(tmp_path), "e1", "there") == NotRun(not_run="it has no GPU at all")


def hash_of(root: Path, **parts: object) -> str:
    asked = resolve(project(root, **parts), "e1", "here")
    assert isinstance(asked, Resolved)
    return asked.hash


def test_hash_changes_with_what_is_asked_and_not_with_words_or_other_hosts(tmp_path: Path) -> None:
    original = hash_of(tmp_path)
    assert hash_of(tmp_path, experiment=changed(EXPERIMENT, "question", "How slow?")) == original
    assert hash_of(tmp_path, experiment=changed(EXPERIMENT, "hosts.there", ...)) == original
    assert hash_of(tmp_path, host=changed(HOST, "title", "another")) == original
    assert hash_of(tmp_path, experiment=changed(EXPERIMENT, "hosts.here.boots", 1)) == original, "1 is the default"
    different = {
        hash_of(tmp_path, experiment=changed(EXPERIMENT, "hosts.here.boots", 2)),
        hash_of(tmp_path, experiment=changed(EXPERIMENT, "hosts.here.seed", 2)),
        hash_of(tmp_path, experiment=changed(EXPERIMENT, "hosts.here.cells.0.sweep.prompt_tokens", [100, 300])),
        hash_of(tmp_path, host=changed(HOST, "engine.arguments.dtype", "float32")),
        hash_of(tmp_path, host=changed(HOST, "engine.variables", {"A": "1"})),
        hash_of(tmp_path, model=changed(MODEL, "max_model_len", 2000)),
    }
    assert len(different | {original}) == 7


def test_experiments_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    for name in ("e13_agents", "e2_x", "e1_y"):
        (tmp_path / "experiments" / f"{name}.yaml").touch()
    assert names(tmp_path) == ["e1_y", "e2_x", "e13_agents"]
