"""Workloads become the requests that they describe: lengths, reuse, pauses, and nothing that a cache has seen."""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from spillway.load.prompts import Alphabet
from spillway.load.turns import Plan, Turn, plan
from spillway.spec.workload import Workload

ROOT = Path(__file__).resolve().parents[3]
IDS = Alphabet.token_ids(range(10, 2000))
CHECK: TypeAdapter[Workload] = TypeAdapter(Workload)
AGENTS = {
    "kind": "agent_turns",
    "streams": 2,
    "requests": 6,
    "context_limit_tokens": 3000,
    "output_limit_tokens": 64,
    "distributions": ROOT / "data" / "workloads" / "agent_turns.csv",
}


CONTEXTS = {"kind": "contexts", "streams": 1, "context_tokens": 5, "suffix_tokens": 2, "output_tokens": 1, "requests": 1}


def planned(nonce: str = "run", seed: int = 1, cell: str = "cell", **fields: Any) -> Plan:
    return plan(CHECK.validate_python(fields), IDS, seed=seed, nonce=nonce, cell=cell)


def take(turns: Iterator[Turn] | None, count: int) -> list[Turn]:
    assert turns is not None
    return list(itertools.islice(turns, count))


def tokens(turn: Turn) -> list[int]:
    found: list[int] = json.loads(turn.prompt)
    return found


def common(first: list[int], second: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def test_prompt_sweep() -> None:
    work = planned(kind="prompt_sweep", prompt_tokens=500, output_tokens=9, requests=6, streams=2)
    assert (len(work.streams), work.measured, work.measured_in_all, work.warmup) == (2, 3, 6, 1)
    turns = [turn for stream in work.streams for turn in take(stream, 5)]
    assert {(len(tokens(turn)), turn.prompt_tokens, turn.output_tokens, turn.shared_tokens) for turn in turns} == {
        (500, 500, 9, 0)
    }
    assert len({tuple(tokens(turn)[:16]) for turn in turns}) == 10


def test_cached_prefix() -> None:
    work = planned(kind="cached_prefix", prefix_tokens=300, suffix_tokens=50, streams=3, output_tokens=4, requests=6)
    [prime] = work.prime
    assert (prime.shared_tokens, prime.prompt_tokens, prime.output_tokens) == (0, 350, 1)
    turns = [turn for stream in work.streams for turn in take(stream, 3)]
    for turn in turns:
        assert (turn.prompt_tokens, turn.shared_tokens) == (350, 300)
        assert tokens(turn)[:300] == tokens(prime)[:300]
    suffixes = {tuple(tokens(turn)[300:316]) for turn in [prime, *turns]}
    assert len(suffixes) == 10


def test_contexts() -> None:
    work = planned(kind="contexts", streams=2, context_tokens=400, suffix_tokens=60, output_tokens=5, requests=6)
    for stream in work.streams:
        first, *rest = take(stream, 4)
        assert (first.prompt_tokens, first.shared_tokens) == (400, 0)
        for turn in rest:
            assert (turn.prompt_tokens, turn.shared_tokens) == (400, 340)
            assert common(tokens(first), tokens(turn)) == 340
    assert planned(**CONTEXTS).warmup == 1
    with pytest.raises(ValidationError, match="warmup"):  # the first request reads the context and is never measured
        planned(**CONTEXTS, warmup=0)


@given(st.integers(0, 50), st.floats(0.001, 1.0), st.integers(200, 4000))
@settings(max_examples=25, deadline=None)
def test_agent_turns_stay_within_their_limits_and_share_what_they_say(seed: int, scale: float, limit: int) -> None:
    work = planned(**AGENTS | {"token_scale": scale, "context_limit_tokens": limit, "think_limit_s": 5.0}, seed=seed)
    turns = take(work.streams[0], 40)
    for before, turn in itertools.pairwise(turns):
        assert len(tokens(turn)) == turn.prompt_tokens <= limit
        assert 1 <= turn.output_tokens <= 64
        assert 0 <= turn.wait_s <= 5.0
        shared = common(tokens(before), tokens(turn))
        if turn.shared_tokens:  # the context grew: all of the previous prompt leads this one
            assert shared == turn.shared_tokens == before.prompt_tokens < turn.prompt_tokens
        else:  # a new session
            assert shared < 16


def test_the_seed_decides_the_shape_and_the_nonce_the_tokens() -> None:
    def shape(nonce: str, seed: int) -> list[tuple[int, int, float]]:
        turns = take(planned(**AGENTS, nonce=nonce, seed=seed).streams[1], 20)
        return [(turn.prompt_tokens, turn.output_tokens, turn.wait_s) for turn in turns]

    assert shape("run a", 1) == shape("run b", 1) != shape("run a", 2)
    first, second = (take(planned(**AGENTS, nonce=nonce).streams[0], 1)[0] for nonce in ("run a", "run b"))
    assert common(tokens(first), tokens(second)) < 16
    again = take(planned(**AGENTS, nonce="run a").streams[0], 1)[0]
    assert again.prompt == first.prompt
    # Two cells of one run must not meet either.
    other = take(planned(**AGENTS, nonce="run a", cell="other").streams[0], 1)[0]
    assert common(tokens(first), tokens(other)) < 16


def test_arrivals_follow_an_absolute_schedule() -> None:
    poisson = take(planned(kind="arrivals", rate_per_s=50.0, prompt_tokens=8, output_tokens=2, requests=9).arrivals, 4000)
    gaps = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(poisson)]  # type: ignore[operator]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.1)
    assert variance**0.5 / mean == pytest.approx(1.0, rel=0.1)  # Poisson: as wide as long
    constant = take(
        planned(kind="arrivals", rate_per_s=10.0, burstiness=None, prompt_tokens=8, output_tokens=2, requests=9).arrivals, 5
    )
    assert [turn.at_s for turn in constant] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert len({tuple(tokens(turn)) for turn in poisson[:500]}) == 500


