"""The self-check: asks what the cell asked, finds a delay that was put there, and is itself checked by arithmetic."""

import asyncio
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.load import delay, transport
from spillway.load.latency import samples_needed


@given(st.integers(1, 200), st.floats(0.5, 500))
def test_schedule_has_enough_events_at_the_cells_rate_or_above(streams: int, rate_per_s: float) -> None:
    events, gap_s = delay.schedule(streams, rate_per_s)
    assert 1 / gap_s >= rate_per_s * 0.999
    assert events * streams >= samples_needed(0.99)
    assert events * gap_s < 3.0


def measure() -> list[float]:
    with delay.delay_server() as port:
        return asyncio.run(delay.receive_delays_s(port, 4, 50, 0.01))


def test_the_delay_is_a_fraction_of_a_gap() -> None:
    delays_s = measure()
    assert len(delays_s) == 200
    assert min(delays_s) > 0  # one clock: nothing arrives before it was sent
    assert statistics.median(delays_s) < 0.005


def test_a_client_that_is_slow_to_read_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    received = transport._Reads.data_received

    def late(self: transport._Reads, data: bytes) -> None:
        time.sleep(0.003)
        received(self, data)

    quick = statistics.median(measure())
    monkeypatch.setattr(transport._Reads, "data_received", late)
    assert statistics.median(measure()) - quick > 0.0025
