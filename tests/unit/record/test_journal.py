"""A journal holds what was noted, whole lines only, however its writer ended."""

from pathlib import Path

from spillway.record import journal


def test_events_come_back_in_order(tmp_path: Path) -> None:
    journal.note(tmp_path, "started", pid=1)
    journal.note(tmp_path, "stopped", reason="Ctrl-C", again=True)
    assert [event["event"] for event in journal.events(tmp_path)] == ["started", "stopped"]
    assert journal.events(tmp_path)[1]["reason"] == "Ctrl-C"
    assert journal.has(tmp_path, "stopped") and not journal.has(tmp_path, "published")


def test_a_folder_without_a_journal_has_no_events(tmp_path: Path) -> None:
    assert journal.events(tmp_path) == []


def test_a_line_cut_off_at_any_byte_costs_that_line_alone(tmp_path: Path) -> None:
    journal.note(tmp_path, "started")
    whole = len((tmp_path / journal.FILE).read_bytes())
    journal.note(tmp_path, "measured")
    content = (tmp_path / journal.FILE).read_bytes()
    for cut in range(whole, len(content) - 1):
        (tmp_path / journal.FILE).write_bytes(content[:cut])
        journal.note(tmp_path, "published")
        assert [event["event"] for event in journal.events(tmp_path)] == ["started", "published"]
