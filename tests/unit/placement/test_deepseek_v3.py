"""The 671B architecture in the plan builder, in the layout of pages and in the launches of its two machines."""

import shlex
from itertools import pairwise

import pytest

from spillway.measure import dry_run
from spillway.placement import choose
from spillway.placement.layout import PAGE_BYTES, plan_layout
from spillway.placement.plan import PlanError, check_model, identify_model, moe_layers
from spillway.placement.routing import SyntheticRouting
from spillway.spec.host import Model
from spillway.spec.read import read
from tests.conftest import ROOT

CONFIG = read(Model, ROOT / "experiments/models/deepseek-v3.yaml").source.model_dump()["config"]
MIB = 1 << 20


def test_layers_3_to_60_hold_256_experts_of_42_mebibytes():
    model = identify_model(CONFIG)
    assert (model.experts, model.top_k, model.expert_bytes) == (256, 8, 42 * MIB)
    assert moe_layers(CONFIG) == tuple(f"model.layers.{layer}.mlp.experts" for layer in range(3, 61))


def test_a_plan_of_the_coldest_100_of_each_layer_is_of_this_model_and_of_no_dense_layer():
    model, layers = identify_model(CONFIG), moe_layers(CONFIG)
    plan = choose.coldest_per_layer(SyntheticRouting(100, 0.05).counts(model, layers), 100)
    check_model(plan, model, layers)
    assert {len(ids) for ids in plan.layers.values()} == {100} and plan.all_experts == 58 * 256
    assert plan.choice.host_share == pytest.approx(0.05, abs=0.005)
    dense = plan.model_copy(update={"layers": {**plan.layers, "model.layers.2.mlp.experts": (0,)}})
    with pytest.raises(PlanError, match=r"layers that the model does not have: model\.layers\.2\.mlp\.experts"):
        check_model(dense, model, layers)


@pytest.mark.parametrize("ranks", [4, 8])
def test_pages_hold_a_ranks_part_of_each_tensor(ranks):
    """Gate and up are one tensor, down is another: 28 and 14 MiB an expert, of which a rank has its share."""
    host = list(range(0, 200, 2))
    for part in (28 * MIB // ranks, 14 * MIB // ranks):
        layout = plan_layout(256, part, host)
        pages = -(-part // PAGE_BYTES) * PAGE_BYTES  # ids of one parity share no page: the most that rounding takes
        assert len(host) * part <= layout.host_bytes <= len(host) * pages
        assert (256 - len(host)) * part <= layout.gpu_bytes <= (256 - len(host)) * pages
        backed = {(place.memory == "host") == (expert in host) for expert, place in enumerate(layout.places())}
        assert backed == {True}


@pytest.mark.parametrize(
    ("experiment", "host", "launches", "placed"),
    [
        ("e1_memory", "h200x4", 1, 1),
        ("e1_memory", "h200x8", 1, 0),
        ("e3_tpot_context", "h200x4", 1, 1),
        ("e9_all_in_vram", "h200x4", 2, 2),
        ("e9_all_in_vram", "h200x8", 2, 2),
        ("e13_agents", "h200x4", 2, 2),
    ],
)
def test_a_dry_run_prints_the_launches_of_both_machines(experiment, host, launches, placed):
    text = dry_run.commands(ROOT, experiment, host, None)
    commands = [shlex.split(line) for line in text.splitlines() if " -m vllm" in line]
    assert len(commands) == launches
    for command in commands:
        given = dict(pairwise(command))
        assert given["--tensor-parallel-size"] == host.removeprefix("h200x")
        assert given["--load-format"] == "dummy" and given["--max-model-len"] == "163840"
        assert given["--model"].endswith("build/models/deepseek-v3")
    assert text.count("# and the variables of the placement plugin") == placed
