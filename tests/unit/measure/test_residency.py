"""Rows of `residency`: one for each second of traffic, with the swaps that ended in it, on the cell's clock."""

from pathlib import Path

import pytest

from spillway.measure.arms import synthetic
from spillway.measure.residency import residency, rows
from spillway.placement import choose
from spillway.placement.journal import EndRecord, Journal, SwapRecord, TrafficRecord
from spillway.placement.plan import ModelIdentity
from spillway.placement.proof import FollowingProof, ProofError
from spillway.record.tables import RESIDENCY
from spillway.spec.arm import Arm
from spillway.spec.experiment import OnHost, Resolved, resolve

ROOT = Path(__file__).parents[3]
MODEL = ModelIdentity(config_sha256="0" * 64, experts=8, top_k=2, expert_bytes=18)
PLAN = choose.given(MODEL, {"a": [1, 4, 6]})
START = 1_700_000_000.0


def swapped(t_s, up, down, outcome="done"):
    return SwapRecord(
        step=1, t_s=START + t_s, layer="a", promoted=up, demoted=down, bytes=18, copy_s=0.2, map_s=0.25, outcome=outcome
    )


def traffic(t_s, reads, host_reads):
    return TrafficRecord(step=1, t_s=START + t_s, reads=reads, host_reads=host_reads)


RECORDS = [
    traffic(-1.0, 5, 5),
    swapped(-0.5, 1, 3),
    swapped(0.5, 4, 2),
    swapped(0.75, 6, 0, "not promoted"),
    traffic(1.0, 80, 20),
    traffic(2.0, 0, 0),
    swapped(2.5, 6, 0),
]


def test_each_row_is_a_second_of_the_cell_with_its_swaps():
    first, second = rows(RECORDS, START)
    assert first == {
        "t_s": 1.0, "reads": 80, "host_share_fraction": 0.25, "swaps": 1, "failed_swaps": 1, "moved_bytes": 36,
        "paused_s": 0.5,
    }  # fmt: skip
    assert second["host_share_fraction"] is None and second["swaps"] == 0
    keys = {"run", "boot", "start", "arm", "cell"}
    assert set(first) == set(RESIDENCY) - keys


class Proof:
    """As much of a proof as is looked at."""

    rank = 0

    def __init__(self, follows):
        self.following = FollowingProof(setting="follow", classes=1, spare_bytes=1, copied_bytes=0) if follows else None


def test_a_server_whose_experts_stay_has_no_rows(tmp_path):
    assert residency(None, [], tmp_path, "2026-01-01T00:00:00.000+00:00") == ([], None)
    assert residency(PLAN, [Proof(False)], tmp_path, "2026-01-01T00:00:00.000+00:00") == ([], None)


def test_a_journal_that_contradicts_the_plan_counts_for_nothing(tmp_path):
    journal = Journal(tmp_path, 0)
    for record in RECORDS:
        journal.write(record)
    at = "2023-11-14T22:13:20.000+00:00"
    found, mark = residency(PLAN, [Proof(True)], tmp_path, at)
    assert len(found) == 2 and mark is None
    journal.write(swapped(3.0, 6, 5))
    with pytest.raises(ProofError, match="expert 6 was promoted but was not on the host"):
        residency(PLAN, [Proof(True)], tmp_path, at)


def test_a_cell_of_a_server_that_stopped_following_is_marked(tmp_path):
    journal = Journal(tmp_path, 0)
    for record in [*RECORDS, EndRecord(step=1, t_s=START + 3, reason="no memory"), traffic(4.0, 80, 80)]:
        journal.write(record)
    for at in ("2023-11-14T22:13:20.000+00:00", "2023-11-14T22:13:23.500+00:00"):  # in the cell, and before it
        found, mark = residency(PLAN, [Proof(True)], tmp_path, at)
        assert found and mark == "following_stopped: no memory"


def test_an_arm_can_follow_only_with_a_plan_and_by_known_settings():
    plan = {"choose": "random", "host_share": 0.3, "seed": 1}
    assert Arm.model_validate({"plan": plan, "residency": "follow,swaps_per_s=50"}).residency == "follow,swaps_per_s=50"
    with pytest.raises(ValueError, match=r"residency: .*no plan is given"):
        Arm.model_validate({"residency": "follow"})
    with pytest.raises(ValueError, match=r"residency: .*unknown keys \['speed'\]"):
        Arm.model_validate({"plan": plan, "residency": "follow,speed=9"})


def test_the_experiment_compares_the_same_plan_with_and_without_following():
    asked = resolve(ROOT, "e15_follow", "h200")
    assert isinstance(asked, Resolved) and isinstance(asked.on, OnHost)
    arms = asked.on.served()
    following = {name: arm for name, arm in arms.items() if arm.residency is not None}
    assert set(following) == {"following", "following, no shift"}
    for name, arm in following.items():
        same = arms[name.replace("following", "static")]
        assert (arm.plan, arm.routing) == (same.plan, same.routing)
        assert synthetic(arm.routing).experts(128) == synthetic(arms["static"].routing).experts(128)
    assert synthetic(arms["following"].routing).shift_every_s == 30
