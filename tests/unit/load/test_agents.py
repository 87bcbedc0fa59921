"""The committed distributions: complete, drawn as fitted, and what the recorded sessions give when fitted again."""

import io
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spillway.load.agents import DISTRIBUTIONS, HEADER, PROBABILITIES, SHARES, AgentModel, fit
from spillway.load.prompts import fresh

COMMITTED = Path(__file__).resolve().parents[3] / "data" / "workloads" / "agent_turns.csv"
TRIAL_DATA = os.environ.get("SPILLWAY_TRIAL_DATA")


def test_the_committed_distributions_are_complete_and_ordered() -> None:
    model = AgentModel.read(COMMITTED)
    for name in DISTRIBUTIONS:
        assert (np.diff(model.quantiles[name]) >= 0).all() and model.quantiles[name][0] >= 0
    assert all(0 < model.shares[name] < 1 for name in SHARES)
    assert "kv-cache-tester" in COMMITTED.read_text().partition("quantity,")[0]  # the source stands in the file


def test_draws_have_the_fitted_quantiles() -> None:
    model, random = AgentModel.read(COMMITTED), fresh("draws")
    for name in DISTRIBUTIONS:
        drawn = np.array([model.draw(name, random) for _ in range(4000)])
        for probability in (0.25, 0.5, 0.75, 0.9):
            value = np.quantile(drawn, probability)
            below, above = (np.interp(probability + step, PROBABILITIES, model.quantiles[name]) for step in (-0.04, 0.04))
            assert below - 1 <= value <= above + 1, (name, probability)
    shares = [model.happens("turn_end_fraction", random) for _ in range(4000)]
    assert np.mean(shares) == pytest.approx(model.shares["turn_end_fraction"], abs=0.02)


def test_fit_on_worked_sessions() -> None:
    columns = ["session", "request", "input_tokens", "output_tokens", "think_time", "stop", "blocks", "common_blocks"]
    rows = [
        ("a", 0, 1000, 100, 0.0, "tool_use", 15, 0),
        ("a", 1, 1400, 50, 3.0, "end_turn", 21, 15),  # grew by 300 beside the answer, after a tool
        ("a", 2, 1500, 70, 60.0, "tool_use", 23, 21),  # grew by 50, after the person wrote
        ("a", 3, 640, 10, 5.0, "tool_use", 10, 2),  # another context
        ("b", 0, 2000, 20, 0.0, "tool_use", 31, 0),
    ]
    found = fit(pd.DataFrame(rows, columns=columns)).set_index(["quantity", "probability"])
    median = {name: found.loc[(name, 0.5), "value"] for name in DISTRIBUTIONS}
    assert median == {
        "first_context_tokens": 1000.0,  # of 1000, 640 and 2000
        "tool_result_tokens": 300.0,
        "message_tokens": 50.0,
        "output_tokens": 50.0,
        "tool_s": 3.0,
        "person_s": 60.0,
    }
    shares = found.reset_index().set_index("quantity").value
    assert shares["turn_end_fraction"] == 0.5
    assert shares["replaced_fraction"] == pytest.approx(1 / 3, abs=1e-4)


def test_a_file_that_lacks_something_is_named(tmp_path: Path) -> None:
    path = tmp_path / "turns.csv"
    path.write_text(COMMITTED.read_text().replace("tool_s,0.5", "tool_s,0.6"))
    with pytest.raises(ValueError, match=r"turns\.csv: tool_s: found quantiles at"):
        AgentModel.read(path)
    path.write_text("\n".join(line for line in COMMITTED.read_text().split("\n") if "replaced_fraction" not in line))
    with pytest.raises(ValueError, match="replaced_fraction: found 0 rows"):
        AgentModel.read(path)


@pytest.mark.skipif(TRIAL_DATA is None, reason="SPILLWAY_TRIAL_DATA names no folder with agent_sessions.parquet")
def test_the_committed_file_is_the_fit_of_the_recorded_sessions() -> None:
    assert TRIAL_DATA is not None
    fitted = fit(pd.read_parquet(Path(TRIAL_DATA) / "agent_sessions.parquet"))
    assert COMMITTED.read_text() == HEADER + fitted.to_csv(index=False)
    read_again = pd.read_csv(io.StringIO(COMMITTED.read_text()), comment="#")
    outputs = read_again[read_again.quantity == "output_tokens"].set_index("probability").value
    # Anchors published with the data.
    assert [outputs[p] for p in (0.1, 0.5, 0.9, 0.99)] == pytest.approx([105, 216, 898, 3686], rel=0.01)
