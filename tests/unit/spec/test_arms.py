"""Arms, plans and routings: what cannot be served is named, and what is left out has one meaning."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from spillway.spec.arm import Arm, Routing
from spillway.spec.experiment import Experiment, NotRun, OnHost, Resolved, resolve
from spillway.spec.host import Model
from spillway.spec.read import SpecError, read

PLAN = {"choose": "coldest_per_layer", "host_share": 0.25}
ROUTING = {"unpopular": 2, "cold_share": 0.1}
SWEEP = {"workload": {"kind": "prompt_sweep", "output_tokens": 1, "requests": 2, "prompt_tokens": 8}}
ARMS: dict[str, Any] = {"all in VRAM": {}, "placed": {"plan": PLAN}}
ON = {"model": "m", "seed": 1, "routing": ROUTING, "arms": ARMS, "cells": [SWEEP | {"sweep": {"cold_share": [0.1, 0.25]}}]}
SHAPE = {"kind": "shape", "config": {"vocab_size": 1000}}
MODEL = {
    "title": "a shape", "weights": "dummy", "source": SHAPE, "max_model_len": 100, "first_prompt_token": 4,
    "last_prompt_token": 900,
}  # fmt: skip
ENGINE = {"environment": "engine-cuda", "module": "m", "ready_timeout_s": 60.0}
HOST = {"title": "a GPU host", "measured": True, "gpus": {"name": "GPU", "count": 1, "memory_gib": 8.0}, "engine": ENGINE}


def project(root: Path, on: object = ON, host: object = HOST, **experiment: object) -> Path:
    content = {"question": "Which?", "measures": "load", "hosts": {"here": on}} | experiment
    files = {
        "hosts/here": host,
        "hosts/there": HOST,
        "models/m": MODEL,
        "models/other": MODEL | {"title": "another"},
        "e1": content,
    }
    for file, text in files.items():
        path = root / "experiments" / f"{file}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(text, sort_keys=False))
    return root


def resolved(root: Path) -> tuple[Resolved, OnHost]:
    asked = resolve(root, "e1", "here")
    assert isinstance(asked, Resolved) and isinstance(asked.on, OnHost)
    return asked, asked.on


def test_arms_share_the_routing_and_cells_have_their_share(tmp_path: Path) -> None:
    own = {"unpopular": 1, "cold_share": 0.5}
    _, on = resolved(project(tmp_path, ON | {"arms": ARMS | {"own": {"routing": own}}}))
    served = on.served()
    assert list(served) == ["all in VRAM", "placed", "own"]
    assert served["placed"].routing == Routing(unpopular=2, cold_share=0.1)
    assert served["own"].routing == Routing(unpopular=1, cold_share=0.5)
    assert on.cold_shares() == {"cold_share=0.1": 0.1, "cold_share=0.25": 0.25}
    assert set(on.workloads()) == set(on.cold_shares())


def test_an_arm_may_have_fewer_boots_and_cells(tmp_path: Path) -> None:
    cells = [*ON["cells"], SWEEP | {"name": "alone"}]
    less = {"boots": 1, "situations": ["alone"]}
    _, on = resolved(project(tmp_path, ON | {"boots": 3, "cells": cells, "arms": ARMS | {"less": less}}))
    served = on.served()
    assert [on.boots_of(arm) for arm in served.values()] == [3, 3, 1]
    assert list(on.workloads(served["placed"])) == [*on.cold_shares(), "alone"]
    assert list(on.workloads(served["less"])) == ["alone"]


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({"routing": ROUTING | {"cold_share": 0.3}}, True),
        ({"routing": ROUTING | {"unpopular": 3, "cold_share": 0.3}}, False),
        ({"plan": {"choose": "random", "host_share": 0.5, "seed": 1}}, False),
        ({"arguments": {"block-size": 64}}, False),
        ({"residency": "follow"}, False),
    ],
)
def test_one_start_serves_arms_that_differ_in_the_cold_share_alone(change: dict[str, Any], shared: bool) -> None:
    arms = {"one": {"plan": PLAN, "routing": ROUTING}, "other": {"plan": PLAN, "routing": ROUTING} | change}
    cell = {"workload": {"kind": "prompt_sweep", "prompt_tokens": 8, "output_tokens": 2, "requests": 2}}
    on = OnHost.model_validate({"model": "m", "seed": 1, "arms": arms, "cells": [cell]})
    one, other = on.served().values()
    assert one.served_as(other) is other.served_as(one) is on.changes_cold_share is shared
    moving = one.model_copy(update={"residency": "follow"})
    assert not moving.served_as(moving), "where experts moved, the next arm would not begin as the plan says"
    assert not Arm().served_as(Arm()), "without synthetic routing there is no cold share to change"


def test_without_arms_there_is_one_way_to_serve() -> None:
    on = OnHost.model_validate({"model": "m", "seed": 1, "plan": PLAN, "routing": ROUTING, "cells": [SWEEP]})
    assert list(on.served()) == [""] and on.served()[""].plan == on.plan and on.cold_shares() == {}
    assert OnHost.model_validate({"model": "m", "seed": 1, "cells": [SWEEP]}).served() == {"": Arm()}


def test_what_an_arm_changes_changes_the_hash(tmp_path: Path) -> None:
    hashes = [
        resolved(project(tmp_path, ON | {"arms": arms}))[0].hash
        for arms in (ARMS, ARMS | {"x": {}}, ARMS | {"x": {"model": "other"}}, ARMS | {"x": {"variables": {"A": "1"}}})
    ]
    assert len(set(hashes)) == 4
    # A plain experiment's hash knows nothing of arms, so that data recorded before there were any stay fresh.
    before = "".join(
        resolved(project(tmp_path, {"model": "m", "seed": 1, "cells": [SWEEP]}))[0].on.model_dump(exclude_defaults=True)
    )
    assert "arms" not in before and "plan" not in before


FAULTS: list[tuple[dict[str, Any], str]] = [
    (ON | {"plan": PLAN}, "plan: found one beside arms"),
    (
        ON | {"routing": None, "arms": {"placed": {"plan": PLAN}}},
        r"placed.plan.counts: found nothing; expected recorded counts",
    ),
    (ON | {"routing": None, "arms": {"a": {}}}, r"arms.a.routing: found nothing; expected one, since cells sweep cold_share"),
    (ON | {"arms": {"a": {"plan": PLAN | {"seed": 1}}}}, "seed: found 1; expected one for the choice random"),
    (ON | {"arms": {"a": {"plan": {"choose": "random", "host_share": 0.5}}}}, "seed: found None; expected one"),
    (ON | {"arms": {"a": {"plan": PLAN | {"host_share": 1.0}}}}, r"host_share: found 1\.0; expected: .*less than 1"),
    (ON | {"arms": {"a": {"plan": {"file": "p", "seed": 1}}}}, r"plan\.seed: unknown key"),
    (ON | {"arms": {"a": {"plan": {"chose": "random"}}}}, r"plan\.chose: unknown key.*did you mean choose"),
    (ON | {"arms": {"a": {"count": True}}}, r"count: found true; expected it beside a plan"),
    (ON | {"arms": {"a": {"boots": 2}}}, r"arms.a.boots: found 2; expected at most the experiment's, 1"),
    (ON | {"arms": {"a": {"situations": ["x"]}}}, r"arms.a.situations: found 'x'; expected names of groups of cells"),
    (ON | {"routing": ROUTING | {"cold_share": 5}}, r"routing\.cold_share: found 5; expected: .*less than or equal to 1"),
    (ON | {"cells": [SWEEP | {"sweep": {"cold_share": [5]}}]}, r"sweep\.cold_share: found 5; expected fractions"),
    (ON | {"cells": [SWEEP | {"sweep": {"cold_share": ["a"]}}]}, r"sweep\.cold_share: found 'a'; expected fractions"),
]


@pytest.mark.parametrize(("on", "message"), FAULTS)
def test_fault_of_an_arm_is_named(tmp_path: Path, on: dict[str, Any], message: str) -> None:
    path = project(tmp_path, on) / "experiments/e1.yaml"
    with pytest.raises(SpecError) as caught:
        read(Experiment, path)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_a_host_without_gpus_takes_no_plan_and_no_synthetic_routing(tmp_path: Path) -> None:
    cpu = {key: value for key, value in HOST.items() if key != "gpus"}
    for arms in ({"a": {"plan": PLAN}}, {"a": {"routing": ROUTING}}):
        root = project(tmp_path, {"model": "m", "seed": 1, "routing": ROUTING, "arms": arms, "cells": [SWEEP]}, cpu)
        with pytest.raises(SpecError, match=r"arms\.a: found a plan or synthetic routing; expected neither on a host without"):
            resolve(root, "e1", "here")


def test_an_arm_may_not_say_what_the_launcher_says(tmp_path: Path) -> None:
    root = project(tmp_path, ON | {"arms": {"a": {"arguments": {"port": 1}}}})
    with pytest.raises(SpecError, match=r"arms\.a: arguments\.port: found an argument that the launcher sets itself"):
        resolve(root, "e1", "here")


def test_other_hosts_say_why_they_do_not_run_it(tmp_path: Path) -> None:
    why = {"not_run": "only one host has what it needs"}
    assert resolve(project(tmp_path, other_hosts=why), "e1", "there") == NotRun(**why)
    asked = resolved(project(tmp_path, other_hosts=why))[0]
    assert asked.hash == resolved(project(tmp_path))[0].hash
    with pytest.raises(SpecError, match=r"hosts\.there: found nothing; expected what to do"):
        resolve(project(tmp_path), "e1", "there")


def test_a_shape_has_dummy_weights_and_a_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    for change, message in (
        ({"weights": "trained"}, "weights: found 'trained'; expected 'dummy' for shape"),
        ({"source": {"kind": "shape", "config": {}}}, "config.vocab_size: found None; expected a number of tokens"),
        ({"temperature": -1.0}, "temperature: found -1.0"),
    ):
        path.write_text(yaml.safe_dump(MODEL | change))
        with pytest.raises(SpecError, match=message):
            read(Model, path)
