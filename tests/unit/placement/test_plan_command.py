"""`spillway plan`: each subcommand end to end on files, and its one line of reason when it cannot."""

import json

import pytest

from spillway.placement.plan import load_plan
from spillway.placement.plan_command import main
from spillway.placement.routing import SyntheticRouting
from tests.unit.placement.test_plan import LAYERS, MODEL, QWEN3


@pytest.fixture
def files(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    SyntheticRouting(38, 0.05).counts(MODEL, LAYERS).save(tmp_path / "counts.json")
    SyntheticRouting(38, 0.05, seed=1).counts(MODEL, LAYERS).save(tmp_path / "other.json")
    return tmp_path


def run(*arguments):
    return main([str(a) for a in arguments])


def test_build_check_show_export_import(files, capsys):
    out = files / "plan.json"
    assert run("build", "coldest-per-layer", "--counts", files / "counts.json", "--host-experts", 38, "--out", out) == 0
    assert "1824 of 6144 experts (29.7%), 16.03 GiB before rounding; expected share of picks: 5.00%" in capsys.readouterr().out
    assert run("check", out, "--model", files, "--held-out", files / "other.json") == 0
    assert "of the possible gain" in capsys.readouterr().out
    assert run("show", out) == 0
    assert run("export", out, "--out", files / "bare.json") == 0
    assert run("import", files / "bare.json", "--model", files, "--out", files / "back.json") == 0
    assert load_plan(files / "back.json").layers == load_plan(out).layers


def test_a_budget_says_how_many_experts_must_go(files, capsys):
    # 48 x 128 experts of 9 MiB are 54 GiB; 40 GiB less 10 for KV cache and 3 for the rest hold 27 of them.
    arguments = ["--gpu-bytes", 40 << 30, "--kv-bytes", 10 << 30, "--other-bytes", 3 << 30]
    assert run("build", "random", "--model", files, *arguments, "--out", files / "plan.json") == 0
    assert load_plan(files / "plan.json").host_bytes == 27 << 30
    assert run("build", "random", "--model", files, "--gpu-bytes", 90 << 30, *arguments[2:], "--out", files / "x.json") == 1
    assert "everything fits" in capsys.readouterr().err


def test_whole_layers_need_a_number_of_layers(files, capsys):
    assert run("build", "whole-layers", "--model", files, "--out", files / "plan.json") == 1
    assert "--host-layers" in capsys.readouterr().err
    assert run("build", "whole-layers", "--model", files, "--host-layers", 12, "--out", files / "plan.json") == 0
    assert load_plan(files / "plan.json").host_experts == 12 * 128


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["build", "coldest", "--host-experts", "5"], "which model"),
        (["build", "coldest", "--host-experts", "5", "--model", "."], "no expert is known to be cold"),
        (["build", "random", "--model", "."], "complete the budget with --gpu-bytes, --kv-bytes, --other-bytes"),
        (["build", "random", "--model", ".", "--host-experts", "5", "--kv-bytes", "1"], "not both"),
        (["build", "random", "--model", ".", "--host-experts", "0"], "choose a number"),
        (["build", "coldest", "--counts", "nothing.json", "--host-experts", "5"], "nothing.json: no such file"),
    ],
)
def test_what_cannot_be_built_gives_its_reason_and_no_file(files, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(files)
    assert run(*arguments, "--out", "plan.json") == 1
    assert reason in capsys.readouterr().err
    assert not (files / "plan.json").exists()


def test_check_refuses_another_model(files, capsys):
    assert run("build", "random", "--model", files, "--host-experts", 9, "--out", files / "plan.json") == 0
    (files / "config.json").write_text(json.dumps(QWEN3 | {"num_experts_per_tok": 4}))
    assert run("check", files / "plan.json", "--model", files) == 1
    assert "the plan is for another model" in capsys.readouterr().err
