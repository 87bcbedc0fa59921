"""A plan for another model, a misspelt layer, a bad id, an empty plan: each an error that says which and where."""

import json

import pytest
from pydantic import ValidationError

from spillway.placement.plan import (
    Choice,
    ModelIdentity,
    Plan,
    PlanError,
    check_model,
    export_bare,
    identify_model,
    import_bare,
    load_plan,
    moe_layers,
)

QWEN3 = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "torch_dtype": "bfloat16",
}
MODEL = identify_model(QWEN3)
LAYERS = moe_layers(QWEN3)


def plan(layers, **changes):
    return Plan(model=MODEL, choice=Choice(builder="given"), layers=layers, **changes)


def test_an_expert_of_the_30b_shape_has_nine_mebibytes():
    assert MODEL.expert_bytes == 3 * 2048 * 768 * 2 == 9 << 20
    assert (MODEL.experts, MODEL.top_k, len(LAYERS)) == (128, 8, 48)
    assert LAYERS[0] == "model.layers.0.mlp.experts"


def test_block_fp8_experts_have_one_byte_per_weight_and_other_quantisations_are_refused():
    fp8 = QWEN3 | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert identify_model(fp8).expert_bytes == MODEL.expert_bytes // 2
    for other in ({"quant_method": "awq"}, {"quant_method": "fp8"}):
        with pytest.raises(PlanError, match="quant_method"):
            identify_model(QWEN3 | {"quantization_config": other})


@pytest.mark.parametrize("missing", ["num_experts", "hidden_size", "num_experts_per_tok", "torch_dtype"])
def test_a_config_that_does_not_say_what_an_expert_is_is_an_error(missing):
    with pytest.raises(PlanError, match=r"config\.json"):
        identify_model({k: v for k, v in QWEN3.items() if k != missing})


def test_the_config_hash_ignores_what_tools_rewrite_and_nothing_else():
    rewritten = QWEN3 | {"transformers_version": "9", "_name_or_path": "/elsewhere"}
    assert identify_model(rewritten) == MODEL
    assert identify_model(QWEN3 | {"rope_theta": 1.0}).config_sha256 != MODEL.config_sha256


def test_dense_layers_are_left_out():
    config = QWEN3 | {"num_hidden_layers": 4, "mlp_only_layers": [1]}
    assert moe_layers(config) == tuple(f"model.layers.{i}.mlp.experts" for i in (0, 2, 3))
    deepseek = {"model_type": "deepseek_v3", "num_hidden_layers": 4, "first_k_dense_replace": 3}
    assert moe_layers(deepseek) == ("model.layers.3.mlp.experts",)
    with pytest.raises(PlanError, match="SPILLWAY_COUNTS"):
        moe_layers({"model_type": "unheard_of", "num_hidden_layers": 4})


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ({"a": [128]}, r"layers\.a: ids \[128\] are outside 0\.\.127"),
        ({"a": [3, 3]}, r"layers\.a: ids \[3\] are listed twice"),
        ({"a": [4, 3]}, "ascending"),
        ({"a": [], "b": []}, "nothing is on the host"),
        ({}, "at least 1"),
        ({"a": [-1]}, "greater than or equal to 0"),
        ({"a": ["3"]}, "valid integer"),
        ({"a": [True]}, "valid integer"),
    ],
)
def test_unsound_ids_are_errors(layers, reason):
    with pytest.raises(ValidationError, match=reason):
        plan(layers)


def test_a_total_plan_and_whole_parameters_are_plans():
    assert plan({"a": range(128)}).host_experts == 128
    assert plan({"a": []}, parameters=("model.embed_tokens.weight",)).host_experts == 0


def test_a_saved_plan_loads_as_itself_and_its_hash_tells_any_change(tmp_path):
    first = plan({"a": [1, 2], "b": []})
    first.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == first
    assert first.sha256 == load_plan(tmp_path / "plan.json").sha256 != plan({"a": [1, 3], "b": []}).sha256


