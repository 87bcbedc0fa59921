"""`spillway quality` end to end against two servers: tables, prices, gates; kill -9 and resume; what cannot start is said."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from servers import GoldenProcess, golden_process

from spillway.quality.items import own_items
from spillway.quality.quality_command import main
from spillway.record import parquet


def arguments(a: str, b: str, out: Path, *more: str) -> list[str]:
    return ["--a-url", a, "--a-model", "golden", "--b-url", b, "--b-model", "golden", "--out", str(out), *more]


def test_two_servers_from_questions_to_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = ["--a-input-price", "1", "--a-output-price", "2"]
    with golden_process("--tokens-per-second", "5000") as a, golden_process("--tokens-per-second", "5000") as b:
        more = ["--tasks", "gsm8k", "ifeval", "--max-tokens", "5", "--agreement", "--same", *prices]
        assert main(arguments(a.url, b.url, tmp_path, *more)) == 0
        printed = capsys.readouterr().out
    answers = parquet.read(tmp_path / "quality.quality_answers.parquet")
    assert len(answers) == 48 and answers.truncated.all() and (answers.output_tokens == 5).all()
    paired = parquet.read(tmp_path / "quality.quality_paired.parquet")
    assert set(paired.reading) == {"all items"}, "where every answer has a flag, none is left without"
    systems = parquet.read(tmp_path / "quality.quality_systems.parquet").set_index("system")
    assert (systems.asked == 24).all() and (systems.answered == 24).all() and (systems.server == "127.0.0.1").all()
    [a_row] = [systems.loc["a"]]
    assert a_row.price == pytest.approx((a_row.prompt_tokens + 2 * 24 * 5) / 1e6)
    assert a_row.estimated_price >= a_row.price
    assert parquet.read(tmp_path / "quality.quality_agreement.parquet").identical.all()
    assert "a: 24 questions, at most 0.00 USD" in printed and "spent 0.00 USD" in printed
    assert "a: gsm8k: flags on 100% of the answers: truncated 100%" in printed and "bit-identical" in printed
    assert "if all of them counted for one side, the difference would be -1.000 or +1.000" in printed
    raw = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text().splitlines()]
    assert len(raw) == 48 and all(line["response"]["usage"]["completion_tokens"] == 5 for line in raw)


def prompts(server: GoldenProcess) -> Counter[str]:
    """How often each question arrived, by its first characters."""
    return Counter(str(record["prompt_head"]) for record in server.log())


def test_a_run_killed_with_sigkill_goes_on_without_asking_an_answered_item_again(tmp_path: Path) -> None:
    journal = tmp_path / "replies.jsonl"
    more = ["--tasks", "gsm8k", "--items", "6", "--max-tokens", "4"]
    flags = ("--tokens-per-second", "5000", "--hang-after-requests", "2")
    with golden_process(*flags) as a, golden_process(*flags) as b:
        code = "import sys; from spillway.quality.quality_command import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, *arguments(a.url, b.url, tmp_path, *more)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while not journal.exists() or journal.read_bytes().count(b"\n") < 4:  # then both servers hang: it cannot end
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
    answered = {"a": set(), "b": set()}
    heads = {item.name: item.prompt[:40] for item in own_items("gsm8k")[:6]}
    assert len(set(heads.values())) == 6
    for line in map(json.loads, journal.read_text().splitlines()):
        answered[line["system"]].add(heads[line["item"]])
    assert {system: len(of) for system, of in answered.items()} == {"a": 2, "b": 2}

    with golden_process("--tokens-per-second", "5000") as a, golden_process("--tokens-per-second", "5000") as b:
        options = arguments(a.url, b.url, tmp_path, *more)
        refused = main(options)
        assert isinstance(refused, str) and "--resume" in refused
        assert main([*options, "--resume"]) == 0
        for system, server in (("a", a), ("b", b)):
            assert prompts(server) == Counter(set(heads.values()) - answered[system])
    assert len(parquet.read(tmp_path / "quality.quality_answers.parquet")) == 12


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--a-key-variable", "SPILLWAY_NO_SUCH_KEY"], "a: environment variable SPILLWAY_NO_SUCH_KEY is not set"),
        (["--margin", "3"], "margin_fraction: found 3.0; expected"),
        (["--a-input-price", "1"], "found one of the two prices; expected both or none"),
        (["--tier", "fast", "--data", "/nowhere"], "/nowhere/gsm8k_test.jsonl: no such file"),
        (["--b-at-once", "0"], "--b-at-once: found 0"),
        (["--items", "1"], "found 1 item; expected two or more"),
        (["--a-option", "thinking"], "--a-option: found 'thinking'; expected NAME=JSON"),
        (["--b-option", "temperature=1"], "--b-option: found 'temperature', which is the same for both sides"),
    ],
)
def test_what_cannot_start_is_said(tmp_path: Path, more: list[str], said: str) -> None:
    ended = main(arguments("http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path / "out", "--tasks", "gsm8k", *more))
    assert isinstance(ended, str) and said in ended
    assert not (tmp_path / "out" / "replies.jsonl").exists()


def test_an_endpoint_that_is_down_is_said(tmp_path: Path) -> None:
    ended = main(arguments("http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path, "--tasks", "gsm8k"))
    assert isinstance(ended, str) and "a: http://127.0.0.1:9 does not answer" in ended


def test_a_seed_that_no_table_holds_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments("http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path, "--seed", "-1"))
    assert "--seed: found -1; expected 0 to 2147483647" in capsys.readouterr().err
