"""One server from start to end: what ready means, what is reported when it fails, and that nothing of it is left."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from spillway.engine import readiness, server, supervisor
from spillway.engine.errors import ServerDied, ServerNotReady
from spillway.engine.server import Launch, serve

Stub = Callable[..., Launch]


def test_ready_server_reports_itself_and_is_gone_afterwards(stub: Stub, notes, tmp_path: Path) -> None:
    with serve(stub(), tmp_path / "run", ready_timeout_s=60) as running:
        assert running.alive() is None
        assert running.engine_version == "1.2.3"
        assert running.weights_bytes == 2**29
        assert running.kv_cache_tokens == 131_072
        assert running.health_s is not None and running.startup_s is not None
        assert 0 < running.health_s < running.startup_s
        assert running.command[-4:] == ["--host", "127.0.0.1", "--port", str(running.port)]
        assert notes.left()
    assert notes.left() == []


def test_ready_means_one_long_prefill_and_then_a_full_batch_at_once(stub: Stub, notes, tmp_path: Path) -> None:
    with serve(stub(full_batch=5, long_prefill_tokens=777), tmp_path / "run", ready_timeout_s=60):
        pass
    asked = [json.loads(line) for line in (notes.folder / "requests.jsonl").read_text().splitlines()]
    assert [len(each["prompt"]) for each in asked] == [777] + 5 * [32]
    assert [each["max_tokens"] for each in asked] == [1] + 5 * [32]
    assert max(each["running"] for each in asked) == 5
    assert {token for each in asked for token in each["prompt"]} <= set(range(4, 100))
    assert len({tuple(each["prompt"]) for each in asked}) == 6
    assert all(each["salt"].startswith("spillway-readiness-") for each in asked)


def test_two_boots_do_not_share_a_cache_salt(stub: Stub, notes, tmp_path: Path) -> None:
    for boot in ("0", "1"):
        with serve(stub(full_batch=1), tmp_path / boot, ready_timeout_s=60):
            pass
    asked = [json.loads(line) for line in (notes.folder / "requests.jsonl").read_text().splitlines()]
    assert len({each["salt"] for each in asked}) == 2


def test_what_a_server_does_not_report_is_none(stub: Stub, tmp_path: Path) -> None:
    with serve(stub("no-version"), tmp_path / "run", ready_timeout_s=60) as running:
        assert running.engine_version is None
        running.log.write_text("")
        assert running.weights_bytes is None
        assert running.kv_cache_tokens is None


def test_stops_when_the_block_raises(stub: Stub, notes, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), serve(stub(), tmp_path / "run", ready_timeout_s=60):
        raise ZeroDivisionError
    assert notes.left() == []


def test_child_that_left_session_parent_and_environment_is_stopped_too(stub: Stub, notes, tmp_path: Path) -> None:
    with serve(stub("lost-deaf-child"), tmp_path / "run", ready_timeout_s=60):
        assert len(notes.pids()) == 2
    assert notes.left() == []


def test_server_deaf_to_sigterm_is_killed_after_the_grace(stub: Stub, notes, tmp_path: Path) -> None:
    with serve(stub("deaf", stop_grace_s=0.5), tmp_path / "run", ready_timeout_s=60) as running:
        asked = time.monotonic()
        running.stop()
        assert time.monotonic() - asked > 0.5
        assert "SIGKILL" in str(running.alive())
    assert notes.left() == []


def test_dead_at_start_is_reported_with_status_and_last_lines(stub: Stub, notes, tmp_path: Path) -> None:
    with pytest.raises(ServerDied) as death, serve(stub("die-at-start"), tmp_path / "run", ready_timeout_s=60):
        pytest.fail("a dead server was called ready")
    message = str(death.value)
    assert "exited with status 2" in message
    assert "  | OSError: giving up" in message
    assert str(tmp_path / "run" / "server.log") in message
    assert notes.left() == []


def test_command_that_does_not_exist_is_named(stub: Stub, tmp_path: Path) -> None:
    launch = stub(command=["/nowhere/python", "-m", "vllm"])
    with pytest.raises(ServerDied, match="cannot run /nowhere/python"), serve(launch, tmp_path, ready_timeout_s=60):
        pytest.fail("a server without a program was called ready")


def test_dead_in_prefill_is_reported_as_dead(stub: Stub, notes, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerDied, match=r"during prefill: .* exited with status 3[\s\S]*no memory for the prompt"),
        serve(stub("die-in-prefill"), tmp_path / "run", ready_timeout_s=60),
    ):
        pytest.fail("a dead server was called ready")
    assert notes.left() == []


def test_death_while_in_use_is_seen_within_a_second(stub: Stub, notes, tmp_path: Path) -> None:
    with serve(stub("lost-child"), tmp_path / "run", ready_timeout_s=60) as running:
        os.kill(running.pid, signal.SIGKILL)
        seen_by = time.monotonic() + 30
        while running.alive() is None and time.monotonic() < seen_by:
            time.sleep(0.01)
        assert "was ended by SIGKILL" in str(running.alive())
        with pytest.raises(ServerDied):
            running.check_alive()
    assert notes.left() == []


def test_killed_supervisor_is_seen_and_its_server_stopped(stub: Stub, notes, tmp_path: Path) -> None:
    with pytest.raises(server.ServerWouldNotStop, match="ended with -9"):  # noqa: SIM117
        with serve(stub(), tmp_path / "run", ready_timeout_s=60) as running:
            running._supervisor.kill()
            running._supervisor.wait()
            assert "ended from outside" in str(running.alive())
    assert notes.left() == []


MUTE_SUPERVISOR = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("supervisor", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.tell = lambda line: os.kill(os.getpid(), 9)
module.main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
"""


