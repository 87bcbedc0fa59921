"""Server-sent events out of bytes, by the WHATWG rules and independent of HTTP.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation. Lines end at CR LF, LF or CR
and nowhere else: str.splitlines would also cut at U+2028, U+2029 and U+0085, which JSON may carry unescaped. `id` and
`retry` govern reconnection, which a load client must never do, so both are read and dropped.
"""

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One dispatched event: its data (UTF-8, lines joined by LF) and its type, "message" if the stream names none."""

    data: bytes
    type: str = "message"


class SseParser:
    """Turns reads of any size into events; the events do not depend on where the reads are cut.

    An event that the stream does not end with an empty line is never dispatched: the standard discards it.
    """

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # pieces of the unfinished line; joined once, so that a long line costs no more
        self._after_cr = False  # the last byte was CR, so that an LF now belongs to it
        self._start: bytes | None = b""  # bytes before we know whether the stream starts with a byte order mark
        self._data: list[bytes] = []
        self._type = b""

    def feed(self, read: bytes) -> list[Event]:
        """The events that this read completes."""
        if self._start is not None:
            read = self._start + read
            if len(read) < len(_BOM) and _BOM.startswith(read):
                self._start = read
                return []
            self._start = None
            read = read.removeprefix(_BOM)
        if self._after_cr and read:
            self._after_cr = False
            read = read.removeprefix(b"\n")
        if b"\r" in read:
            self._after_cr = read.endswith(b"\r")
            read = read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = read.split(b"\n")
        if lines and self._partial:
            lines[0] = b"".join([*self._partial, lines[0]])
            self._partial.clear()
        if rest:
            self._partial.append(rest)
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(Event(b"\n".join(self._data), self._type.decode("utf-8", "replace") or "message"))
                    self._data = []
                self._type = b""
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name == b"event":
                self._type = value
        return events
