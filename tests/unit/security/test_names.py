"""Names and options out of files reach no shell, no path and no option of the engine that they were not meant for."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from spillway.record import manifest, parquet
from spillway.record.parquet import RecordError
from spillway.spec.experiment import names, resolve
from spillway.spec.host import Host, Model
from spillway.spec.names import is_name
from spillway.spec.number import Figures
from spillway.spec.read import SpecError, read

HOSTILE = ["a;touch pwned", "$(touch pwned)", "`id`", "a b", "a'b", 'a"b', "a|b", "a>b", "-rf", "..", ".hidden", "a\nb", "a*",
           "a{b}", "é", "", "a&b", "a\\b", "a" * 101]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_only_plain_names_are_names(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize("kind", ["", "hosts", "models"])
@pytest.mark.parametrize("name", [name for name in HOSTILE if name and "/" not in name and len(name) < 100])
def test_a_file_with_such_a_name_stops_the_workflow_before_any_command(tmp_path: Path, kind: str, name: str) -> None:
    folder = tmp_path / "experiments" / kind
    folder.mkdir(parents=True)
    (folder / f"{name}.yaml").touch()
    with pytest.raises(SpecError, match="expected letters, digits"):
        names(tmp_path, kind)


def test_figures_have_plain_names(tmp_path: Path) -> None:
    path = tmp_path / "figures.yaml"
    path.write_text(yaml.safe_dump({"x; touch pwned": {"files": ["a.b"]}}))
    with pytest.raises(SpecError, match="expected letters, digits"):
        read(Figures, path)


ENGINE = {"environment": "engine-cpu", "module": "m", "ready_timeout_s": 60.0}
HOST = {"title": "a machine", "measured": True, "engine": ENGINE}
MODEL = {
    "title": "a model", "weights": "trained", "source": {"kind": "folder", "path": "/m"}, "max_model_len": 1000,
    "first_prompt_token": 4, "last_prompt_token": 1000,
}  # fmt: skip
NO_ARGUMENTS = [
    ("host", "launcher sets itself"),
    ("hos", "launcher sets itself"),
    ("port", "launcher sets itself"),
    ("host=0.0.0.0", "no name of an option"),
    ("dtype=auto --host", "no name of an option"),
    ("--host", "option with dashes"),
    ("trust_remote_code", "no name of an option"),
    ("trust-remote-code", "only where the model's file says"),
    ("trust-rem", "only where the model's file says"),
    ("api-key", "stands in no file"),
    ("uds", "loopback port alone"),
    ("config", "one by one"),
]


def project(root: Path, arguments: dict[str, Any], on: dict[str, Any]) -> Path:
    """A project whose host has these arguments and whose experiment asks for `on`."""
    contents: dict[str, Any] = {
        "hosts/here": HOST | {"engine": ENGINE | {"arguments": arguments}},
        "models/m": MODEL,
        "e1": {"question": "How much?", "measures": "memory", "hosts": {"here": {"model": "m", "seed": 1} | on}},
    }
    for name, content in contents.items():
        path = root / "experiments" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))
    return root


@pytest.mark.parametrize(("name", "why"), NO_ARGUMENTS)
def test_options_that_open_the_server_or_run_foreign_code_are_refused_everywhere(tmp_path: Path, name: str, why: str) -> None:
    resolve(project(tmp_path, {"dtype": "auto"}, {}), "e1", "here")  # without it all is well
    for arguments, on in (
        ({name: True}, {}),
        ({}, {"attempts": {"small": {name: True}}}),
        ({}, {"arms": {"one": {"arguments": {name: True}}}}),
    ):
        with pytest.raises(SpecError, match=why):
            resolve(project(tmp_path, arguments, on), "e1", "here")


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "AWS_SECRET", "db_password", "X=1", "A B", "LD;PRELOAD"])
def test_no_secret_stands_in_a_hosts_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(yaml.safe_dump(HOST | {"engine": ENGINE | {"variables": {name: "x"}}}))
    with pytest.raises(SpecError, match=r"found a secret in a file|no name of an environment variable"):
        read(Host, path)


@pytest.mark.parametrize("model", ["../../x", "/etc/passwd", "m.yaml/..", "a b"])
def test_a_model_is_a_name_and_no_path(tmp_path: Path, model: str) -> None:
    with pytest.raises(SpecError, match="expected letters, digits"):
        resolve(project(tmp_path, {}, {"model": model}), "e1", "here")


def test_environments_are_names_and_no_paths(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(yaml.safe_dump(HOST | {"engine": ENGINE | {"environment": "../../evil"}}))
    with pytest.raises(SpecError, match=r"engine\.environment: found '../../evil'"):
        read(Host, path)


@pytest.mark.parametrize("kind", ["attempts", "arms"])
def test_names_of_folders_stay_in_their_folder(tmp_path: Path, kind: str) -> None:
    with pytest.raises(SpecError, match="no name of a folder"):
        resolve(project(tmp_path, {}, {kind: {"../../x": {}}}), "e1", "here")


ROW = {"run": "r", "boot": 0, "startup_s": 1.5, "health_s": 1.0, "process_memory_bytes": 5}
ORIGIN = {name: "x" for name in manifest.COLUMNS[4:]} | {"host": "cpu", "experiment": "e1", "run": "r", "dirty": False}


@pytest.mark.parametrize(
    "origin",
    [
        {"host": "../.."},
        {"host": "/tmp"},
        {"host": ".."},
        {"host": 7},
        {"experiment": "*"},
        {"experiment": "e1/../.."},
        {"experiment": "e2"},
    ],
)
def test_a_table_from_elsewhere_chooses_no_folder(tmp_path: Path, origin: dict[str, object]) -> None:
    data = tmp_path / "project" / "data"
    (data / "cpu").mkdir(parents=True)
    precious = [tmp_path / "project" / ".gitignore", data / "cpu" / "e2.boots.parquet", tmp_path / ".profile"]
    for path in precious:
        path.write_text("mine")
    parquet.write(tmp_path / "run" / "e1.boots.parquet", "boots", [ROW], ORIGIN | origin)
    with pytest.raises(RecordError, match=r"expected letters, digits|expected that at the beginning of its name"):
        manifest.publish(tmp_path / "run", data)
    assert all(path.read_text() == "mine" for path in precious)


def test_the_model_key_for_remote_code_is_explicit(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(MODEL))
    assert read(Model, path).trust_remote_code is None, "absent is neither yes nor no"
    path.write_text(yaml.safe_dump(MODEL | {"trust_remote_code": "yes"}))
    with pytest.raises(SpecError, match="trust_remote_code: found 'yes'"):
        read(Model, path)
