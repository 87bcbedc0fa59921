"""One tensor over two memories: every byte of every expert is backed, by the memory the plan says, once."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.placement.layout import (
    PAGE_BYTES,
    exchange_slot_bytes,
    placed_layout,
    plan_layout,
    spare_layout,
)

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


@settings(deadline=None)
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


@settings(deadline=None)
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


@settings(deadline=None)
@given(st.integers(1, 200) | st.sampled_from([64, 128, 192]), st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19)))
def test_layers_of_one_model_can_share_staging_buffers(size, first, second):
    units = {plan_layout(20, size, host, 64).unit_bytes for host in (first, second)}
    assert units == {size if size % 64 == 0 else 64}


@pytest.mark.parametrize(("experts", "size", "host"), [(4, 8, [4]), (4, 8, [-1]), (0, 8, []), (4, 0, [])])
def test_nonsense_is_an_error(experts, size, host):
    with pytest.raises(ValueError):
        plan_layout(experts, size, host)


# Experts that change places

SIZES = st.integers(1, 3 * PAGE_BYTES) | st.sampled_from([6 * MIB, 3 * MIB, 3 * MIB // 2, MIB // 2, 1_280_000])


@settings(deadline=None)
@given(SIZES, st.integers(2, 20), st.data())
def test_experts_of_one_class_fit_into_each_others_places_and_into_spare_ones(size, experts, data):
    host = data.draw(st.sets(st.integers(0, experts - 1), min_size=1, max_size=experts - 1))
    most = data.draw(st.sampled_from([1, 2, 4, 8]))
    layout = placed_layout(experts, size, host, most)
    assert layout.classes <= most
    places = layout.places()
    spare = spare_layout(layout, 2)
    assert spare.unit_bytes == layout.unit_bytes and len(spare.places()) == 2 * layout.classes
    shapes = {}
    for expert, place in [*enumerate(places), *enumerate(spare.places())]:
        kind = expert % layout.classes
        shape = (place.inner_bytes, len(place.units))
        assert shapes.setdefault(kind, shape) == shape
        assert list(place.units) == list(range(place.units[0], place.units[0] + len(place.units)))
        assert place.inner_bytes + size <= len(place.units) * layout.unit_bytes
    for expert, place in enumerate(places):
        assert place.memory == ("host" if expert in host else "gpu")
        assert place.offset_bytes + place.inner_bytes == expert * layout.stride_bytes


@settings(deadline=None)
@given(SIZES, st.integers(2, 20), st.data())
def test_what_an_expert_occupies_is_the_same_in_every_layer(size, experts, data):
    slots = set()
    for _ in range(3):
        host = data.draw(st.sets(st.integers(0, experts - 1), min_size=1, max_size=experts - 1))
        layout = placed_layout(experts, size, host, 8)
        slots.add((layout.slot_bytes, layout.classes, layout.unit_bytes))
    assert len(slots) == 1


def test_what_moving_costs_the_30b_shape():
    host = range(90, 128)
    for size, classes in ((6 * MIB, 1), (3 * MIB, 2)):
        packed, still = placed_layout(128, size, host, 2), plan_layout(128, size, host)
        assert packed == still and packed.classes == classes
        assert spare_layout(packed, 4).gpu_bytes == 4 * 6 * MIB
    # For any two to change places, each half page is left empty.
    free = placed_layout(128, 3 * MIB, host, 1)
    assert free.classes == 1 and free.unit_bytes == 4 * MIB, "an expert is mapped by one call"
    assert (free.host_bytes, free.gpu_bytes) == (38 * 4 * MIB, 90 * 4 * MIB)
    assert exchange_slot_bytes(6 * MIB, 1) == 6 * MIB


def test_without_following_the_layout_is_the_tightest():
    assert placed_layout(8, 1_280_000, [1], None) == plan_layout(8, 1_280_000, [1])