def write_trace(path: Path) -> Path:
    rows = [
        ("s1", 0, 640.0, 30.0, 0.0, 0),
        ("s1", 1, 960.0, 20.0, 4.0, 10),
        ("s1", 2, None, None, None, 0),  # a nested run without counts
        ("s1", 3, 500.0, 10.0, None, 2),
    ]
    columns = ["session", "request", "input_tokens", "output_tokens", "think_time", "common_blocks"]
    pd.DataFrame(rows, columns=columns).to_parquet(path)
    return path


def test_trace_replays_lengths_reuse_and_pauses(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.parquet")
    asked = {"kind": "trace", "path": path, "streams": 1, "requests": 3, "context_limit_tokens": 900, "output_limit_tokens": 25}
    turns = take(planned(**asked, think_scale=0.5).streams[0], 4)
    assert [(t.prompt_tokens, t.output_tokens, t.shared_tokens, t.wait_s) for t in turns] == [
        (640, 25, 0, 0.0),
        (900, 20, 640, 2.0),
        (500, 10, 128, 0.0),
        (640, 25, 0, 0.0),  # the session again, with new tokens
    ]
    assert common(tokens(turns[0]), tokens(turns[1])) == 640
    assert common(tokens(turns[1]), tokens(turns[2])) == 128
    assert common(tokens(turns[0]), tokens(turns[3])) < 16
    scaled = take(planned(**asked, token_scale=0.1, output_scale=0.1).streams[0], 2)
    assert [(t.prompt_tokens, t.output_tokens, t.shared_tokens) for t in scaled] == [(64, 3, 0), (96, 2, 64)]


def test_a_wrong_trace_is_named(tmp_path: Path) -> None:
    asked = {"kind": "trace", "streams": 1, "requests": 1, "context_limit_tokens": 9, "output_limit_tokens": 9}
    with pytest.raises(FileNotFoundError, match=r"none\.parquet: no such trace"):
        planned(**asked, path=tmp_path / "none.parquet")
    pd.DataFrame({"session": ["a"]}).to_parquet(tmp_path / "bare.parquet")
    with pytest.raises(ValueError, match=r"bare\.parquet: found the columns session; missing request"):
        planned(**asked, path=tmp_path / "bare.parquet")
    with pytest.raises(FileNotFoundError, match=r"none\.csv: no such file"):
        planned(**AGENTS | {"distributions": tmp_path / "none.csv"})


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"kind": "prompt_sweep", "prompt_tokens": 5, "output_tokens": 1, "requests": 5, "streams": 2}, "do not share out"),
        ({"kind": "prompt_sweep", "prompt_tokens": 0, "output_tokens": 1, "requests": 5}, "greater than 0"),
        ({"kind": "prompt_sweep", "prompt_tokens": 5, "output_tokens": 1, "requests": 5, "users": 2}, "Extra inputs"),
        (CONTEXTS | {"suffix_tokens": 5}, "leave nothing"),
        (CONTEXTS | {"limit_s": math.inf}, "finite number"),
        ({"kind": "sweep"}, "prompt_sweep"),
    ],
)
def test_a_wrong_workload_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        CHECK.validate_python(fields)


@pytest.mark.parametrize("alphabet", [IDS, Alphabet.words()], ids=["ids", "words"])
def test_no_request_is_longer_than_the_workload_says(alphabet: Alphabet) -> None:
    for fields in (
        {"kind": "prompt_sweep", "prompt_tokens": 500, "output_tokens": 9, "requests": 6, "streams": 2},
        {"kind": "cached_prefix", "prefix_tokens": 300, "suffix_tokens": 50, "streams": 3, "output_tokens": 4, "requests": 6},
        {"kind": "contexts", "streams": 2, "context_tokens": 400, "suffix_tokens": 60, "output_tokens": 5, "requests": 6},
        AGENTS,
    ):
        workload = CHECK.validate_python(fields)
        work = plan(workload, alphabet, seed=3, nonce="n", cell="c")
        assert len(work.streams) == workload.most_streams
        turns = [turn for stream in work.streams for turn in take(stream, 20)]
        assert max(turn.prompt_tokens + turn.output_tokens for turn in turns) <= workload.longest_sequence_tokens
