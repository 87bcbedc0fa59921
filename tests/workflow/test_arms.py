"""Arms: each way to serve is launched, proved and measured in turn, and one that fails is a row, not the end.

The engine is a stand-in that answers as vLLM does and makes up its proof from the plan, so nothing here says that a
placement works; that is for tests/gpu.
"""

import json

import pandas as pd
import pytest
import yaml

from spillway.record import parquet
from tests.conftest import Project

pytestmark = pytest.mark.workflow

HOST = {
    "title": "a host that is made up",
    "measured": True,
    "gpus": {"name": "a GPU that is made up", "count": 1, "memory_gib": 1.0},
    "host_memory_gib": 8.0,
    "engine": {
        "environment": "engine-cpu",
        "module": "vllm.entrypoints.made_up",
        "ready_timeout_s": 60.0,
        "arguments": {"max-num-seqs": 2, "enable-prompt-tokens-details": True},
    },
}
PLAN = {"choose": "coldest_per_layer", "host_share": 0.25}
ARMS = {
    "all in VRAM": {},
    "placed": {"plan": PLAN},
    "placed at random": {
        "plan": {"choose": "random", "host_share": 0.25, "seed": 3},
        "boots": 1,
        "situations": ["longer"],
        "count": True,
    },
    "no proof": {"plan": PLAN, "variables": {"SPILLWAY_TEST_PROOF": "absent"}},
    "another plan's proof": {"plan": PLAN, "variables": {"SPILLWAY_TEST_PROOF": "bent"}},
    "dies at once": {"arguments": {"die-after-requests": 0}},
}
ON_HOST = {
    "model": "tiny-qwen3-moe",
    "boots": 2,
    "seed": 2,
    "routing": {"unpopular": 4, "cold_share": 0.25},
    "arms": ARMS,
    "cells": [
        {
            "workload": {"kind": "prompt_sweep", "prompt_tokens": 64, "output_tokens": 4, "requests": 2},
            "sweep": {"cold_share": [0.05, 0.25]},
        },
        {"name": "longer", "workload": {"kind": "prompt_sweep", "prompt_tokens": 96, "output_tokens": 4, "requests": 2}},
    ],
}


@pytest.fixture
def placed(project: Project) -> Project:
    project.fake_engine("--tokens-per-second", "2000", program="placed_engine.py")
    project.fake_gpu("a GPU that is made up")
    write(project, ON_HOST)
    return project


