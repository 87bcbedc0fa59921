"""Rows of the table `memory`: what was predicted, what was found, and where each of the two comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spillway.fit.budget import Budget, Place


@dataclass(frozen=True)
class Amount:
    """Bytes and where they come from, such as `computed`, `checkpoint header`, `engine log` or `process memory`."""

    bytes: int
    source: str


def amounts(found: Budget, place: Place) -> dict[str, Amount]:
    """The lines of a budget at one place as amounts by component; the source is that of a component's first line."""
    sources: dict[str, str] = {}
    for line in found.lines:
        sources.setdefault(line.component, line.source)
    return {name: Amount(size, sources[name]) for name, size in found.by_component(place).items()}


def memory_rows(
    run: str,
    boot: int,
    place: str,
    predicted: Mapping[str, Amount],
    measured: Mapping[str, Amount],
) -> list[dict[str, Any]]:
    """One row for each component of either side, in the order of `predicted`; a side without a number stays null.

    `place` is where the bytes lie: `gpu 0`, `gpu 1`, ..., `host`, or `checkpoint`.
    """
    names = [*predicted, *(name for name in measured if name not in predicted)]
    return [
        {
            "run": run,
            "boot": boot,
            "place": place,
            "component": name,
            "predicted_bytes": predicted[name].bytes if name in predicted else None,
            "predicted_from": predicted[name].source if name in predicted else None,
            "measured_bytes": measured[name].bytes if name in measured else None,
            "measured_from": measured[name].source if name in measured else None,
        }
        for name in names
    ]
