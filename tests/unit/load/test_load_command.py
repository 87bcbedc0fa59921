"""`spillway load URL` writes the tables of a cell, and says what is wrong before it sends anything."""

import json
import socket
from pathlib import Path

import pytest
from servers import SWEEP, golden_process

from spillway.load import load_command
from spillway.load.load_command import main
from spillway.record import parquet


def test_one_workload_against_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = tmp_path / "sweep.json"
    workload.write_text(json.dumps(SWEEP))
    arguments = ["--model", "golden", "--workload", str(workload), "--out", str(tmp_path / "out"), "--delay-bound-ms", "500"]
    with golden_process() as server:
        assert main([server.url, *arguments, "--token-ids", "10:1999", "--option", "ignore_eos=true"]) == 0
        printed = capsys.readouterr()
        again = main([server.url, *arguments])
    requests = parquet.read(tmp_path / "out" / "load.requests.parquet")
    measured = requests[requests.phase == "measured"]  # a request that cools down may be ended before it is answered
    assert len(measured) == 6 and set(measured.prompt_tokens) == {100}
    cells = parquet.read(tmp_path / "out" / "load.cells.parquet")
    origin = parquet.provenance(tmp_path / "out" / "load.cells.parquet")
    assert cells.run[0] == origin["run"] and origin["server"] == server.url
    assert "6 of 6 requests ok, cell measured" in printed.out
    assert "prompt_sweep: 6/6 in" in printed.err
    assert "TTFT           median" in printed.out and "p95 too few samples: 6 of 59" in printed.out
    assert isinstance(again, str) and "exists already" in again


def test_what_cannot_start_is_said(tmp_path: Path) -> None:
    rest = ["--workload", json.dumps(SWEEP), "--out", str(tmp_path)]
    (tmp_path / "uneven.yaml").write_text("kind: prompt_sweep\nprompt_tokens: 5\noutput_tokens: 5\nrequests: 5\nstreams: 2\n")
    uneven = main(["http://127.0.0.1:1", "--model", "m", "--workload", str(tmp_path / "uneven.yaml"), "--out", str(tmp_path)])
    assert isinstance(uneven, str) and "requests: 5 do not share out over 2 streams" in uneven
    with golden_process() as server:
        wrong_model = main([server.url, "--model", "other", *rest])
    assert isinstance(wrong_model, str) and "found the models ['golden']; expected 'other'" in wrong_model
    nobody = main([server.url, "--model", "golden", *rest])
    assert isinstance(nobody, str) and "no answer" in nobody and "is the server up" in nobody
    keyless = main([server.url, "--model", "golden", *rest, "--api-key-variable", "SPILLWAY_NO_SUCH_KEY"])
    assert isinstance(keyless, str) and "SPILLWAY_NO_SUCH_KEY is not set" in keyless
    absent = main([server.url, "--model", "golden", "--workload", str(tmp_path / "none.json"), "--out", str(tmp_path)])
    assert isinstance(absent, str) and "none.json" in absent
    assert list(tmp_path.glob("*.parquet")) == []


def test_a_folder_that_can_hold_no_table_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with golden_process() as server:
        for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
            ended = main([server.url, "--model", "golden", "--workload", json.dumps(SWEEP), "--out", str(out)])
            assert isinstance(ended, str) and str(out) in ended
        assert server.log() == []


def test_a_workload_that_is_a_folder_is_said(tmp_path: Path) -> None:
    ended = main(["http://127.0.0.1:1", "--model", "m", "--workload", str(tmp_path), "--out", str(tmp_path / "out")])
    assert isinstance(ended, str) and str(tmp_path) in ended


def test_a_server_that_never_names_its_models_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_command, "MODELS_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ended = main([url, "--model", "m", "--workload", json.dumps(SWEEP), "--out", str(tmp_path)])
    assert isinstance(ended, str) and "no answer (none within 0.2 s)" in ended


def test_a_seed_that_no_table_holds_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["http://127.0.0.1:1", "--model", "m", "--workload", json.dumps(SWEEP), "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        main([*asked, "--seed", str(2**63)])
    assert "--seed: found 9223372036854775808; expected 0 to 2147483647" in capsys.readouterr().err
