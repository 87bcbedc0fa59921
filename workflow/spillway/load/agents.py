"""How coding agents behave: distributions fitted to recorded sessions, and lengths and pauses drawn from them.

    python -m spillway.load.agents SESSIONS.parquet > data/workloads/agent_turns.csv

No common family fits these data (a log-normal misses the answer lengths by 0.09 in the Kolmogorov-Smirnov distance, tool
times by 0.15), so each distribution is kept as its quantiles and drawn by interpolating between them.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spillway.spec.shown import shown

if TYPE_CHECKING:
    import pandas as pd

PROBABILITIES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
MOST = 1e12  # that a length or a pause can be
KEPT_FRACTION = 0.95  # of the previous context that must lead this one, or the request starts another context

DISTRIBUTIONS = {
    "first_context_tokens": "prompt of a session's first request, or of the first after its context was replaced",
    "tool_result_tokens": "what the context grows by beside the answer, after an answer that called a tool",
    "message_tokens": "the same after an answer that ended the agent's turn: what the person wrote",
    "output_tokens": "answer",
    "tool_s": "from an answer that called a tool to the next request",
    "person_s": "from an answer that ended the agent's turn to the next request",
}
SHARES = {
    "turn_end_fraction": "answers that end the agent's turn, of those whose reason to stop is known",
    "replaced_fraction": "requests whose context does not continue the previous one",
}


@dataclass(frozen=True)
class AgentModel:
    """Quantiles of each distribution at PROBABILITIES, and each share."""

    quantiles: Mapping[str, np.typing.NDArray[np.float64]]
    shares: Mapping[str, float]

    @classmethod
    def read(cls, path: Path) -> "AgentModel":
        """Raises FileNotFoundError naming the file, or ValueError naming what it lacks."""
        import pandas as pd  # here, so that other workloads do not wait for it

        from spillway.record.csv_table import read_csv

        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file; run from the project's root, or set `distributions`")
        try:
            rows = read_csv(path, comment="#")
        except (OSError, ValueError) as error:  # pandas' own errors and UnicodeDecodeError are ValueErrors
            raise ValueError(f"{path}: cannot be read as CSV: {str(error)[:300]}") from None
        if missing := [name for name in ("quantity", "probability", "value") if name not in rows]:
            raise ValueError(f"{path}: no column {missing[0]!r}; expected quantity, probability, value")
        if not pd.api.types.is_numeric_dtype(rows.value) or not pd.api.types.is_numeric_dtype(rows.probability):
            raise ValueError(f"{path}: found a probability or value that is no number")
        if not rows.value.between(0, MOST).all():
            raise ValueError(f"{path}: found a value that is negative, absent or above {MOST:g}; expected lengths and seconds")
        quantiles = {}
        for name in DISTRIBUTIONS:
            found = rows[rows.quantity == name]
            if tuple(found.probability) != PROBABILITIES:
                raise ValueError(
                    f"{path}: {name}: found quantiles at {shown(list(found.probability), 300)}, not {PROBABILITIES}"
                )
            quantiles[name] = found.value.to_numpy(dtype=np.float64)
        shares = {}
        for name in SHARES:
            found = rows[rows.quantity == name]
            if len(found) != 1:
                raise ValueError(f"{path}: {name}: found {len(found)} rows; expected one")
            shares[name] = float(found.value.iloc[0])
        return cls(quantiles, shares)

    def draw(self, name: str, random: np.random.Generator) -> float:
        """One value: inverse of the distribution, interpolated on log(1 + x), since the tails span four decades."""
        return float(np.expm1(np.interp(random.random(), PROBABILITIES, np.log1p(self.quantiles[name]))))

    def happens(self, name: str, random: np.random.Generator) -> bool:
        return bool(random.random() < self.shares[name])


def fit(sessions: "pd.DataFrame") -> "pd.DataFrame":
    """Quantiles and shares of recorded sessions, in rows quantity, probability, value, samples.

    Wants the columns of a trace (spec/workload.py, Trace) and `stop`. Requests without counts are left out. Growth below
    zero (a context trimmed a little) counts as zero.
    """
    import pandas as pd

    requests = sessions[sessions.input_tokens.notna()].sort_values(["session", "request"], kind="stable")
    session = requests.groupby("session", sort=False)
    before = session[["input_tokens", "output_tokens", "blocks", "stop"]].shift(1)
    first = ~requests.session.duplicated()
    replaced = ~first & (requests.common_blocks < KEPT_FRACTION * before.blocks)
    continued = ~first & ~replaced
    growth = (requests.input_tokens - before.input_tokens - before.output_tokens).clip(lower=0)
    after_tool = continued & (before.stop == "tool_use")
    after_turn = continued & (before.stop == "end_turn")
    samples = {
        "first_context_tokens": requests.input_tokens[first | replaced],
        "tool_result_tokens": growth[after_tool],
        "message_tokens": growth[after_turn],
        "output_tokens": requests.output_tokens[requests.output_tokens > 0],
        "tool_s": requests.think_time[after_tool].dropna(),
        "person_s": requests.think_time[after_turn].dropna(),
    }
    rows = [
        (name, probability, round(float(values.quantile(probability)), 2), len(values))
        for name, values in samples.items()
        for probability in PROBABILITIES
    ]
    stops = int(after_tool.sum() + after_turn.sum())
    rows.append(("turn_end_fraction", np.nan, round(float(after_turn.sum() / stops), 4), stops))
    rows.append(("replaced_fraction", np.nan, round(float(replaced.sum() / (~first).sum()), 4), int((~first).sum())))
    return pd.DataFrame(rows, columns=["quantity", "probability", "value", "samples"])


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m spillway.load.agents SESSIONS.parquet > data/workloads/agent_turns.csv")
    import pandas as pd

    path = Path(sys.argv[1])
    sys.stdout.write(HEADER + fit(pd.read_parquet(path)).to_csv(index=False))


HEADER = """\
# Distributions of coding-agent requests, fitted by: python -m spillway.load.agents agent_sessions.parquet
# Source: traces of the public repository callanjfox/kv-cache-tester (Apache-2.0), 710 of its 739 sessions; counts and
# times only. Columns: quantity (see workflow/spillway/load/agents.py), probability of the quantile (empty for a share),
# value in the unit that ends the name, number of recorded requests behind it.
"""

if __name__ == "__main__":
    main()
