"""`spillway fit` as a person runs it: text, JSON, status, and what it says to wrong questions."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spillway.engine.tinymodel import SHAPE, write_model
from spillway.fit.budget import GIB
from spillway.fit.command import main
from spillway.placement.plan import Choice, Plan, identify_model, moe_layers

PRO_6000 = """
title: two RTX PRO 6000 Blackwell
measured: false
gpus: {name: NVIDIA RTX PRO 6000 Blackwell, count: 2, memory_gib: 95.6}
host_memory_gib: 256
engine: {environment: engine-cuda, module: m, ready_timeout_s: 1800, arguments: {tensor-parallel-size: 2}}
"""
SMALL = """
title: one small GPU
measured: false
gpus: {name: a card nobody has heard of, count: 1, memory_gib: 0.02}
host_memory_gib: 1
engine: {environment: engine-cuda, module: m, ready_timeout_s: 1800, arguments: {gpu-memory-utilization: 1.0}}
"""
CPU = """
title: a CPU
measured: false
host_memory_gib: 4
engine: {environment: engine-cpu, module: m, ready_timeout_s: 60}
"""
ROOT = Path(__file__).parents[3]
ARTICLE = ["deepseek-v4.1-flash", "--pack", "exl3-3bpw", "--host", "pro6000x2", "--cache", "fp8"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    hosts = tmp_path / "experiments" / "hosts"
    hosts.mkdir(parents=True)
    (tmp_path / "experiments" / "models").mkdir()
    for name, text in (("pro6000x2", PRO_6000), ("small", SMALL), ("cpu", CPU)):
        (hosts / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder, SHAPE)
    return folder


@pytest.fixture
def tiny(tmp_path: Path, written: Path) -> Path:
    """A copy, since some tests change it."""
    return shutil.copytree(written, tmp_path / "tiny")


def ask(root: Path, *arguments: str) -> int:
    return main([*arguments, "--root", str(root)])


def asked(root: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = ask(root, *arguments, "--json")
    return status, json.loads(capsys.readouterr().out)


def test_deepseek_v41_on_two_cards_needs_a_plan(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = asked(root, capsys, *ARTICLE, "--context", "262144")
    assert status == 1
    assert found["placements"]["no plan"]["stage"] == "weights"
    plan = found["smallest_plan"]
    assert plan["stage"] == "fits"
    # fewer than the article's 4,608, which leave room for more KV cache
    assert 3400 < plan["host_experts"] < 4608
    assert plan["gpu_bytes"] <= plan["usable_bytes"]
    assert plan["host_bytes"] < 256 * GIB


def test_the_article_plan_fits(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = {f"model.layers.{layer}.ffn.experts": list(range(384)) for layer in range(12)}
    (root / "whole-layers.json").write_text(json.dumps(bare))
    arguments = ["--on-host", "embedding", "--plan", str(root / "whole-layers.json"), "--context", "262144"]
    status, found = asked(root, capsys, *ARTICLE, *arguments)
    assert status == 0
    plan = found["placements"]["with the plan"]
    assert plan["host_experts"] == 4608
    weights = sum(line["bytes"] for line in plan["lines"] if line["place"] == "gpu" and line["kind"] == "weights")
    assert 72.4 - weights / GIB == pytest.approx(0.64, abs=0.01)  # the residual of the article's 102.1


def test_a_model_file_may_give_a_shape(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ROOT / "experiments/models/deepseek-v3.yaml"
    (root / "experiments/models/large.yaml").write_bytes(shape.read_bytes())
    status, found = asked(root, capsys, "large", "--host", "pro6000x2")
    assert status == 1 and found["placements"]["no plan"]["stage"] == "weights"
    # 58 layers of 256 experts, a byte for each weight; block scales come on top.
    experts = [line["bytes"] for line in found["placements"]["no plan"]["lines"] if line["component"] == "routed experts"]
    assert 2 * sum(experts) == pytest.approx(58 * 256 * 3 * 7168 * 2048, rel=0.001)


def test_text_says_what_where_and_whence(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(root, *ARTICLE) == 1
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 120
    words = " ".join(text.split())
    for part in (
        "GiB on each GPU",
        "routed experts 95.46",
        "0.92 of 95.60 GiB, 2 GPUs",
        "no plan: does not fit: weights are larger than the memory",
        "smallest plan that fits:",
        "published 102.1 GiB, computed 101.47; not explained +0.63",
        "times slower",
    ):
        assert part in words


def test_every_line_has_a_source(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = asked(root, capsys, *ARTICLE)
    for placed in found["placements"].values():
        for line in placed["lines"]:
            assert line["source"].startswith(("computed", "published", "measured"))


def test_a_model_that_fits(root: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = asked(root, capsys, str(tiny), "--host", "cpu", "--sequences", "8", "--context", "8192")
    assert status == 0
    assert found["smallest_plan"] is None
    assert all(row["computed"] == row["stored"] for row in found["checkpoint"])


def test_a_plan_file_of_the_product(root: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((tiny / "config.json").read_text())
    layers = {name: tuple(range(8)) for name in moe_layers(config)}
    plan = Plan(model=identify_model(config), choice=Choice(builder="given"), layers=layers)
    plan.save(root / "plan.json")
    status, found = asked(root, capsys, str(tiny), "--host", "small", "--plan", str(root / "plan.json"), "--context", "16")
    placed = found["placements"]["with the plan"]
    assert placed["host_experts"] == 32
    assert placed["gpu_bytes"] < found["placements"]["no plan"]["gpu_bytes"] + 4 * 2 * 2 * (2 << 20)
    assert status == (0 if placed["stage"] == "fits" else 1)
    other = config | {"num_experts_per_tok": 2}
    (tiny / "config.json").write_text(json.dumps(other))
    assert ask(root, str(tiny), "--host", "small", "--plan", str(root / "plan.json")) == 2
    assert "the plan is for another model" in capsys.readouterr().err


def test_no_plan_makes_it_fit(root: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(root, str(tiny), "--host", "small", "--headroom-gib", "1") == 1
    assert "no plan makes it fit" in capsys.readouterr().out


def test_what_is_not_known_is_said(root: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(root, str(tiny), "--host", "small", "--context", "8192") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "no measured headroom for a card nobody has heard of" in text
    assert "rates of a card nobody has heard of are not known" in text


def test_rates_and_shares_may_be_stated(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--memory-gb-per-s", "1500", "--host-read-gb-per-s", "25", "--cold-share", "0.064"]
    _, found = asked(root, capsys, *ARTICLE, *rates)
    (step,) = found["decode_step"]["at"]
    assert step["cold_share"] == 0.064
    assert found["decode_step"]["rates_from"] == "1500 GB/s from GPU memory, 25 from the host, stated"


def test_formats_may_be_stated(root: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = asked(root, capsys, str(tiny), "--host", "cpu", "--format", "routed experts=fp8:128x128")
    lines = [line for line in found["placements"]["no plan"]["lines"] if line["component"] == "routed experts"]
    assert sum(line["bytes"] for line in lines) == 12_582_912 // 2 + 4 * 16 * (2 * 2 + 2) * 4


def unknown(tiny: Path, **changes: Any) -> str:
    config = json.loads((tiny / "config.json").read_text()) | {"architectures": ["NewMoeForCausalLM"]} | changes
    (tiny / "config.json").write_text(json.dumps(config))
    return str(tiny)


def test_an_unknown_architecture_says_which_numbers_are_missing(
    root: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(root, unknown(tiny), "--host", "cpu") == 2
    message = capsys.readouterr().err
    assert "NewMoeForCausalLM" in message
    assert "--fact experts_per_token=N" in message
    assert "--fact kv_token_bytes=N" in message
    assert "--fact expert_bytes" not in message  # the headers say it


def test_an_unknown_architecture_with_its_numbers(root: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = ["--fact", "experts_per_token=4", "--fact", "kv_token_bytes=2048"]
    status, found = asked(root, capsys, unknown(tiny), "--host", "cpu", *facts)
    assert status == 0
    lines = {line["component"]: line for line in found["placements"]["no plan"]["lines"]}
    assert lines["routed experts"]["bytes"] == 12_582_912
    assert lines["routed experts"]["source"] == "checkpoint header"
    assert (
        sum(line["bytes"] for line in lines.values())
        == (tiny / "model.safetensors").stat().st_size - header(tiny) + 2048 * 4096
    )


def header(folder: Path) -> int:
    return 8 + int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")


def test_an_unknown_architecture_without_checkpoint(root: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiny / "model.safetensors").unlink()
    assert ask(root, unknown(tiny), "--host", "cpu") == 2
    assert "--fact other_bytes=N" in capsys.readouterr().err
    numbers = {"experts_per_token": 2, "kv_token_bytes": 1, "expert_layers": 2, "experts_per_layer": 4, "expert_bytes": 10}
    facts = [part for name, number in numbers.items() for part in ("--fact", f"{name}={number}")]
    status, found = asked(root, capsys, str(tiny), "--host", "cpu", *facts, "--fact", "other_bytes=7", "--context", "3")
    assert status == 0
    assert found["placements"]["no plan"]["host_bytes"] == 2 * 4 * 10 + 7 + 3


def test_zero_experts_have_nothing_to_place(root: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiny / "model.safetensors").unlink()
    config = json.loads((tiny / "config.json").read_text()) | {"num_experts": 0}
    (tiny / "config.json").write_text(json.dumps(config))
    assert ask(root, str(tiny), "--host", "small", "--context", "8192", "--sequences", "2") == 1
    text = capsys.readouterr().out
    assert "no routed experts: there is nothing that a plan could place" in text
    assert "no plan makes it fit" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing-there", "--host", "cpu"], "one of: deepseek-v4.1-flash"),
        (["deepseek-v4.1-flash", "--host", "nowhere"], "nowhere.yaml: no such file"),
        (["deepseek-v4.1-flash", "--host", "pro6000x2", "--pack", "gguf"], "--pack gguf: known for this model: exl3-3bpw"),
        (["deepseek-v4.1-flash", "--host", "pro6000x2", "--cache", "int2"], "KV cache format 'int2': expected one of: bf16"),
        (["deepseek-v4.1-flash", "--host", "pro6000x2", "--fact", "experts=3"], "--fact experts=3: unknown name"),
        (["deepseek-v4.1-flash", "--host", "pro6000x2", "--fact", "expert_bytes=x"], "expected expert_bytes= and a whole"),
        (["deepseek-v4.1-flash", "--host", "pro6000x2", "--fact", "expert_bytes=3"], "this architecture is known"),
        (["deepseek-v4.1-flash", "--host", "pro6000x2", "--format", "wheels=bf16"], "no component 'wheels'"),
        (["deepseek-v4.1-flash", "--host", "pro6000x2", "--format", "head=int3"], "format 'int3': expected one of"),
        (["deepseek-v4.1-flash", "--host", "pro6000x2", "--on-host", "wheels"], "the model has no wheels"),
        (["deepseek-v4.1-flash", "--host", "pro6000x2", "--plan", "no-plan.json"], "no-plan.json: no such file"),
    ],
)
def test_wrong_questions(root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert ask(root, *arguments) == 2
    found = capsys.readouterr()
    assert message in found.err
    assert found.out == ""


@pytest.mark.parametrize("arguments", [["--context", "0"], ["--cold-share", "2"], ["--headroom-gib", "-1"]])
def test_numbers_out_of_range(root: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ask(root, "deepseek-v4.1-flash", "--host", "pro6000x2", *arguments)
    assert ended.value.code == 2


def test_a_host_without_enough_memory_for_the_plan(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "experiments" / "hosts" / "pro6000x2.yaml"
    path.write_text(path.read_text().replace("host_memory_gib: 256", "host_memory_gib: 128"))
    status, found = asked(root, capsys, *ARTICLE)
    assert (status, found["smallest_plan"]["stage"]) == (1, "host memory")
    assert ask(root, *ARTICLE) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "no plan makes it fit: the smallest that fits the GPUs has" in text
    missing = -found["smallest_plan"]["host_spare_bytes"] / GIB
    assert f"missing: {missing:.2f} GiB of host memory" in text


def test_tables_that_no_expert_plan_reaches_are_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(root, "deepseek-v4.1-flash", "--host", "pro6000x2") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "largest there: engram tables, 94.42 GiB (--on-host 'engram tables' keeps it on the host)" in text


def test_a_host_of_unknown_memory(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "experiments" / "hosts" / "pro6000x2.yaml"
    path.write_text(path.read_text().replace("host_memory_gib: 256\n", ""))
    assert ask(root, *ARTICLE) == 1
    assert "whether the host has that much is not known" in capsys.readouterr().out


def test_the_plot_shows_every_placement_and_its_bytes(root: Path, tmp_path: Path) -> None:
    from matplotlib.container import BarContainer

    from spillway.fit.command import answer, parser
    from spillway.fit.plot import plot_placements

    report = answer(parser().parse_args([*ARTICLE, "--root", str(root)]))
    axes = plot_placements(report.placements, report.title).axes[0]
    bars = [container for container in axes.containers if isinstance(container, BarContainer)]
    for position, placed in enumerate(report.placements):
        drawn = sum(container.patches[position].get_height() for container in bars)
        assert drawn == pytest.approx(placed.budget.total("gpu") / GIB)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["no plan", "smallest plan", "all on host"]
    assert [line.get_ydata()[0] for line in axes.lines] == pytest.approx([95.6, 0.92 * 95.6])


def test_the_plot_is_written(root: Path, tmp_path: Path) -> None:
    assert ask(root, *ARTICLE, "--plot", str(tmp_path / "fit.png")) == 1
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