def test_supervisor_killed_before_it_told_what_it_started_leaves_nothing(
    stub: Stub, notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the fault campaign: the server was up, and the launcher did not know of it."""
    mute = tmp_path / "supervisor.py"
    mute.write_text(MUTE_SUPERVISOR.format(path=supervisor.__file__))
    monkeypatch.setattr(supervisor, "__file__", str(mute))
    with (
        pytest.raises(ServerDied, match="the server's supervisor ended with -9"),
        serve(stub(), tmp_path / "run", ready_timeout_s=10),
    ):
        pytest.fail("a server without a supervisor was called ready")
    assert notes.left() == []


@pytest.mark.parametrize(
    ("behaviour", "stage", "found"),
    [
        ("hang-health", "health", "did not answer within 0.3 s: it hangs"),
        ("never-healthy", "health", "/health answered 503"),
        ("never-listen", "health", "nothing listens"),
        ("hang-in-prefill", "prefill", "no byte for 1 s: it hangs"),
        ("hang-in-decode", "decode", "no byte for 3 s: it hangs"),
        ("refuse", "prefill", "answered 400: .*prompt too long"),
        ("error-in-stream", "prefill", "engine core died"),
        ("cut-stream", "prefill", r"ended without \[DONE\]"),
        ("stop-early", "decode", "asked for 32 tokens, .*'completion_tokens': 31"),
    ],
)
def test_not_ready_says_at_which_stage_and_why(
    behaviour: str, stage: str, found: str, stub: Stub, notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "HEALTH_TIMEOUT_S", 0.3 if behaviour == "hang-health" else 5.0)
    monkeypatch.setattr(server, "DEATH_NOTICE_S", 0.1)
    # The stub must have come to listen, whatever the machine does meanwhile: the time to get ready is over once it was asked.
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + (60.0 if (notes.folder / "asked").exists() else 0.0), sleep=time.sleep
    )
    monkeypatch.setattr(readiness, "time", clock)
    timeout_s = 2.0 if behaviour == "never-listen" else 60.0
    silence_s = 1.0 if behaviour == "hang-in-prefill" else 3.0  # before it hangs in decode, it must have answered a prefill
    with pytest.raises(ServerNotReady, match=found) as failure:  # noqa: SIM117
        with serve(stub(behaviour, progress_timeout_s=silence_s), tmp_path / "run", ready_timeout_s=timeout_s):
            pytest.fail("a server that does not serve was called ready")
    assert failure.value.stage == stage
    assert notes.left() == []


def test_stranger_that_answers_on_the_port_is_not_taken_for_the_server(
    stub: Stub, notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DEATH_NOTICE_S", 0.1)

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    def occupy() -> None:
        port = notes.folder / "port"
        while not (port.exists() and port.read_text()):
            time.sleep(0.02)
        with ThreadingHTTPServer(("127.0.0.1", int(port.read_text())), Stranger) as stranger:
            strangers.append(stranger)
            stranger.serve_forever()

    strangers: list[ThreadingHTTPServer] = []
    thread = threading.Thread(target=occupy, daemon=True)
    thread.start()
    with pytest.raises(ServerNotReady, match="not part of the server"):  # noqa: SIM117
        with serve(stub("never-listen"), tmp_path / "run", ready_timeout_s=60):
            pytest.fail("a stranger was taken for the server")
    strangers[0].shutdown()
    thread.join()


def test_reserved_port_is_refused_to_others_and_open_to_the_server() -> None:
    with server._free_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            own.bind(("127.0.0.1", port))
            own.listen()


def test_a_folder_takes_one_start(stub: Stub, notes, tmp_path: Path) -> None:
    with serve(stub(), tmp_path / "run", ready_timeout_s=60):
        pass
    with pytest.raises(FileExistsError, match=r"server\.log"), serve(stub(), tmp_path / "run", ready_timeout_s=60):
        pytest.fail("the log of the first start was overwritten")
    assert notes.left() == []


def test_engine_settings_of_the_shell_do_not_reach_the_server(
    stub: Stub, notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "of the shell")
    monkeypatch.setenv("PYTHONPATH", "/of/the/shell")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    launch = stub(environment={"VLLM_CPU_KVCACHE_SPACE": "1"})
    with serve(launch, tmp_path / "run", ready_timeout_s=60):
        pass
    environment = json.loads((notes.folder / "environment.json").read_text())
    assert "VLLM_ATTENTION_BACKEND" not in environment and "PYTHONPATH" not in environment
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
