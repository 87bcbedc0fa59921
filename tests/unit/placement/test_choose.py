"""Builders of plans: what they choose, what they promise of the traffic, and what they refuse."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.placement import choose
from spillway.placement.counts import ExpertCounts, LayerCounts, keep_current, load_counts
from spillway.placement.plan import ModelIdentity, PlanError

MODEL = ModelIdentity(config_sha256="0" * 64, experts=4, top_k=2, expert_bytes=100)


def counts(**layers):
    return ExpertCounts(
        model=MODEL,
        origin="a test",
        decode_rows=64,
        layers={name: LayerCounts(decode=decode, prefill=prefill) for name, (decode, prefill) in layers.items()},
    )


SKEWED = counts(a=((10, 1, 2, 7), (0, 0, 0, 0)), b=((5, 5, 5, 5), (9, 0, 0, 0)))


def test_coldest_ranks_the_whole_model():
    plan = choose.coldest(SKEWED, 3, "decode")
    assert plan.layers == {"a": (1, 2), "b": (0,)}
    assert plan.choice.host_share == pytest.approx((1 + 2 + 5) / 40)
    assert plan.choice.counted_picks == 40 and plan.choice.counts_sha256 == SKEWED.sha256


def test_coldest_counts_only_the_kind_of_step_asked_for():
    assert choose.coldest(SKEWED, 5, "both").layers == {"a": (1, 2), "b": (1, 2, 3)}


def test_coldest_per_layer_takes_as_many_from_each():
    assert choose.coldest_per_layer(SKEWED, 1, "decode").layers == {"a": (1,), "b": (0,)}


def test_equals_spread_over_the_layers():
    flat = counts(**{name: ((1, 1, 1, 1), (0, 0, 0, 0)) for name in "abcd"})
    assert [len(ids) for ids in choose.coldest(flat, 8).layers.values()] == [2, 2, 2, 2]


def test_whole_layers_are_spread_evenly():
    names = [str(i) for i in range(40)]
    chosen = [int(name) for name, ids in choose.whole_layers(MODEL, names, 12).layers.items() if ids]
    assert len(chosen) == 12 and {b - a for a, b in pairwise(chosen)} <= {3, 4}


def test_random_is_its_seed_and_ignores_the_counts():
    names = [str(i) for i in range(10)]
    first = choose.random_experts(MODEL, names, 12, seed=1)
    assert first == choose.random_experts(MODEL, names, 12, seed=1) != choose.random_experts(MODEL, names, 12, seed=2)
    assert first.host_experts == 12


@pytest.mark.parametrize("number", [0, 9])
def test_impossible_numbers_are_errors(number):
    with pytest.raises(PlanError, match="choose a number from 1 to 8"):
        choose.coldest(SKEWED, number)


def test_counts_of_a_layer_without_traffic_choose_nothing():
    with pytest.raises(PlanError, match="no decode picks in b"):
        choose.coldest(counts(a=((1, 0, 0, 0), (0,) * 4), b=((0,) * 4, (1, 0, 0, 0))), 2, "decode")


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any), min_size=1, max_size=5), st.data())
def test_no_choice_of_that_size_has_a_smaller_share(picks, data):
    made = counts(**{f"l{i}": (tuple(layer), (0,) * 4) for i, layer in enumerate(picks)})
    number = data.draw(st.integers(1, 4 * len(picks)))
    plan = choose.coldest(made, number)
    everything = sorted(count for layer in picks for count in layer)
    assert plan.host_experts == number
    assert plan.choice.host_share == pytest.approx(sum(everything[:number]) / sum(everything))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([f"model.layers.{i}.mlp.experts" for i in range(48)], "model.layers.0-47.mlp.experts"),
        (["m.9.e", "m.10.e", "m.2.e", "n.2.e1", "x"], "m.2,9-10.e, n.2.e1, x"),
        (["9" * 5000], "9" * 5000),
    ],
)
def test_idle_layers_are_named_by_ranges(names, said):
    idle = counts(busy=((1, 0, 0, 0), (0,) * 4), **{name: ((0,) * 4, (1, 0, 0, 0)) for name in names})
    with pytest.raises(PlanError) as raised:
        idle.picks("decode")
    assert str(raised.value) == f"counts: no decode picks in {said}; record more traffic"


def test_a_file_of_counts_is_kept_only_while_it_is_kept_current(tmp_path):
    path, seen = tmp_path / "counts.json", []
    path.write_text("of an earlier server")

    def save(to):
        seen.append(to.exists())
        SKEWED.save(to)
        seen.append(load_counts(to) == SKEWED)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        keep_current(path, save)
    assert seen == [False, True] and not path.exists()


def test_budget_moves_just_enough():
    # Two GPUs of 1000 bytes, 300 for the rest, 500 for KV cache: 1200 bytes hold 12 of 20 experts.
    assert choose.experts_over_budget(MODEL, 5, other_bytes=300, gpu_bytes=1000, kv_bytes=500, ranks=2) == 8
    assert choose.experts_over_budget(MODEL, 5, other_bytes=301, gpu_bytes=1000, kv_bytes=500, ranks=2) == 9
    assert choose.experts_over_budget(MODEL, 5, other_bytes=0, gpu_bytes=9000, kv_bytes=0) == 0
    with pytest.raises(PlanError, match="by 300; no placement"):
        choose.experts_over_budget(MODEL, 5, other_bytes=300, gpu_bytes=1000, kv_bytes=1000)


@pytest.mark.parametrize(
    ("wrong", "least"), [({"gpu_bytes": 0}, 1), ({"kv_bytes": -1}, 0), ({"other_bytes": -1}, 0), ({"ranks": 0}, 1)]
)
def test_a_number_that_no_budget_has_is_named(wrong, least):
    budget = {"gpu_bytes": 1000, "kv_bytes": 0, "other_bytes": 0, "ranks": 1}
    ((name, found),) = wrong.items()
    with pytest.raises(PlanError, match=f"budget: {name}: found {found}; expected {least} or more"):
        choose.experts_over_budget(MODEL, 5, **budget | wrong)
    choose.experts_over_budget(MODEL, 5, **budget | {name: least})


def test_held_out_traffic_shows_what_a_plan_kept():
    plan = choose.coldest(SKEWED, 2, "decode")
    assert plan.layers == {"a": (1, 2), "b": ()}
    shifted = counts(a=((1, 10, 2, 7), (0,) * 4), b=((5, 5, 5, 5), (0,) * 4))
    result = choose.hold_out(plan, shifted)
    assert result.expected == pytest.approx(3 / 40)
    assert (result.found, result.best, result.blind) == (pytest.approx(12 / 40), pytest.approx(3 / 40), 0.25)
    assert result.captured == pytest.approx((0.25 - 0.3) / (0.25 - 3 / 40)), "worse than random is below zero"


def test_a_held_out_check_needs_other_counts_of_the_same_model():
    plan = choose.coldest(SKEWED, 2)
    with pytest.raises(PlanError, match="needs others"):
        choose.hold_out(plan, SKEWED)
    with pytest.raises(PlanError, match="another model"):
        choose.hold_out(plan, counts(a=((1, 1, 1, 1), (0,) * 4)))


def test_counts_files_are_checked(tmp_path):
    path = tmp_path / "counts.json"
    SKEWED.save(path)
    assert load_counts(path) == SKEWED
    path.write_text(path.read_text().replace("[10,", "[10, 1,"))
    with pytest.raises(PlanError, match=r"counts\.json: .*layers\.a\.decode: 5 counts for 4 experts"):
        load_counts(path)


def test_counts_since_an_earlier_reading_leave_the_warm_up_out():
    later = counts(a=((12, 1, 2, 7), (3, 0, 0, 0)), b=((5, 5, 5, 5), (9, 0, 0, 1)))
    left = later.since(SKEWED)
    assert left.layers["a"] == LayerCounts(decode=(2, 0, 0, 0), prefill=(3, 0, 0, 0))
    assert left.layers["b"].prefill == (0, 0, 0, 1)
    with pytest.raises(PlanError, match="went down"):
        SKEWED.since(later)
    with pytest.raises(PlanError, match="another model"):
        later.since(counts(a=((1, 1, 1, 1), (0,) * 4)))
