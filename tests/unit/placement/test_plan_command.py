"""`spillway plan`: each subcommand end to end on files, and its one line of reason when it cannot."""

import json

import pytest

from spillway.placement.plan import identify_model, load_plan
from spillway.placement.plan_command import main
from spillway.placement.routing import SyntheticRouting
from tests.unit.placement.test_plan import LAYERS, MODEL, QWEN3


@pytest.fixture
def files(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    SyntheticRouting(38, 0.05).counts(MODEL, LAYERS).save(tmp_path / "counts.json")
    SyntheticRouting(38, 0.05, seed=1).counts(MODEL, LAYERS).save(tmp_path / "other.json")
    return tmp_path


BUDGET = ["--gpu-bytes", str(40 << 30), "--kv-bytes", "0", "--other-bytes", "0"]


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
        (["build", "random", "--model", ".", "--host-experts", "5", "--ranks", "2"], "not both"),
        (["build", "random", "--model", ".", "--host-experts", "0"], "choose a number"),
        (["build", "random", "--model", ".", *BUDGET, "--ranks", "-1"], "ranks: found -1; expected 1 or more"),
        (["build", "random", "--model", ".", *BUDGET, "--ranks", "0"], "ranks: found 0; expected 1 or more"),
        (["build", "random", "--model", ".", *BUDGET, "--kv-bytes", "-1"], "kv_bytes: found -1; expected 0 or more"),
        (
            ["build", "whole-layers", "--model", ".", "--host-layers", "2", "--host-experts", "7", "--gpu-bytes", "1"],
            "whole-layers does not take --host-experts, --gpu-bytes;",
        ),
        (["build", "whole-layers", "--model", ".", "--host-layers", "2", "--seed", "0"], "whole-layers does not take --seed;"),
        (
            ["build", "random", "--model", ".", "--host-experts", "5", "--host-layers", "4", "--kind", "decode"],
            "random does not take --kind, --host-layers;",
        ),
        (
            ["build", "coldest", "--counts", "counts.json", "--host-experts", "5", "--seed", "1"],
            "coldest does not take --seed;",
        ),
        (["import", "bare.json"], "which model"),
        (["build", "coldest", "--counts", "nothing.json", "--host-experts", "5"], "nothing.json: no such file"),
    ],
)
def test_what_cannot_be_built_gives_its_reason_and_no_file(files, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(files)
    assert run(*arguments, "--out", "plan.json") == 1
    assert reason in capsys.readouterr().err
    assert not (files / "plan.json").exists()


@pytest.mark.parametrize("out", ["nodir/x", ".", "plan.json/x", "n" * 300])
@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "random", "--model", ".", "--host-experts", "9"],
        ["export", "plan.json"],
        ["import", "bare.json", "--model", "."],
        ["counts", "picks.json", "--model", "."],
    ],
)
def test_a_file_that_cannot_be_written_is_named_in_one_line(files, monkeypatch, capsys, arguments, out):
    monkeypatch.chdir(files)
    assert run("build", "random", "--model", ".", "--host-experts", 9, "--out", "plan.json") == 0
    assert run("export", "plan.json", "--out", "bare.json") == 0
    (files / "picks.json").write_text(json.dumps({name: [[1] * 128] * 2 for name in LAYERS}))
    capsys.readouterr()
    assert run(*arguments, "--out", out) == 1
    found = capsys.readouterr()
    assert found.out == "" and found.err.startswith(f"spillway plan: {out}: cannot be written: ") and found.err.count("\n") == 1


def test_counts_stand_for_a_model_whose_config_names_no_layers(files, capsys):
    names = ("decoder.0.moe", "decoder.1.moe")
    model = identify_model(QWEN3 | {"model_type": "new_moe"})
    (files / "config.json").write_text(json.dumps(QWEN3 | {"model_type": "new_moe"}))
    SyntheticRouting(38, 0.05).counts(model, names).save(files / "new.json")
    plan, bare, back = files / "plan.json", files / "bare.json", files / "back.json"
    assert run("build", "coldest", "--counts", files / "new.json", "--host-experts", 9, "--out", plan) == 0
    assert run("check", plan, "--counts", files / "new.json") == 0
    assert run("export", plan, "--out", bare) == 0
    assert run("import", bare, "--counts", files / "new.json", "--out", back) == 0
    assert load_plan(back).layers == load_plan(plan).layers
    capsys.readouterr()
    assert run("check", plan, "--counts", files / "counts.json") == 1
    assert "the plan is for another model" in capsys.readouterr().err
    assert run("check", plan, "--model", files) == 1
    assert "which layers hold experts is not known here" in capsys.readouterr().err


def test_check_refuses_another_model(files, capsys):
    assert run("build", "random", "--model", files, "--host-experts", 9, "--out", files / "plan.json") == 0
    (files / "config.json").write_text(json.dumps(QWEN3 | {"num_experts_per_tok": 4}))
    assert run("check", files / "plan.json", "--model", files) == 1
    assert "the plan is for another model" in capsys.readouterr().err
