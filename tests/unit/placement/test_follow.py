"""The planner of swaps: what it may never do, on any traffic, and what it achieves on traffic that shifts."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from benchmarks.regret import Phase, best_static, coldest, expected_step_s, follow, recovery_s, steps_served
from spillway.placement.counts import load_counts
from spillway.placement.follow import (
    Following,
    Swap,
    SwapCost,
    Traffic,
    begin,
    decide,
    parse_residency,
    shifted,
    worthwhile,
)
from spillway.placement.plan import ModelIdentity, PlanError
from spillway.placement.routing import SyntheticRouting

# One expert of the 30B shape in bf16, at the rates and with the pause of offload on an H200; the pause is for four views.
COST = SwapCost(expert_bytes=9 << 20, host_read_bytes_per_s=50e9, copy_bytes_per_s=55e9, copies=2, pause_s=0.8e-3)
LAYERS, EXPERTS, TOP_K, HOST = 48, 128, 8, 38
BASE_S = 4.2e-3


def chances(seed, share=0.05):
    """The synthetic routing's probabilities: 38 experts of each layer share 5 % of the picks."""
    rng = np.random.default_rng(seed)
    found = np.full((LAYERS, EXPERTS), TOP_K * (1 - share) / (EXPERTS - HOST))
    found[:, rng.permutation(EXPERTS)[:HOST]] = TOP_K * share / HOST
    return found


def zipf(seed, exponent=0.8):
    weights = 1 / np.arange(1, EXPERTS + 1) ** exponent
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.permutation(weights) for _ in range(LAYERS)])
    return np.minimum(1.0, TOP_K * rows / rows.sum(1, keepdims=True))


# What decide may never do


@st.composite
def situations(draw):
    classes = draw(st.sampled_from([1, 2, 4]))
    layers, experts = draw(st.integers(1, 3)), classes * draw(st.integers(1, 4))
    shape = (layers, experts)
    reads = arrays.arrays(np.int64, shape, elements=st.integers(0, 1000))
    masks = arrays.arrays(np.bool_, shape)
    times = draw(st.lists(st.floats(0.01, 5), min_size=1, max_size=6))
    return classes, [(t, draw(reads).astype(float), draw(masks)) for t in times], draw(masks)


@settings(deadline=None, max_examples=60)
@given(situations(), st.floats(0.5, 50), st.floats(0.1, 20), st.floats(0.1, 5))
def test_a_decision_moves_each_expert_once_within_its_class_and_budget(situation, swaps_per_s, rest_s, certainty):
    classes, steps, on_host = situation
    following = Following(swaps_per_s=swaps_per_s, pays_within_s=rest_s, certainty=certainty)
    decider, started, now, moved = begin(on_host.shape, 0.0), [], 0.0, {}
    all_swaps = 0
    count = on_host.sum(1).copy()
    on_host = on_host.copy()
    for elapsed, reads, busy in steps:
        now += elapsed
        decider, swaps = decide(decider, following, COST, now, reads, on_host, busy, started, classes)
        all_swaps += len(swaps)
        # Half a second's worth at once, and the average beyond.
        assert all_swaps <= max(1.0, swaps_per_s / 2) + swaps_per_s * now
        touched = [(s.layer, e) for s in swaps for e in (s.promote, s.demote)]
        assert len(touched) == len(set(touched))
        for swap in swaps:
            assert on_host[swap.layer, swap.promote] and not on_host[swap.layer, swap.demote]
            assert not busy[swap.layer, swap.promote] and not busy[swap.layer, swap.demote]
            assert (swap.promote - swap.demote) % classes == 0
            for expert in (swap.promote, swap.demote):
                # It rests from the decision after the one that started it, as which it is reported.
                assert now >= moved.get((swap.layer, expert), -np.inf) + rest_s * 0.999
            on_host[swap.layer, swap.promote], on_host[swap.layer, swap.demote] = False, True
        moved |= {at: now for at in touched}
        started = swaps
        assert (on_host.sum(1) == count).all(), "a layer's number of host experts changed"


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.int64, (2, 8), elements=st.integers(0, 500)), arrays.arrays(np.bool_, (2, 8)), st.floats(0.5, 30))
def test_every_swap_saves_more_than_it_costs_within_the_stated_time(reads, on_host, seconds):
    following = Following()
    traffic = Traffic(reads.astype(float), seconds)
    for swap in worthwhile(traffic, following, COST, on_host, np.ones_like(on_host), 1):
        saved = reads[swap.layer, swap.promote] - reads[swap.layer, swap.demote]
        assert saved / seconds * COST.read_s * following.pays_within_s > COST.swap_s
        assert saved > following.certainty * np.sqrt(saved)


