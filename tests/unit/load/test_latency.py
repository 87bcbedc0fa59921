"""Latency definitions on worked values, and percentiles against numpy where numpy may speak."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.load import latency
from spillway.load.latency import TooFewSamples, percentile
from spillway.record.samples import samples_needed

# A request due at 10.0, sent at 10.5; twelve tokens in three chunks of four at 11.0, 11.2, 11.4; usage at 11.9.
SCHEDULED, SENT, FIRST, LAST = 10.0, 10.5, 11.0, 11.4


def test_worked_request() -> None:
    assert latency.ttft_s(SENT, FIRST) == pytest.approx(0.5)
    assert latency.e2e_s(SENT, LAST) == pytest.approx(0.9)
    assert latency.response_s(SCHEDULED, LAST) == pytest.approx(1.4)
    assert latency.tpot_s(FIRST, LAST, 4, 12) == pytest.approx(0.4 / 8)  # not / 11 and not / 2
    assert latency.chunk_gaps_s([11.0, 11.2, 11.4]) == pytest.approx([0.2, 0.2])
    assert latency.ttfa_s(SENT, 11.2) == pytest.approx(0.7)


def test_what_cannot_be_known_is_none() -> None:
    assert latency.ttfa_s(SENT, None) is None
    assert latency.tpot_s(FIRST, LAST, None, 12) is None
    assert latency.tpot_s(FIRST, LAST, 4, None) is None
    assert latency.tpot_s(FIRST, FIRST, 12, 12) is None  # all in one chunk
    assert latency.chunk_gaps_s([11.0]) == []


def test_throughput_counts_tokens_where_they_arrive() -> None:
    chunks = [(0.5, 4), (1.0, 4), (1.5, 4), (2.0, 4)]
    assert latency.throughput_tok_per_s(chunks, 1.0, 2.0) == 8.0
    assert latency.throughput_tok_per_s(chunks, 0.0, 4.0) == 4.0
    with pytest.raises(ValueError, match="empty"):
        latency.throughput_tok_per_s(chunks, 1.0, 1.0)


@pytest.mark.parametrize(("fraction", "needed"), [(0.5, 5), (0.9, 29), (0.05, 59), (0.95, 59), (0.01, 299), (0.99, 299)])
def test_samples_needed_are_those_of_wilks(fraction: float, needed: int) -> None:
    assert samples_needed(fraction) == needed
    tail = max(fraction, 1 - fraction)
    assert tail**needed <= 0.05 < tail ** (needed - 1)


def test_too_few_samples_give_no_percentile() -> None:
    assert percentile([1.0] * 58, 0.95) == TooFewSamples(58, 59)
    assert percentile([1.0] * 59, 0.95) == 1.0
    assert str(percentile([], 0.5)) == "too few samples: 0 of 5"
    for fraction in (0.0, 1.0, 1.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            samples_needed(fraction)


@given(st.lists(st.floats(-1e6, 1e6), min_size=59, max_size=120), st.sampled_from([0.05, 0.1, 0.5, 0.9, 0.95]))
def test_percentile_is_numpys(values: list[float], fraction: float) -> None:
    assert percentile(values, fraction) == pytest.approx(float(np.quantile(values, fraction)), abs=1e-9)


def test_failures_count_as_infinitely_slow() -> None:
    times = [0.1] * 95
    assert percentile(times, 0.95) == 0.1
    assert percentile(times, 0.95, failures=5) == math.inf  # position 94.05 of 100: the first failure takes part
    assert percentile(times, 0.9, failures=5) == 0.1
    assert percentile([], 0.5, failures=5) == math.inf
    assert not math.isnan(percentile([0.1] * 3, 0.5, failures=3))  # type: ignore[arg-type]
