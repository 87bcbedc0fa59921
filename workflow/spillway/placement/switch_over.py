"""From how many rows on a step stages host experts instead of reading them in place: where the measured costs cross."""

from collections.abc import Sequence

SMALLEST_ROWS = 64


def crossing(rows: Sequence[int], in_place_s: Sequence[float], staged_s: Sequence[float]) -> int | None:
    """The smallest timed number of rows from which on staging is never slower; None if it is slower at the largest."""
    found = None
    for count, in_place, staged in reversed(list(zip(rows, in_place_s, staged_s, strict=True))):
        if staged > in_place:
            break
        found = count
    return found


def rows_to_time(limit: int) -> list[int]:
    """Powers of two from 64 to the limit, and the limit."""
    rows = []
    count = SMALLEST_ROWS
    while count < limit:
        rows.append(count)
        count *= 2
    return [*rows, limit]
