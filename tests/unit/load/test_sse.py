"""SSE framing against the standard's own examples, an independent reader, and every way to cut the same bytes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import PLAIN, UNICODE, joined

from spillway.load.sse import Event, SseParser

# An empty line too many, as of a CR LF that is taken for two line ends, would part what belongs together here.
LINES = [{"text": "event: add\nid: 1\ndata: 1\ndata: 2\n\n"}, {"text": "data: 3\ndata: 4\n\n"}]


def parse(body: bytes, cuts: tuple[int, ...] = ()) -> list[Event]:
    parser, events = SseParser(), []
    for start, stop in zip((0, *cuts), (*cuts, len(body)), strict=True):
        events += parser.feed(body[start:stop])
    return events


def whole_stream(body: bytes) -> list[Event]:
    """The standard's algorithm on the whole body at once, written down line by line."""
    events, data, kind = [], "", ""
    text = body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    lines = re.split("\r\n|\n|\r", text)
    for line in lines[:-1]:  # what follows the last line end is no line
        if line == "":
            if data:
                events.append(Event(data[:-1].encode("utf-8", "surrogateescape"), kind or "message"))
            data, kind = "", ""
            continue
        if line.startswith(":"):
            continue
        field, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if field == "data":
            data += value + "\n"
        elif field == "event":
            kind = value
    return events


@pytest.mark.parametrize(
    ("body", "events"),
    [
        # The examples of the standard, section 9.2.6.
        ("data: YHOO\ndata: +2\ndata: 10\n\n", [Event(b"YHOO\n+2\n10")]),
        (
            ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [Event(b"first event"), Event(b"second event"), Event(b" third event")],
        ),
        ("data\n\ndata\ndata\n\ndata:", [Event(b""), Event(b"\n")]),
        ("data:test\n\ndata: test\n\n", [Event(b"test"), Event(b"test")]),
        ("event: add\ndata: 7\n\ndata: 8\n\n", [Event(b"7", "add"), Event(b"8")]),
        ("event: lost\n\ndata: 1\n\n", [Event(b"1")]),  # without data nothing is dispatched, and the type is forgotten
        ("\ufeffdata: 1\n\n\ufeffdata: 2\n\n", [Event(b"1")]),  # a mark counts at the start only
        ("data: unfinished\n", []),
        ("datas: 1\nDATA: 2\n data: 3\n\n", []),
    ],
)
def test_the_standard(body: str, events: list[Event]) -> None:
    assert parse(body.encode()) == events
    assert whole_stream(body.encode()) == events


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("steps", [PLAIN, UNICODE, LINES], ids=["plain", "unicode", "lines"])
def test_cut_at_every_byte(steps: list[dict[str, object]], newline: str) -> None:
    body = joined(steps).replace("\n", newline).encode()
    events = parse(body)
    assert len(events) == len(steps)
    for cut in range(len(body) + 1):
        assert parse(body, (cut,)) == events
    assert parse(body, tuple(range(len(body)))) == events  # one byte at a time


FRAGMENTS = st.sampled_from(
    ["data:", "data: ", "data", "event: x", ":", ": c", "id: 1", "\n", "\n\n", "\r", "\r\n", "a", "\u2028", "\ufeff", " ", "é"]
)


@given(st.lists(FRAGMENTS, max_size=30), st.lists(st.integers(0, 200), max_size=8))
def test_any_stream_cut_anywhere_reads_as_the_standard_says(fragments: list[str], cuts: list[int]) -> None:
    body = "".join(fragments).encode()
    assert parse(body, tuple(sorted(cut % (len(body) + 1) for cut in cuts))) == whole_stream(body)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes(body: bytes, cut: int) -> None:
    # The standard decodes before it splits; an invalid character takes nothing else with it.
    assert parse(body, (min(cut, len(body)),)) == parse(body)


def test_a_long_event_in_small_reads_costs_no_more_than_its_length() -> None:
    parser = SseParser()
    for _ in range(200_000):
        assert parser.feed(b"x") == []
    assert sum(map(len, parser._partial)) == 200_000  # kept as pieces, joined once
    parser = SseParser()
    assert [parser.feed(b"data: "), *[parser.feed(b"y" * 10) for _ in range(100_000)]] == [[]] * 100_001
    assert parser.feed(b"\n\n") == [Event(b"y" * 1_000_000)]
