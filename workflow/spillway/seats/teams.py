"""Developers differ, and the team that comes is one draw: how many of its kind would be too busy."""

import numpy as np
from numpy.typing import NDArray

from spillway.seats.demand import check_developers, check_q
from spillway.seats.errors import SeatsError
from spillway.seats.overload import MOST_DEVELOPERS, check_streams


def drawn_shares(q: float, cv: float, teams: int, n: int, seed: int) -> NDArray[np.float64]:
    """Busy shares of `teams` teams of n developers, beta-distributed with mean q and coefficient of variation cv."""
    check_q(q)
    check_developers(n)
    if not 0 < cv < ((1 - q) / q) ** 0.5:
        raise SeatsError(f"cv: found {cv}; expected more than 0 and less than {((1 - q) / q) ** 0.5:.2f}, the most for q = {q}")
    concentration = (1 - q) / (q * cv * cv) - 1
    return np.random.default_rng(seed).beta(q * concentration, (1 - q) * concentration, size=(teams, n))


def overload_by_team(k: int, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(more than k busy) for each team (row) of independent developers with busy shares of their own."""
    check_streams(k)
    up_to_k = np.zeros((len(shares), k + 1))
    up_to_k[:, 0] = 1
    for share in shares.T:  # add one developer to every team; what leaves the k + 1 columns is overload
        idle, busy = up_to_k * (1 - share)[:, None], up_to_k * share[:, None]
        up_to_k = idle
        up_to_k[:, 1:] += busy[:, :-1]
    overload: NDArray[np.float64] = np.clip(1 - up_to_k.sum(axis=1), 0, 1)
    return overload


def seats_for_most_teams(k: int, q: float, cv: float, level: float, confidence: float, teams: int, seed: int) -> int:
    """The largest n for which at least `confidence` of the drawn teams of n stay within `level`; by simulation."""
    n = 0
    while n < MOST_DEVELOPERS:
        overload = overload_by_team(k, drawn_shares(q, cv, teams, n + 1, seed))
        if float((overload <= level).mean()) < confidence:
            return n
        n += 1
    raise SeatsError(f"seats: found more than {MOST_DEVELOPERS:,} developers; check q, the streams and the level")


def correlation(busy: NDArray[np.bool_]) -> float:
    """The beta-binomial rho of developers (rows) observed at the same instants (columns), such as once a minute.

    By moments: rho = (Var(X) / (n q (1 - q)) - 1) / (n - 1), X the number busy. May be negative by chance. Raises
    SeatsError for fewer than two developers or if nobody, or everybody, is busy all the time.
    """
    n = len(busy)
    if n < 2:
        raise SeatsError(f"correlation: found {n} developer; expected logs of two or more over the same time")
    q = float(busy.mean())
    check_q(q)
    return float((busy.sum(axis=0).var() / (n * q * (1 - q)) - 1) / (n - 1))
