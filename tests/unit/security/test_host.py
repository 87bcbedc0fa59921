"""What others on the host, or in a model repository, may have laid in wait: locks, files of a model, lines of a log."""

import io
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from spillway.engine.lock import holder, measuring
from spillway.engine.repository import ForeignCode, refuse_foreign_code
from spillway.engine.server import server_environment
from spillway.measure.experiment import _open
from spillway.measure.run import Run
from spillway.spec.shown import printable, shown


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "lock"
    monkeypatch.setenv("SPILLWAY_LOCK", str(path))
    return path


def test_a_lock_that_is_a_link_overwrites_nothing(lock: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    lock.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"), measuring("e1"):
        pass
    lock.unlink()
    os.link(precious, lock)
    with pytest.raises(PermissionError, match="expected a file of this user's own"), measuring("e1"):
        pass
    assert precious.read_text() == "mine"


def test_a_lock_that_is_a_pipe_holds_nobody_up(lock: Path) -> None:
    os.mkfifo(lock)
    assert holder() is None
    with pytest.raises(PermissionError, match="expected a file of this user's own"), measuring("e1"):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of another user")
def test_a_lock_of_another_user_is_refused(lock: Path) -> None:
    lock.touch()
    os.chown(lock, 64998, 64998)
    with pytest.raises(PermissionError, match="found a file of user 64998"), measuring("e1"):
        pass


def test_a_lock_is_for_its_user_alone(lock: Path) -> None:
    with measuring("e1"):
        assert lock.stat().st_mode & 0o777 == 0o600


def test_a_runs_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    asked = SimpleNamespace(host_name="cpu", name="e1")
    log = io.StringIO()
    run, _ = _open(Run(asked, tmp_path, "20260302T100000Z-00000000", log), {}, anew=True)  # type: ignore[arg-type]
    assert run.folder.stat().st_mode & 0o777 == 0o700
    run.say("the server said \x1b[2J")
    assert "\x1b" not in log.getvalue()


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert printable("a\x1b[2Jb\x07\x9b1m\u202e\r") == "a\\x1b[2Jb\\x07\\x9b1m\\u202e\\r"
    assert printable("é\tü\n中") == "é\tü\n中"
    assert "\x1b" not in shown("\x1b[31m") and len(shown("x" * 10_000)) <= 80


def test_ranks_of_a_server_stay_on_the_loopback_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.1")
    environment = server_environment({})
    wanted = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    assert {name: environment[name] for name in wanted} == wanted
    assert server_environment({"GLOO_SOCKET_IFNAME": "ib0"})["GLOO_SOCKET_IFNAME"] == "ib0", "a host's file may say otherwise"


def model(folder: Path, **files: object) -> Path:
    folder.mkdir()
    for name, content in files.items():
        name = name.replace("__", ".")
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


AUTO_MAP = {"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}


@pytest.mark.parametrize(
    "files",
    [
        {"config__json": AUTO_MAP},
        {"config__json": {"text_config": AUTO_MAP}},
        {"config__json": {}, "tokenizer_config__json": AUTO_MAP},
        {"config__json": {"towers": [{}, AUTO_MAP]}},
    ],
)
def test_code_of_a_repository_is_refused_unless_the_models_file_decides(tmp_path: Path, files: dict[str, object]) -> None:
    folder = model(tmp_path / "m", model__safetensors="", **files)
    with pytest.raises(ForeignCode, match=r"auto_map: .*set in experiments/models/m\.yaml `trust_remote_code: true`"):
        refuse_foreign_code(folder, None, "experiments/models/m.yaml")
    for decided in (True, False):
        refuse_foreign_code(folder, decided, "experiments/models/m.yaml")


def test_pickled_weights_are_refused_even_where_code_is_trusted(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", config__json={}, pytorch_model__bin="")
    with pytest.raises(ForeignCode, match=r"pytorch_model\.bin: found weights in pickle format"):
        refuse_foreign_code(folder, True, "m.yaml")
    (folder / "model.safetensors").touch()
    refuse_foreign_code(folder, True, "m.yaml")


def test_a_damaged_configuration_does_not_pass_for_one_without_code(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", config__json='{"auto_map": 1, "auto_map": null}')
    with pytest.raises(ForeignCode, match="occur twice"):
        refuse_foreign_code(folder, None, "m.yaml")
