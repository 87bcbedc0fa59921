"""From servers to money: the monthly bill against subscriptions."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from spillway.seats.errors import SeatsError
from spillway.seats.overload import fewest_servers


@dataclass(frozen=True)
class Prices:
    """What is paid, in one currency; `hours_paid` a month: 730 for a server rented day and night.

    spare_servers: rented and idle, for failures. operations_month: work on the fleet, whatever its size.
    Raises SeatsError for a negative or missing price.
    """

    server_hour: float
    subscription_month: float
    hours_paid: float
    spare_servers: int = 0
    operations_month: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not math.isfinite(value) or value < 0:
                raise SeatsError(f"{name}: found {value}; expected 0 or more")
        if self.subscription_month == 0:
            raise SeatsError("subscription_month: found 0; expected the price that the servers are compared with")

    @property
    def server_month(self) -> float:
        """Rent of one server for a month."""
        return self.server_hour * self.hours_paid

    def fleet_month(self, servers: int) -> float:
        """Bill of a month: `servers` at work, the spare ones, and operations."""
        return (servers + self.spare_servers) * self.server_month + self.operations_month

    def break_even(self, servers: int = 1) -> float:
        """Subscriptions that cost as much as the bill of `servers` servers."""
        return self.fleet_month(servers) / self.subscription_month

    def saving(self, developers: int, servers: int) -> float:
        """Share of the subscriptions' price that the fleet saves; negative if it is dearer."""
        if developers < 1:
            raise SeatsError(f"developers: found {developers}; expected at least 1")
        return 1 - self.fleet_month(servers) / (developers * self.subscription_month)


def servers_pooled(developers: int, k: int, level: float, overload: Callable[[int, int], float]) -> int:
    """Servers if every turn goes where there is room: smallest m with overload(m k, developers) <= level.

    `overload(k, n)` is a criterion for one server of k streams and n developers.
    """
    return fewest_servers(lambda m: overload(m * k, developers), level, most=max(1, math.ceil(developers / k)))


def servers_by_home(developers: int, seats: int) -> int:
    """Servers if every developer has a fixed one with `seats` seats."""
    if seats < 1:
        raise SeatsError("seats: found 0 for each server; expected at least 1: no number of servers is enough")
    return math.ceil(developers / seats)
