"""Progress: a bar on a terminal, lines elsewhere, and a time left that is arithmetic."""

import io

from spillway.load import progress
from spillway.load.progress import Progress, time_left


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_time_left_is_the_pace_so_far() -> None:
    assert time_left(0, 10, 5.0) == ""
    assert time_left(5, 10, 5.0) == ", 5 s left"
    assert time_left(1, 10, 20.0) == ", 3 min 0 s left"
    assert time_left(10, 10, 5.0) == ""


def test_a_terminal_gets_a_bar_that_is_redrawn() -> None:
    stream = Terminal()
    bar = Progress("e13", stream)
    bar.update(0, 10)
    bar.update(5, 10)
    bar.close()
    drawn = stream.getvalue().split("\r")
    assert "[..............................] 0/10" in drawn[1]
    assert "[###############...............] 5/10, 0 s left" in drawn[2]
    assert drawn[-1].endswith("e13: 5/10 in 0 s\n")


def test_elsewhere_lines_come_seldom_and_without_escapes(monkeypatch: object) -> None:
    stream = io.StringIO()
    lines = Progress("e13", stream)
    for done in range(100):
        lines.update(done, 100)
    assert stream.getvalue() == ""  # all within one interval
    lines._line_s -= progress.LINE_EVERY_S
    lines.update(99, 100)
    assert stream.getvalue() == ""  # nothing new to say
    lines.update(100, 100)
    lines.close()
    assert stream.getvalue() == "e13: 100/100\ne13: 100/100 in 0 s\n"
