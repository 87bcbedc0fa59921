"""How far a cell is: a bar with the time left on a terminal, a plain line now and then elsewhere."""

import sys
import time
from typing import TextIO

BAR_CHARS = 30
LINE_EVERY_S = 30.0


class Progress:
    """Reports how many requests of how many are done; call `update` as often as you like and `close` once."""

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name = name
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._start_s = self._line_s = time.monotonic()
        self._done = self._total = 0

    def update(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        changed, self._done, self._total = done != self._done, done, total
        text = f"{done}/{total}{time_left(done, total, now_s - self._start_s)}"
        if self._terminal:
            full = BAR_CHARS * done // max(1, total)
            # Erase to the end of the line: this text may be shorter than the last one.
            self._stream.write(f"\r{self.name} [{'#' * full}{'.' * (BAR_CHARS - full)}] {text}\x1b[K")
            self._stream.flush()
        elif changed and now_s - self._line_s >= LINE_EVERY_S:
            self._line_s = now_s
            print(f"{self.name}: {text}", file=self._stream, flush=True)

    def close(self) -> None:
        seconds = time.monotonic() - self._start_s
        start = "\r\x1b[K" if self._terminal else ""
        print(f"{start}{self.name}: {self._done}/{self._total} in {seconds:.0f} s", file=self._stream, flush=True)


def time_left(done: int, total: int, elapsed_s: float) -> str:
    """ ", 1 min 40 s left" at the average pace so far; empty before the first request is done and after the last."""
    if not 0 < done < total:
        return ""
    minutes, seconds = divmod(round(elapsed_s / done * (total - done)), 60)
    return f", {minutes} min {seconds} s left" if minutes else f", {seconds} s left"