def test_a_plan_whose_layers_stand_in_another_order_is_the_same_plan():
    first, turned = plan({"a": [1], "b": []}), plan({"b": [], "a": [1]})
    assert first == turned and first.sha256 == turned.sha256
    check_model(turned, MODEL, ["a", "b"])


def test_of_many_faults_the_first_few_are_shown_and_the_others_counted(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan({"a": [1]}).model_dump(mode="json") | {"layers": {f"l{i}": [-1] for i in range(7)}}))
    with pytest.raises(PlanError, match=r"layers\.l4\.0: .* \(and 2 more\)$") as error:
        load_plan(path)
    assert "l5" not in str(error.value)


def test_file_errors_name_the_file_and_the_key(tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(PlanError, match=r"plan\.json: no such file"):
        load_plan(path)
    path.write_text("{")
    with pytest.raises(PlanError, match=r"plan\.json: not JSON"):
        load_plan(path)
    good = plan({"a": [1]}).model_dump(mode="json")
    path.write_text(json.dumps(good | {"colour": "red"}))
    with pytest.raises(PlanError, match=r"plan\.json: colour: Extra inputs"):
        load_plan(path)
    path.write_text(json.dumps(good | {"schema_version": "spillway.plan/2"}))
    with pytest.raises(PlanError, match="schema_version"):
        load_plan(path)
    text = json.dumps(good).replace('"a": [1]', '"a": [1], "a": [2]')
    path.write_text(text)
    with pytest.raises(PlanError, match=r"\['a'\] occur twice"):
        load_plan(path)


def test_another_model_and_other_layers_are_named():
    other = ModelIdentity(config_sha256="0" * 64, experts=128, top_k=6, expert_bytes=MODEL.expert_bytes)
    with pytest.raises(PlanError, match=r"config_sha256: plan has .*top_k: plan has 8, model has 6"):
        check_model(plan({"a": [1]}), other)
    with pytest.raises(PlanError, match="does not have: a; layers that the plan does not name: b"):
        check_model(plan({"a": [1]}), MODEL, ["b"])
    check_model(plan({"a": [1]}), MODEL, ["a"])


def test_the_bare_form_goes_out_and_comes_back():
    first = plan({name: [] for name in LAYERS} | {LAYERS[0]: [3, 17], LAYERS[7]: [5]})
    bare = export_bare(first)
    assert bare == {LAYERS[0]: [3, 17], LAYERS[7]: [5]}
    back = import_bare(bare, MODEL, LAYERS, "bare.json")
    assert back.layers == first.layers and back.choice.builder == "imported"
    short = import_bare({"layers.0.mlp.experts": [17, 3]}, MODEL, LAYERS, "bare.json")
    assert short.layers[LAYERS[0]] == (3, 17)


@pytest.mark.parametrize(
    ("bare", "reason"),
    [
        ([], "expected an object"),
        ({"model.layers.0.ffn.experts": [1]}, "fits no layer"),
        ({"mlp.experts": [1]}, "fits 48 layers"),
        ({"layers.0.mlp.experts": [1], LAYERS[0]: [2]}, "names model.layers.0.mlp.experts again"),
        ({LAYERS[0]: []}, "expected a list of expert ids"),
        ({LAYERS[0]: ["1"]}, "expected a list of expert ids"),
        ({LAYERS[0]: [1, 1]}, "listed twice"),
        ({LAYERS[0]: [128]}, "outside 0..127"),
        ({LAYERS[0]: [-1]}, "greater than or equal to 0"),
        ({}, "nothing is on the host"),
    ],
)
def test_the_checks_that_the_bare_form_lacks(bare, reason):
    with pytest.raises(PlanError, match=reason) as error:
        import_bare(bare, MODEL, LAYERS, "bare.json")
    assert "bare.json" in str(error.value)
