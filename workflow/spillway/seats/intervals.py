"""How sure q is: a few days of a few developers, resampled, and carried through to seats, servers and money."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spillway.seats.distributions import student_t_quantile
from spillway.seats.errors import SeatsError


@dataclass(frozen=True)
class Interval:
    """A two-sided interval and how it was made."""

    low: float
    high: float
    confidence: float
    method: str


def bootstrap_q(days: pd.DataFrame, draws: int, seed: int, block_days: int = 1) -> NDArray[np.float64]:
    """q of `draws` resampled data sets: first developers, then for each of them blocks of consecutive days.

    days: one row for each developer and day with columns developer, day, stream_s, window_s. Blocks wrap around.
    Raises SeatsError for fewer than two days in all, whose spread says nothing.
    """
    _check_days(days)
    if draws < 1 or block_days < 1:
        raise SeatsError(f"bootstrap: found {draws} draws, blocks of {block_days} days; expected at least 1 of both")
    random = np.random.default_rng(seed)
    groups = [group.sort_values("day") for _, group in days.groupby("developer", sort=True)]
    chosen = random.integers(0, len(groups), size=(draws, len(groups)))
    busy, window = np.zeros(draws), np.zeros(draws)
    for position, group in enumerate(groups):
        stream_s, window_s = group["stream_s"].to_numpy(float), group["window_s"].to_numpy(float)
        blocks = -(-len(group) // block_days)
        rows, slots = np.nonzero(chosen == position)
        for row in np.split(rows, np.arange(1_000, len(rows), 1_000)):  # bounds the memory, not the result
            starts = random.integers(0, len(group), size=(len(row), blocks))
            picked = (starts[:, :, None] + np.arange(block_days)).reshape(len(row), -1)[:, : len(group)] % len(group)
            np.add.at(busy, row, stream_s[picked].sum(axis=1))
            np.add.at(window, row, window_s[picked].sum(axis=1))
        del slots
    return busy / window


def percentile_interval(draws: NDArray[np.float64], confidence: float) -> Interval:
    """The middle `confidence` of the draws."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high), confidence, "bootstrap over developers and days, percentile")


def t_interval(days: pd.DataFrame, confidence: float) -> Interval:
    """Student t interval for the mean of the days' busy shares; for few days wider, and more honest, than percentiles.

    The low end is cut at 0. Raises SeatsError for fewer than two days.
    """
    _check_days(days)
    shares = (days["stream_s"] / days["window_s"]).to_numpy(float)
    half = student_t_quantile((1 + confidence) / 2, len(shares) - 1) * shares.std(ddof=1) / np.sqrt(len(shares))
    return Interval(max(0.0, float(shares.mean() - half)), float(shares.mean() + half), confidence, "Student t over days")


def carried(draws: NDArray[np.float64], of_q: Callable[[float], float], resolution: float = 1e-4) -> NDArray[np.float64]:
    """A quantity of q (seats, servers, a saving) for each draw of q, which is rounded to `resolution` to save work."""
    rounded = np.clip(np.round(draws / resolution), 1, round(1 / resolution) - 1)
    values, where = np.unique(rounded, return_inverse=True)
    results = np.array([of_q(float(value) * resolution) for value in values])
    return results[where]


def range_of_q(of_q: Callable[[float], float], q: float, resolution: float = 1e-5) -> tuple[float, float]:
    """The lowest and highest q around `q` for which a falling whole-number quantity of q, such as seats, stays the same."""
    wanted = of_q(q)

    def edge(inside: float, outside: float) -> float:
        while abs(outside - inside) > resolution:
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if of_q(middle) == wanted else (inside, middle)
        return inside

    return edge(q, q / 2), edge(q, min(2 * q, (1 + q) / 2))


def _check_days(days: pd.DataFrame) -> None:
    if len(days) < 2:
        raise SeatsError(f"days: found {len(days)}; expected at least 2 days of logs: one day has no spread to resample")
    if not (days["window_s"] > 0).all():
        raise SeatsError("days: found a day without a window; expected window_s above 0 on each")