def write(project: Project, on_host: object) -> None:
    experiment = {"question": "Which way is fastest?", "measures": "load", "hosts": {"made-up": on_host}}
    for file, content in {"hosts/made-up": HOST, "e99_arms": experiment}.items():
        (project.root / "experiments" / f"{file}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def measure(project: Project) -> str:
    command = ["-m", "spillway.measure", "e99_arms", "--host", "made-up"]
    done = project.run("python", *command, timeout_s=110)
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


def table(project: Project, name: str) -> pd.DataFrame:
    return parquet.read(project.root / f"data/made-up/e99_arms.{name}.parquet")


def test_arms_are_measured_in_turn_and_failures_are_rows(placed: Project) -> None:
    said = measure(placed)
    assert said.startswith("0\n"), said
    arms = table(placed, "arms")
    due = [(boot, arm) for boot in (0, 1) for arm in ARMS if (boot, arm) != (1, "placed at random")]
    assert list(zip(arms["boot"], arms["arm"], strict=True)) == due
    first = arms[arms["boot"] == 0].set_index("arm")
    assert first["outcome"].to_dict() == dict.fromkeys(list(ARMS)[:3], "served") | dict.fromkeys(list(ARMS)[3:], "failed")
    assert "no proof of placement" in first.loc["no proof", "message"]
    assert "proves plan 000000000000" in first.loc["another plan's proof", "message"]
    assert "was ended by SIGKILL" in first.loc["dies at once", "message"]
    assert json.loads(first.loc["dies at once", "arguments"]) == {"die-after-requests": 0}
    # A quarter of 16 experts in each of 4 layers, on the host by the proof, rounded up to pages and no further.
    assert first.loc["placed", "host_experts"] == 16
    assert 16 * 2 * 3 * 128 * 256 <= first.loc["placed", "host_bytes"] <= 8 * (2 << 20)
    assert pd.isna(first.loc["all in VRAM", "plan_sha256"]) and pd.isna(first.loc["all in VRAM", "host_bytes"])
    assert first.loc["placed", "plan_sha256"] != first.loc["placed at random", "plan_sha256"]
    assert set(first["routing"]) == {"synthetic: 4 experts (seed 0) get 0.25 of picks"}
    # Every arm that served has the boots and cells that it asks for; the rows say which share of picks was in force.
    cells = table(placed, "cells")
    assert set(cells["requests_ok"]) == {2}
    shares = {"cold_share=0.05": 0.05, "cold_share=0.25": 0.25, "longer": 0.25}
    assert list(zip(cells["boot"], cells["arm"], cells["cell"], cells["cold_share_fraction"], strict=True)) == [
        (boot, arm, cell, share)
        for boot, arm in due
        if arm in list(ARMS)[:3]
        for cell, share in shares.items()
        if arm != "placed at random" or cell == "longer"
    ]
    # The made-up server's counts rise by a call; each cell of the arm that counts has what rose during it, the others nothing.
    counts = cells[["decode_steps", "host_reads", "host_read_bytes"]]
    assert counts[cells["arm"] == "placed at random"].to_numpy().tolist() == [[10, 70, 7000]]
    assert counts[cells["arm"] != "placed at random"].isna().all(axis=None)
    requests = table(placed, "requests")
    assert set(requests["arm"]) == set(list(ARMS)[:3]) and set(requests["cold_share_fraction"]) == {0.05, 0.25}
    assert set(table(placed, "chunks")["arm"]) == set(list(ARMS)[:3])


def test_arms_that_differ_in_the_cold_share_alone_share_a_start(placed: Project) -> None:
    routing = ON_HOST["routing"]
    assert isinstance(routing, dict)
    arms = {
        "5 % cold": {"plan": PLAN, "routing": routing | {"cold_share": 0.05}},
        "uniform": {"plan": PLAN, "routing": routing},
        "all in VRAM": {},
    }
    cells = [{"workload": {"kind": "prompt_sweep", "prompt_tokens": 96, "output_tokens": 4, "requests": 2}}]
    write(placed, ON_HOST | {"arms": arms, "cells": cells})
    said = measure(placed)
    assert said.startswith("0\n"), said
    assert said.count("uniform: served by the start of 5 % cold, with another cold share") == 2, "once in each boot"
    starts = sorted(path.name for path in placed.root.glob("runs/made-up/e99_arms/*/boot*"))
    assert starts == ["boot0 5 % cold", "boot0 all in VRAM", "boot1 5 % cold", "boot1 all in VRAM"]
    rows = table(placed, "arms")
    assert list(rows["outcome"]) == ["served"] * 6
    assert list(rows[rows["boot"] == 0]["plan_sha256"].isna()) == [False, False, True]
    for boot in (0, 1):
        one, other, _ = rows[rows["boot"] == boot].to_dict("records")
        assert (one["plan_sha256"], one["startup_s"]) == (other["plan_sha256"], other["startup_s"])
    found = table(placed, "cells")
    assert list(found["cold_share_fraction"]) == [0.05, 0.25, 0.25] * 2
    # The same prompts again: what the first arm left in the prefix cache must not answer the second's.
    assert set(found["marks"]) == {"too_few_samples: 2 of 5 for a median"} and set(found["cached_prompt_tokens"]) == {0}


def test_where_no_arm_serves_nothing_is_published(placed: Project) -> None:
    write(placed, ON_HOST | {"boots": 1, "arms": {name: ARMS[name] for name in ("no proof", "dies at once")}})
    said = measure(placed)
    assert said.startswith("1\n") and "spillway: no arm gave every cell" in said and "Traceback" not in said, said
    assert not list((placed.root / "data/made-up").glob("*"))


def test_a_plan_that_cannot_be_made_ends_before_any_server_starts(placed: Project) -> None:
    write(placed, ON_HOST | {"arms": {"placed": {"plan": {"file": "plan.json"}}}})
    said = measure(placed)
    assert said.startswith("1\n") and "hosts.made-up.arms.placed.plan: " in said and "plan.json: no such file" in said, said
    assert not list(placed.root.glob("runs/*/*/*/boot*"))
