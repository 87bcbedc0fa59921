"""An engine that places by itself: what its model's packs are to plans, the file it reads, and what its log must say."""

import json

import pytest

from spillway.placement import choose
from spillway.placement.engine_plan import counts_of, require_log, write_bare
from spillway.placement.plan import Choice, Plan, PlanError, identify_model, load_plan, moe_layers
from spillway.placement.plan_command import main
from spillway.placement.proof import ProofError

# What decides an expert's bytes in the article's pack, in the layout of its config.json.
PACK = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "quantization_config": {"quant_method": "exl3", "bits": 3, "layer_bits": {"40": 4, "41": 4, "42": 4}},
    "text_config": {
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "moe_intermediate_size": 2304,
        "n_routed_experts": 384,
        "num_experts_per_tok": 6,
    },
}
MODEL, LAYERS = identify_model(PACK), moe_layers(PACK)


def article_sized() -> Plan:
    return choose.random_experts(MODEL, LAYERS, 4608, seed=30)


def log_of(plan: Plan, ranks: int = 2, prefix: str = "language_model.") -> str:
    return "\n".join(
        f"(Worker_TP{rank} pid=7) INFO 10-02 12:00:00 [exl3.py:2326] EXL3 host experts: {prefix}{name} keeps {len(ids)}/384 "
        "experts in pinned host RAM"
        for name, ids in plan.layers.items()
        if ids
        for rank in range(ranks)
    )


def test_the_articles_pack_has_the_experts_that_it_says():
    assert (MODEL.experts, MODEL.top_k, MODEL.expert_bytes) == (384, 6, 13_271_040)
    assert len(LAYERS) == 40 and LAYERS[39] == "model.layers.39.ffn.experts"
    assert article_sized().host_experts == 4608 and round(article_sized().host_bytes / 2**30, 2) == 56.95


@pytest.mark.parametrize("layer_bits", [{"3": 2}, [3], {"39": 4}])
def test_a_pack_that_stores_some_experts_otherwise_is_refused(layer_bits):
    with pytest.raises(PlanError, match="layer_bits"):
        identify_model(PACK | {"quantization_config": {"quant_method": "exl3", "bits": 3, "layer_bits": layer_bits}})


@pytest.mark.parametrize("bits", [None, 0, 9, 2.5])
def test_a_pack_that_does_not_say_its_bits_is_refused(bits):
    with pytest.raises(PlanError, match="bits"):
        identify_model(PACK | {"quantization_config": {"quant_method": "exl3", "bits": bits}})


def test_the_file_names_the_layers_that_have_something_on_the_host(tmp_path):
    plan = choose.given(MODEL, {name: [] for name in LAYERS} | {LAYERS[1]: [3, 17]})
    write_bare(plan, tmp_path / "bare.json")
    assert json.loads((tmp_path / "bare.json").read_text()) == {LAYERS[1]: [3, 17]}
    whole = Plan(model=MODEL, choice=Choice(builder="given"), layers=plan.layers, parameters=("model.embed_tokens.weight",))
    with pytest.raises(PlanError, match=r"knows experts only.*model\.embed_tokens\.weight"):
        write_bare(whole, tmp_path / "whole.json")
    assert not (tmp_path / "whole.json").exists()


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_a_log_that_agrees_with_the_plan_is_its_proof(prefix):
    require_log(article_sized(), log_of(article_sized(), prefix=prefix), 2)


def test_a_log_that_says_less_or_more_than_the_plan_is_none():
    plan = article_sized()
    log = log_of(plan)
    with pytest.raises(ProofError, match="did not read the plan"):
        require_log(plan, "INFO ready", 2)
    with pytest.raises(ProofError, match=r"40 places:\n  not said: model\.layers\.\d+\.ffn\.experts .* 1 time"):
        require_log(plan, log_of(plan, ranks=1), 2)
    name, ids = next(iter(plan.layers.items()))
    fewer = log.replace(f"{name} keeps {len(ids)}/", f"{name} keeps {len(ids) - 1}/")
    with pytest.raises(
        ProofError, match=rf"not said: {name} with {len(ids)} of(.|\n)*without need: {name} with {len(ids) - 1}"
    ):
        require_log(plan, fewer, 2)
    with pytest.raises(ProofError, match=r"said without need: model\.layers\.40\.ffn\.experts with 5 of 128"):
        require_log(plan, log + "\nEXL3 host experts: model.layers.40.ffn.experts keeps 5/128 experts in pinned host RAM", 2)


def picks() -> dict[str, list[list[int]]]:
    """In every layer expert 383 is the hottest and 0 the coldest; a draft layer with fewer experts stands behind."""
    of_layer = [list(range(384)), [1] * 384]
    return {f"language_model.{name}": of_layer for name in LAYERS} | {"model.layers.40.ffn.experts": [[1] * 128, [1] * 128]}


def test_picks_that_the_engine_recorded_become_counts_and_a_plan(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PACK))
    (tmp_path / "picks.json").write_text(json.dumps(picks()))
    counts, plan = str(tmp_path / "counts.json"), str(tmp_path / "plan.json")
    assert main(["counts", str(tmp_path / "picks.json"), "--model", str(tmp_path), "--out", counts]) == 0
    build = ["build", "coldest", "--counts", counts, "--kind", "decode", "--host-experts", "4600", "--out", plan]
    assert main(build) == 0
    assert load_plan(tmp_path / "plan.json").layers == {name: tuple(range(115)) for name in LAYERS}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ([], "expected an object"),
        ({}, r"no picks of model\.layers\.0\.ffn\.experts \(40 of 40"),
        (picks() | {f"language_model.{LAYERS[3]}": [[1] * 384]}, r"layers\.3\..* two lists"),
        (picks() | {f"language_model.{LAYERS[3]}": [[1] * 384, [1]]}, "1 counts for 384 experts"),
        (picks() | {f"language_model.{LAYERS[3]}": [[-1] * 384, [1] * 384]}, "negative"),
    ],
)
def test_picks_of_something_else_are_refused(changed, said):
    with pytest.raises(PlanError, match=rf"picks\.json.*{said}"):
        counts_of(changed, MODEL, LAYERS, "picks.json")