def test_the_most_read_host_expert_meets_the_least_read_gpu_expert():
    reads = np.array([[900.0, 10.0, 500.0, 5.0, 700.0, 0.0]])
    on_host = np.array([[True, False, True, False, False, True]])
    swaps = worthwhile(Traffic(reads, 1.0), Following(), COST, on_host, np.ones_like(on_host), 1)
    assert swaps == [Swap(0, 0, 3), Swap(0, 2, 1)]
    # Of two classes, 0 and 2 can only take the place of 4, which only the first of them deserves.
    swaps = worthwhile(Traffic(reads, 1.0), Following(), COST, on_host, np.ones_like(on_host), 2)
    assert swaps == [Swap(0, 0, 4)]


def test_a_dear_swap_is_not_made_and_a_cheap_one_is():
    reads, on_host = np.array([[100.0, 0.0]]), np.array([[True, False]])
    free = np.ones_like(on_host)
    dear = SwapCost(9 << 20, 50e9, 55e9, 2, pause_s=10.0)
    assert worthwhile(Traffic(reads, 1.0), Following(), dear, on_host, free, 1) == []
    assert worthwhile(Traffic(reads, 1.0), Following(), COST, on_host, free, 1) == [Swap(0, 0, 1)]
    # The same reads over an hour do not pay within ten seconds.
    assert worthwhile(Traffic(reads, 3600.0), Following(), COST, on_host, free, 1) == []


def test_older_reads_weigh_half_after_a_half_life_and_a_pause_does_not_count_as_quiet_traffic():
    ones = np.ones((1, 2))
    traffic = Traffic(8 * ones, 4.0).after(ones, 10.0, half_life_s=10.0)
    assert traffic.reads == pytest.approx(5 * ones)
    assert traffic.seconds == pytest.approx(2 + 0.5 * 10 / np.log(2))
    assert Traffic(ones, 1.0).after(ones, 3600.0, 10.0).seconds == pytest.approx(10 / np.log(2))
    # Steady traffic is read as what it is, at whatever age.
    steady = Traffic(0 * ones, 0.0)
    for _ in range(5000):
        steady = steady.after(3 * ones, 0.01, 10.0)
    assert steady.reads / steady.seconds == pytest.approx(300 * ones, rel=1e-3)


def test_a_shift_voids_older_counts_and_noise_does_not():
    on_host = np.array([[True, False]])
    earlier = Traffic(np.array([[50.0, 950.0]]), 1.0)
    assert shifted(earlier, np.array([[30.0, 70.0]]), on_host, 2.0)
    assert not shifted(earlier, np.array([[9.0, 91.0]]), on_host, 2.0), "not twice the share"
    assert not shifted(earlier, np.array([[2.0, 8.0]]), on_host, 2.0), "ten reads say too little"
    assert not shifted(earlier, np.array([[0.0, 0.0]]), on_host, 2.0)
    assert not shifted(Traffic(np.zeros((1, 2)), 0.0), np.array([[9.0, 1.0]]), on_host, 2.0)


def test_no_time_passed_decides_nothing():
    decider = begin((1, 2), 5.0)
    on_host = np.array([[True, False]])
    assert decide(decider, Following(), COST, 5.0, 9 * np.ones((1, 2)), on_host, ~on_host & on_host, [], 1) == (decider, [])


# What it achieves (seconds are simulated)


def test_traffic_that_does_not_shift_moves_next_to_nothing_and_costs_next_to_nothing():
    for traffic, plan in (
        (chances(1), coldest(chances(1), HOST)),
        (np.full((LAYERS, EXPERTS), TOP_K / EXPERTS), coldest(chances(1), HOST)),
        (zipf(1), coldest(zipf(1), HOST)),
    ):
        course = follow([Phase(40.0, traffic)], plan, Following(), COST, BASE_S)
        # Of 1,824 host experts.
        assert len(course.swaps) < 50
        assert course.mean_step_s < 1.01 * expected_step_s(traffic, plan, COST, BASE_S)


