"""Replay, routing and episodes: small cases by hand, large ones against the closed forms."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.seats import demand
from spillway.seats.errors import SeatsError
from spillway.seats.occupancy import noticed, occupancy
from spillway.seats.overload import clock_overload, experienced_overload
from spillway.seats.replay import Ring, Turns, draw, peak_q, ring
from spillway.seats.residency import contexts_that_fit, mean_contexts
from spillway.seats.routing import ROUTINGS, away_from_home, cold, route
from spillway.seats.simulation import LENGTH_EDGES_S, Setting, simulate

Q, K, DAY_S = 0.071, 4, 28800.0


def turns_of(spans, developers=None, team=None, window_s=100.0, teams=1):
    start, end = (np.array([float(span[side]) for span in spans]) for side in (0, 1))
    count = len(spans)
    developer = np.array(developers if developers is not None else range(count))
    return Turns(
        np.array(team if team is not None else [0] * count), developer, start, end, np.full(count, 1000), np.full(count, 900),
        np.ones(count, bool), teams, int(developer.max()) + 1, window_s,
    )  # fmt: skip


def synthetic(sessions=60, seed=0):
    """Sessions with exponential turns and pauses."""
    random = np.random.default_rng(seed)
    parts = []
    for session in range(sessions):
        busy, idle = random.exponential(9, 60), random.exponential(100, 60)
        start = np.cumsum(busy + idle) - busy
        parts.append(pd.DataFrame({"session": session, "start_s": start, "end_s": start + busy}))
    return pd.concat(parts, ignore_index=True).assign(context_tokens=100_000, output_tokens=400, reused_tokens=95_000)


@pytest.fixture(scope="module")
def source() -> Ring:
    return ring(synthetic(), Q, 1)


def test_occupancy_by_hand():
    """Server 0: 0-10, 5-20, 8-9. Server 1: 50-60."""
    turns = turns_of([(0, 10), (5, 20), (8, 9), (50, 60)])
    found = occupancy(turns, np.array([0, 0, 0, 1]), 2)
    assert found.seconds_at() == pytest.approx([200 - 30, 5 + 10 + 10, 3 + 1, 1])
    assert found.episodes_s(1) == pytest.approx([5])
    assert found.episodes_s(2) == pytest.approx([1])
    assert len(found.episodes_s(3)) == 0


def test_a_turn_that_starts_as_another_ends_is_not_overload():
    found = occupancy(turns_of([(0, 10), (10, 20)]), np.zeros(2, int), 1)
    assert found.seconds_at() == pytest.approx([80, 20])


def test_a_turn_of_no_length_lasts_a_microsecond():
    found = occupancy(turns_of([(5, 5), (5, 6)]), np.zeros(2, int), 1)
    assert found.level.min() == 0
    assert found.seconds_at() == pytest.approx([99, 1 - 1e-6, 1e-6], abs=1e-9)


def test_what_turns_notice_by_hand():
    """k = 1; speeds 1, 1/2, 1/4 of a stream alone, so that one second with two busy loses half a second."""
    turns = turns_of([(0, 10), (5, 20), (8, 9), (50, 60)])
    server = np.zeros(4, int)
    notice = noticed(turns, server, occupancy(turns, server, 1), 1, np.array([1, 0.5, 0.25]))
    assert notice.arrives_full.tolist() == [False, True, True, False]
    assert notice.overloaded_s == pytest.approx([5, 5, 1, 0])
    assert notice.lost_s == pytest.approx([4 * 0.5 + 0.75, 4 * 0.5 + 0.75, 0.75, 0])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 90), st.floats(0.001, 9), st.integers(0, 2)), min_size=1, max_size=25), st.integers(1, 3)
)
def test_occupancy_and_notice_agree_with_a_slow_count(parts, k):
    turns = turns_of([(start, start + length) for start, length, _ in parts])
    server = np.array([part[2] for part in parts])
    found = occupancy(turns, server, 3)
    seconds = found.seconds_at()
    edges = np.unique(np.concatenate([[0.0, 100.0], turns.start_s, turns.end_s]))
    middles, lengths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    for each in range(len(seconds)):
        busy = [((turns.start_s < t) & (turns.end_s > t))[server == s].sum() == each for s in range(3) for t in middles]
        assert seconds[each] == pytest.approx((np.array(busy) * np.tile(lengths, 3)).sum(), abs=1e-3)
    assert found.episodes_s(k).sum() == pytest.approx(seconds[k + 1 :].sum(), abs=1e-3)
    notice = noticed(turns, server, found, k, np.ones(max(len(seconds), k)))
    stream_s = (seconds * np.arange(len(seconds)))[k + 1 :].sum()
    assert notice.overloaded_s.sum() == pytest.approx(stream_s, abs=1e-3)


def test_a_ring_is_busy_exactly_as_asked(source):
    assert source.q == pytest.approx(Q, rel=1e-9)
    assert (np.diff(source.start_s) >= 0).all()
    assert np.sort(source.end_s - source.start_s) == pytest.approx(np.sort((lambda t: t["end_s"] - t["start_s"])(synthetic())))


@pytest.mark.parametrize("q", [0.01, 0.05, 0.3, 0.8])
def test_any_share_up_to_no_idle_time_can_be_had(q):
    assert ring(synthetic(5), q, 1).q == pytest.approx(q, rel=1e-9)


def test_overlapping_turns_of_a_session_stay_overlapped():
    frame = pd.DataFrame(
        {"session": 0, "start_s": [0.0, 2.0, 100.0], "end_s": [10.0, 4.0, 105.0], "context_tokens": 1, "reused_tokens": 0}
    )
    made = ring(frame, 0.5, 1)
    assert made.start_s[1] - made.start_s[0] == pytest.approx(2)
    assert (made.end_s - made.start_s).tolist() == pytest.approx([10, 2, 5])


def test_more_than_all_the_time_cannot_be_had():
    frame = pd.DataFrame({"session": 0, "start_s": [0.0, 2.0], "end_s": [10.0, 12.0], "context_tokens": 1, "reused_tokens": 0})
    ring(frame, 0.99, 1)
    with pytest.raises(SeatsError, match="q: found 1, a stream never idle"):
        ring(frame, 1.0, 1)
    single = frame.iloc[:1].assign(end_s=np.nan)
    with pytest.raises(SeatsError, match="expected at least one session"):
        ring(single, 0.5, 1)


def test_pieces_of_the_ring_hold_what_the_ring_holds(source):
    """Every drawn turn lies in its window, and the drawn share busy is q over many developers."""
    turns = draw(source, 3, 400, 3600.0, np.random.default_rng(5))
    assert turns.start_s.min() >= 0
    assert turns.end_s.max() <= 3600
    assert (turns.end_s > turns.start_s).all()
    assert (turns.end_s - turns.start_s).sum() / (1200 * 3600) == pytest.approx(Q, rel=0.05)
    assert (np.diff(turns.developer) >= 0).all()
    same = turns.developer[1:] == turns.developer[:-1]
    assert (np.diff(turns.start_s)[same] >= 0).all()
    assert (turns.team == turns.developer // 400).all()


def test_turns_that_run_when_the_window_opens_are_there(source):
    turns = draw(source, 1, 60_000, 2.0, np.random.default_rng(5))
    assert (turns.end_s - turns.start_s).sum() / (60_000 * 2) == pytest.approx(Q, rel=0.05)
    assert turns.begins.mean() < 0.3


def test_pooled_servers_share_the_load_evenly(source):
    """Two servers of one stream, four developers: with 3 or 4 busy each stream runs at half speed, so half is lost."""
    outcome = simulate(source, Setting(4, 2, 1, "pooled", DAY_S, speed=[1.0, 0.5]), 40, 3)
    assert outcome.overloaded_s > 0
    assert outcome.lost_s == pytest.approx(outcome.overloaded_s / 2)


def test_a_window_longer_than_the_ring_is_refused(source):
    with pytest.raises(SeatsError, match="at most the ring's"):
        draw(source, 1, 1, source.period_s * 1.01, np.random.default_rng(1))


@pytest.mark.parametrize("developers", [13, 19, 28])
def test_replayed_sessions_agree_with_the_binomial(source, developers):
    outcome = simulate(source, Setting(developers, 1, K, "pooled", DAY_S, speed=[1.0] * 8), 150, 7)
    exact = demand.independent(developers, Q)
    for criterion in (clock_overload, experienced_overload):
        assert criterion(outcome.busy, K) == pytest.approx(criterion(exact, K), rel=0.08)
    assert outcome.busy[:4] == pytest.approx(exact[:4], rel=0.03)
    # Turns arrive while their developer is idle, so they find the binomial of the others (as Poisson arrivals see averages).
    assert outcome.arrives_full / outcome.turns == pytest.approx(experienced_overload(exact, K), rel=0.1)
    assert outcome.episode_s == pytest.approx(outcome.seconds_at[K + 1 :].sum(), rel=1e-6)


def test_a_day_profile_agrees_with_the_mixture():
    levels = [0.5, 1.5, 1.0, 1.0]
    outcome = simulate(ring(synthetic(), peak_q(Q, levels), 1), Setting(19, 1, K, "pooled", DAY_S, levels=levels), 200, 3)
    assert outcome.q == pytest.approx(Q, rel=0.03)
    expected = clock_overload(demand.day_profile(19, Q, levels), K)
    assert clock_overload(outcome.busy, K) == pytest.approx(expected, rel=0.1)
    assert expected > 1.2 * clock_overload(demand.independent(19, Q), K)


def test_fixed_homes_are_teams_of_their_own(source):
    outcome = simulate(source, Setting(100, 4, K, "fixed", DAY_S), 40, 3)
    assert experienced_overload(outcome.busy, K) == pytest.approx(experienced_overload(demand.independent(25, Q), K), rel=0.08)
    assert outcome.away == outcome.cold == 0


def test_random_routing_agrees_with_thinned_developers(source):
    """Each of 100 developers is on a given one of 4 servers with probability q / 4."""
    outcome = simulate(source, Setting(100, 4, K, "random", DAY_S), 40, 3)
    assert clock_overload(outcome.busy, K) == pytest.approx(clock_overload(demand.independent(100, Q / 4), K), rel=0.08)


def test_routings_compare_as_they_must(source):
    over, moved = {}, {}
    for routing in ROUTINGS:
        outcome = simulate(source, Setting(100, 4, K, routing, DAY_S / 4), 12, 3)
        over[routing] = experienced_overload(outcome.busy, 4 * K if routing == "pooled" else K)
        moved[routing] = outcome.cold / outcome.turns
    assert over["least-loaded"] < 0.01
    assert over["home-with-spill"] < 0.01
    assert over["home-with-spill"] < over["round-robin"] / 5 < over["fixed"] / 5
    assert moved["home-with-spill"] < 0.12
    assert moved["least-loaded"] > 0.6
    assert moved["fixed"] == 0


def slow_route(turns, routing, servers, k):
    """The same routing, one event after the other."""
    events = sorted([(t, 1, i) for i, t in enumerate(turns.start_s)] + [(t, 0, i) for i, t in enumerate(turns.end_s)])
    load, chosen = {}, [0] * len(turns.start_s)
    for _, starts, turn in events:
        of_team = load.setdefault(turns.team[turn], [0] * servers)
        if not starts:
            of_team[chosen[turn]] -= 1
            continue
        home = turns.developer[turn] % servers
        spill = routing == "least-loaded" or of_team[home] >= k
        chosen[turn] = of_team.index(min(of_team)) if spill else home
        of_team[chosen[turn]] += 1
    return chosen


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["least-loaded", "home-with-spill"]))
def test_routing_by_state_for_all_teams_at_once_equals_one_by_one(seed, servers, k, routing):
    random = np.random.default_rng(seed)
    start = np.round(random.random(40) * 80, 3) + np.arange(40) * 1e-5  # no two at the same microsecond
    developer = random.integers(0, 12, 40)
    turns = turns_of(list(zip(start, start + random.random(40) * 15 + 0.01, strict=True)), developer, developer // 4, teams=3)
    assert route(turns, routing, servers, k, random).tolist() == slow_route(turns, routing, servers, k)


def test_round_robin_deals_turns_in_the_order_of_time():
    turns = turns_of([(5, 6), (1, 2), (3, 4), (2, 9)], [0, 1, 0, 2], [0, 0, 0, 0])
    assert route(turns, "round-robin", 3, 1, np.random.default_rng(1)).tolist() == [0, 0, 2, 1]


def test_a_turn_is_cold_where_its_prefix_is_not():
    turns = turns_of([(n, n + 1) for n in range(5)], [0, 0, 0, 0, 1])
    server = np.array([0, 1, 1, 0, 0])
    assert away_from_home(turns, server, 2).tolist() == [False, True, True, False, True]
    assert cold(turns, server, 2, homes=True).tolist() == [False, True, False, False, False]
    assert cold(turns, server, 2, homes=False).tolist() == [False, True, False, True, False]


def test_the_same_seed_gives_the_same_outcome_for_any_number_of_workers(source, monkeypatch):
    monkeypatch.setattr("spillway.seats.simulation.TURNS_OF_A_BATCH", {"pooled": 20_000})
    one, two = (simulate(source, Setting(19, 1, K, "pooled", DAY_S), 20, 7, workers) for workers in (1, 2))
    assert one.seconds_at.tolist() == two.seconds_at.tolist()
    assert one.turns == two.turns


def test_quantiles_of_episode_lengths():
    outcome = simulate(ring(synthetic(), 0.5, 1), Setting(6, 1, 2, "pooled", DAY_S), 4, 1)
    median = outcome.episode_quantile_s(0.5)
    bin_ = int(np.searchsorted(LENGTH_EDGES_S, median)) - 1
    assert outcome.episodes[:bin_].sum() <= outcome.episodes.sum() / 2 <= outcome.episodes[: bin_ + 1].sum()
    nobody = simulate(ring(synthetic(), Q, 1), Setting(2, 1, 4, "pooled", 3600.0), 2, 1)
    assert nobody.episode_quantile_s(0.5) is None


def test_contexts_in_the_kv_cache():
    assert mean_contexts(1_000_000, np.array([50_000, 150_000])) == 10
    assert contexts_that_fit(1_000_000, np.array([100_000]), 0.01, 100, 1) == 10
    mixed = contexts_that_fit(1_000_000, np.array([50_000, 150_000]), 0.01, 4000, 1)
    assert 6 < mixed < 10  # chance puts several long ones together


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda source: Setting(0, 1, K, "pooled", DAY_S), "found 0 developers"),
        (lambda source: Setting(5, 1, 0, "pooled", DAY_S), "streams: found 0"),
        (lambda source: Setting(5, 1, K, "pooled", DAY_S, speed=[1.0]), "speed: found 1 values"),
        (lambda source: simulate(source, Setting(5, 1, K, "pooled", DAY_S), 0, 1), "windows: found 0"),
        (lambda source: peak_q(0.5, [4, 0]), "busy share of 1.00"),
        (lambda source: contexts_that_fit(0, np.array([5]), 0.01, 10, 1), "kv_cache_tokens: found 0"),
        (lambda source: mean_contexts(10, np.array([], int)), "context_tokens: found none"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(source, make, said):
    with pytest.raises(SeatsError, match=said):
        make(source)


def test_recorded_sessions_reproduce_the_routing_study(trace):
    """Shares of stream time in overload and of turns away from home at 100 developers on 4 servers, 250 on 7."""
    recorded = ring(trace, Q, 1)
    expected = {
        (100, 4, "home-with-spill"): (0.0008, 0.07),
        (250, 7, "home-with-spill"): (0.0077, 0.21),
        (250, 7, "round-robin"): (0.122, None),
        (250, 7, "fixed"): (0.234, None),
        (100, 4, "random"): (0.102, None),
    }
    for (developers, servers, routing), (over, away) in expected.items():
        outcome = simulate(recorded, Setting(developers, servers, K, routing, DAY_S / 4), 24, 3)
        assert experienced_overload(outcome.busy, K) == pytest.approx(over, rel=0.15, abs=0.001)
        if away:
            assert outcome.away / outcome.turns == pytest.approx(away, abs=0.015)


def test_recorded_sessions_reproduce_the_episodes(trace):
    """19 developers: about 110 to 120 dips of about 2.3 s in eight hours; a twentieth is longer than 6.7 s."""
    outcome = simulate(ring(trace, Q, 1), Setting(19, 1, K, "pooled", DAY_S), 150, 3)
    count = outcome.episodes.sum()
    assert count / 150 == pytest.approx(115, rel=0.1)
    assert outcome.episode_s / count == pytest.approx(2.3, abs=0.15)
    assert outcome.episode_quantile_s(0.95) == pytest.approx(6.7, abs=0.4)
