"""One tensor over two memories: every byte of every expert is backed, by the memory the plan says, once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.placement.layout import plan_layout

MIB = 1 << 20


def storage_of(layout):
    """(memory, byte in that memory's units) of the first and last byte of each expert, read back from the mappings."""
    spans = {}
    for m in layout.mappings:
        start, end = m.expert * layout.stride_bytes, m.expert * layout.stride_bytes + layout.expert_bytes
        low, high = max(start, m.offset_bytes), min(end, m.offset_bytes + layout.unit_bytes)
        assert low < high, "a unit is mapped where no byte of its expert lies"
        at = m.unit * layout.unit_bytes + low - m.offset_bytes
        spans.setdefault(m.expert, []).append((low - start, high - start, m.memory, at))
    return spans


@st.composite
def cases(draw):
    experts = draw(st.integers(1, 40))
    host = draw(st.sets(st.integers(0, experts - 1)))
    return experts, draw(st.integers(1, 40)) * draw(st.sampled_from([1, 4, 16])), host


@given(cases())
def test_every_expert_is_backed_exactly_once_by_its_own_memory(case):
    experts, expert_bytes, host = case
    page = 64
    layout = plan_layout(experts, expert_bytes, host, page)
    spans = storage_of(layout)
    assert sorted(spans) == list(range(experts))
    taken = set()
    for expert, pieces in spans.items():
        pieces.sort()
        assert pieces[0][0] == 0 and pieces[-1][1] == expert_bytes
        assert all(a[1] == b[0] for a, b in pairwise(pieces)), "a hole within an expert"
        assert {memory for _, _, memory, _ in pieces} == {"host" if expert in host else "gpu"}
        for low, high, memory, at in pieces:
            for byte in range(at, at + high - low):
                assert (memory, byte) not in taken, "two experts share a byte"
                taken.add((memory, byte))


@given(cases())
def test_mappings_are_whole_units_that_do_not_overlap(case):
    experts, expert_bytes, host = case
    page = 64
    layout = plan_layout(experts, expert_bytes, host, page)
    offsets = [m.offset_bytes for m in layout.mappings]
    assert all(offset % page == 0 for offset in offsets) and layout.unit_bytes % page == 0
    assert all(b - a >= layout.unit_bytes for a, b in pairwise(offsets))
    assert offsets[0] == 0, "the tensor's own address must be mapped"
    for memory, count in (("host", layout.host_units), ("gpu", layout.gpu_units)):
        assert {m.unit for m in layout.mappings if m.memory == memory} == set(range(count))


def test_experts_of_whole_pages_keep_the_plain_contiguous_tensor():
    layout = plan_layout(128, 6 * MIB, range(90, 128))
    assert layout.stride_bytes == 6 * MIB and layout.unit_bytes == 6 * MIB
    assert (layout.host_bytes, layout.gpu_bytes) == (38 * 6 * MIB, 90 * 6 * MIB)
    assert layout.host_rounding_bytes == layout.gpu_rounding_bytes == 0


def test_half_page_experts_pair_up_so_that_scattered_cold_ones_waste_no_page():
    # Qwen3-30B-A3B, bf16: w2 of one expert is 768 * 2048 * 2 bytes = 3 MiB, one and a half pages.
    cold = [3, 10, 17, 24, 31, 38, 45, 52]  # four even, four odd, none adjacent
    layout = plan_layout(128, 3 * MIB, cold)
    assert layout.host_bytes == 8 * 3 * MIB and layout.host_rounding_bytes == 0
    assert layout.gpu_rounding_bytes == 0


def test_rounding_counts_the_pages_that_no_partner_fills():
    layout = plan_layout(128, 3 * MIB, [0, 2, 4])  # three even experts: no odd one to fill their half pages
    assert layout.host_bytes == 3 * 4 * MIB and layout.host_rounding_bytes == 3 * MIB


def test_all_on_the_host_and_nothing_on_the_host():
    everything = plan_layout(4, 2 * MIB, range(4))
    assert (everything.gpu_bytes, everything.host_bytes) == (0, 8 * MIB)
    nothing = plan_layout(4, 2 * MIB, [])
    assert (nothing.gpu_bytes, nothing.host_bytes) == (8 * MIB, 0)


@pytest.mark.parametrize(("experts", "size", "host"), [(4, 8, [4]), (4, 8, [-1]), (0, 8, []), (4, 0, [])])
def test_nonsense_is_an_error(experts, size, host):
    with pytest.raises(ValueError):
        plan_layout(experts, size, host)