def test_after_a_full_shift_steps_are_back_at_the_matched_plans_time_within_20_s():
    before, after = chances(1), chances(2)
    plan, matched = coldest(before, HOST), coldest(after, HOST)
    course = follow([Phase(10.0, before), Phase(40.0, after)], plan, Following(), COST, BASE_S)
    target = 1.1 * expected_step_s(after, matched, COST, BASE_S)
    assert expected_step_s(after, plan, COST, BASE_S) > 2 * target, "the shift does not matter here"
    recovered = recovery_s(course, 10.0, 50.0, target)
    assert recovered is not None and recovered < 20
    assert (course.on_host.sum(1) == HOST).all()


@pytest.mark.parametrize(("make", "beaten"), [(chances, "any plan, in hindsight"), (zipf, "the first phase's plan")])
def test_where_traffic_shifts_following_beats_plans_and_never_the_oracle(make, beaten):
    """Of a long tail the last swaps are worth little: over two shifts the best plan in hindsight is as good there."""
    phases = [Phase(40.0, make(1 + turn % 2)) for turn in range(3)]
    matched = [coldest(p.chances, HOST) for p in phases]
    static = matched[0] if beaten == "the first phase's plan" else best_static(phases, HOST, COST, BASE_S)
    course = follow(phases, matched[0], Following(), COST, BASE_S)
    served = len(course.step_s) * Following().decide_steps
    assert steps_served(phases, [static] * 3, COST, BASE_S) < served < steps_served(phases, matched, COST, BASE_S)


def test_recorded_counts_can_be_followed(tmp_path):
    """Counts in the format that a server records: the plan of one file, the traffic of another."""
    model = ModelIdentity(config_sha256="0" * 64, experts=EXPERTS, top_k=TOP_K, expert_bytes=9 << 20)
    names = tuple(f"layer{i}" for i in range(4))
    made = []
    for seed in (0, 1):
        path = tmp_path / f"{seed}.json"
        SyntheticRouting(HOST, 0.05, seed).counts(model, names).save(path)
        picks = np.array(list(load_counts(path).picks("decode").values()), dtype=float)
        made.append(TOP_K * picks / picks.sum(1, keepdims=True))
    plan = coldest(made[0], HOST)
    course = follow([Phase(30.0, made[1])], plan, Following(), COST, BASE_S)
    matched = expected_step_s(made[1], coldest(made[1], HOST), COST, BASE_S)
    assert course.step_s[-50:].mean() < 1.02 * matched


# Settings


def test_the_modes_are_off_static_and_follow():
    assert parse_residency(None, True) is None and parse_residency("static", True) is None
    assert parse_residency("off", False) is None
    assert parse_residency("follow", True) == Following()
    asked = Following(half_life_s=2.5, swaps_per_s=40, host_copy=1, swaps_per_step=3)
    assert parse_residency(asked.setting, True) == asked


@pytest.mark.parametrize(
    ("setting", "has_plan", "fault"),
    [
        ("follow", False, "no plan is given"),
        ("static", False, "no plan is given"),
        ("off", True, "a plan is given"),
        ("on", True, "expected off, static, or follow"),
        ("static,half_life_s=2", True, "expected off, static, or follow"),
        ("follow,half_life=2", True, r"unknown keys \['half_life'\]"),
        ("follow,half_life_s=0", True, "expected more than 0"),
        ("follow,half_life_s=nan", True, "expected more than 0"),
        ("follow,host_copy=2", True, "expected 0 or 1"),
        ("follow,classes=3", True, "expected 1, 2, 4 or 8"),
        ("follow,decide_steps=1.5", True, "1.5"),
        ("follow,certainty=1,certainty=2", True, "given twice"),
        ("follow,certainty", True, "SPILLWAY_RESIDENCY"),
    ],
)
def test_a_setting_that_asks_for_nothing_sound_is_an_error(setting, has_plan, fault):
    with pytest.raises(PlanError, match=fault):
        parse_residency(setting, has_plan)


def test_the_setting_is_one_line_of_json_safe_text():
    assert json.loads(json.dumps(Following().setting)) == Following().setting
    assert Following().setting.startswith("follow,half_life_s=20.0,")


@pytest.mark.parametrize("changes", [{"decide_steps": 1_000_000}, {"swaps_per_step": 1_234_567}, {"half_life_s": 20.000001}])
def test_a_large_or_exact_number_comes_back_from_the_setting_as_it_was(changes):
    asked = Following(**changes)
    assert parse_residency(asked.setting, True) == asked
