"""A server that is placed as planned but does not do what its arm asked for beside the plan is not measured."""

from types import SimpleNamespace

import pytest

from spillway.measure.arms import proved
from spillway.placement.proof import ProofError
from spillway.spec.arm import Arm
from tests.unit.placement.test_proof import FOLLOWS, PLAN, RANKS, SWITCH_OVER, proof, unstaged

FIXED = SWITCH_OVER.model_copy(update={"rows": 48, "measured": False})


def start(folder, arm, **changes):
    """What is proved of a start of an arm whose ranks wrote proofs with these changes."""
    (folder / "proof").mkdir()
    for rank in range(RANKS):
        proof(rank, **changes).save(folder / "proof")
    engine = SimpleNamespace(arguments={"tensor-parallel-size": RANKS}, plan_variable=None, variables={"SOME": "thing"})
    run = SimpleNamespace(asked=SimpleNamespace(host=SimpleNamespace(engine=engine)))
    given = {"plan": {"choose": "random", "host_share": 0.3, "seed": 1}} | arm
    return proved(run, SimpleNamespace(arm=Arm.model_validate(given), plan=PLAN), folder)


SOUND = {
    "static": ({}, {}),
    "static, in words": ({"residency": "static"}, {}),
    "follows": ({"residency": "follow,classes=2"}, {"following": FOLLOWS}),
    "staging off": ({"variables": {"SPILLWAY_STAGE_ROWS": "off"}}, unstaged()),
    "staged from 48 on": ({"variables": {"SPILLWAY_STAGE_ROWS": "48"}}, {"switch_over": FIXED}),
}
FALSE = {
    "ran static": ({"residency": "follow"}, {}, "its experts stay where they are, asked: follow"),
    "followed unasked": ({}, {"following": FOLLOWS}, "its experts move .* asked: static"),
    "unstaged unasked": ({}, unstaged(), "not staged, although that was not switched off"),
    "another switch-over": ({"variables": {"SPILLWAY_STAGE_ROWS": "48"}}, {}, "from 128 rows on, asked: 48"),
}


@pytest.mark.parametrize("case", SOUND)
def test_a_server_that_does_what_its_arm_asks_is_proved(tmp_path, case):
    arm, changes = SOUND[case]
    assert [each.rank for each in start(tmp_path, arm, **changes)] == list(range(RANKS))


@pytest.mark.parametrize("case", FALSE)
def test_a_server_that_does_something_else_is_not(tmp_path, case):
    arm, changes, fault = FALSE[case]
    with pytest.raises(ProofError, match=fault):
        start(tmp_path, arm, **changes)
