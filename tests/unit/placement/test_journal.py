"""The journal of swaps: it round-trips, plan and journal give the residency, and one that lies is found."""

import pytest

from spillway.placement.journal import (
    AuditRecord,
    EndRecord,
    Journal,
    JournalError,
    SwapRecord,
    TrafficRecord,
    journal_path,
    load_journal,
    residency_after,
)

HOST = {"a": (1, 4, 6), "b": ()}


def swapped(up, down, step=1, layer="a", outcome="done"):
    return SwapRecord(
        step=step, t_s=1.5, layer=layer, promoted=up, demoted=down, bytes=18, copy_s=0.1, map_s=0.2, outcome=outcome
    )


def audited(expert, memory, step=1, found="aa"):
    return AuditRecord(
        step=step, t_s=1.5, layer="a", tensor="w2_weight", expert=expert, memory=memory, loaded="aa", in_place=found
    )


TRAFFIC = TrafficRecord(step=1, t_s=1.0, reads=10, host_reads=3)
STOPPED = EndRecord(step=9, t_s=2.0, reason="no such page")


def test_a_journal_reads_back_as_written(tmp_path):
    records = [TRAFFIC, swapped(1, 2), audited(2, "host"), swapped(4, 5, 2, outcome="not promoted"), STOPPED]
    journal = Journal(tmp_path, 3)
    for record in records:
        journal.write(record)
    assert load_journal(journal_path(tmp_path, 3)) == records
    # A server that starts again starts its journal again.
    Journal(tmp_path, 3).write(TRAFFIC)
    assert load_journal(journal_path(tmp_path, 3)) == [TRAFFIC]


def test_a_line_without_its_end_is_not_there_yet(tmp_path):
    path = tmp_path / "journal0.jsonl"
    whole = swapped(1, 2).model_dump_json()
    path.write_text(f"{whole}\n{whole[:20]}")
    assert load_journal(path) == [swapped(1, 2)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{}\n", "line 1"), ("\n", "line 1"), ('{"kind": "swop"}\n', "swop"), ('{"kind": "swap", "step": -1}\n', "step")],
)
def test_a_line_that_is_no_record_is_named(tmp_path, text, fault):
    path = tmp_path / "journal0.jsonl"
    path.write_text(text)
    with pytest.raises(JournalError, match=r"journal0\.jsonl, line 1") as error:
        load_journal(path)
    assert fault in str(error.value)


def test_no_journal_is_an_error(tmp_path):
    with pytest.raises(JournalError, match="no journal of swaps"):
        load_journal(tmp_path / "journal0.jsonl")


def test_plan_and_journal_give_the_residency():
    records = [
        TRAFFIC,
        swapped(1, 3),
        audited(3, "host"),
        audited(1, "gpu"),
        swapped(4, 2, 2, outcome="not promoted"),
        swapped(6, 0, 3, outcome="not demoted"),
        STOPPED,
        swapped(4, 2, 10, outcome="not promoted"),
    ]
    assert residency_after(HOST, records, 8, classes=2) == {"a": {3, 4}, "b": set()}
    assert residency_after(HOST, [], 8, classes=2) == {"a": {1, 4, 6}, "b": set()}


LIES = {
    "promoted from the GPU": ([swapped(2, 3)], "expert 2 was promoted but was not on the host"),
    "promoted twice": ([swapped(1, 3), swapped(1, 5)], "record 2: a: expert 1 was promoted"),
    "demoted from the host": ([swapped(1, 4)], "expert 4 was to be demoted but was on the host"),
    "demoted itself": ([swapped(1, 1)], "expert 1 was to be demoted"),
    "another class": ([swapped(1, 2)], "cannot change places"),
    "no such expert": ([swapped(1, 9)], "experts 0 to 7, found 9"),
    "no such layer": ([swapped(1, 3, layer="c")], "no layer c"),
    "back in time": ([swapped(1, 3, 5), swapped(4, 2, 4)], "step 4 after step 5"),
    "moved after the end": ([STOPPED, swapped(1, 3, 9)], "moved after following stopped"),
    "audited elsewhere": ([swapped(1, 3), audited(3, "gpu")], "lay in gpu memory, due: host"),
    "other bytes": ([audited(1, "host", found="bb")], "differs from what was loaded"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_journal_that_cannot_be_true_is_found(lie):
    records, fault = LIES[lie]
    with pytest.raises(JournalError, match=fault):
        residency_after(HOST, records, 8, classes=2)
