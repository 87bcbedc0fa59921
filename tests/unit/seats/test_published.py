"""The article's figures come out of its inputs, under exactly the stated reading."""

import pytest

from spillway.seats import demand, seat_rows
from spillway.seats.case import assumed_q_draws, published_case
from spillway.seats.cost import Prices, servers_by_home, servers_pooled
from spillway.seats.errors import SeatsError
from spillway.seats.overload import clock_overload, experienced_overload


@pytest.fixture
def case(figures):
    return published_case(figures, None, None)


def test_every_published_figure_is_reproduced(case, figures):
    rows = {row["figure"]: row for row in seat_rows.published_rows(case, figures)}
    assert {name: row["published"] for name, row in rows.items()} == {
        "usage.generating_hours_week": 2.8, "usage.generating_share_week": 1.7, "seats.one_percent": 19,
        "seats.five_percent": 28, "cost.server_month": 2723, "cost.break_even": 15.1,
        "fleet.developers_100_servers": 4, "fleet.developers_100_saving": 39,
        "fleet.developers_250_servers": 7, "fleet.developers_250_saving": 58,
    }  # fmt: skip
    assert all(row["agrees"] for row in rows.values())
    assert rows["cost.server_month"]["recomputed"] == pytest.approx(2722.90)
    assert rows["cost.break_even"]["recomputed"] == pytest.approx(15.127, abs=5e-4)
    assert rows["fleet.developers_100_saving"]["recomputed"] == pytest.approx(39.49, abs=5e-3)
    assert rows["fleet.developers_250_saving"]["recomputed"] == pytest.approx(57.64, abs=5e-3)


def test_the_range_of_q_that_keeps_the_seats(case, figures):
    rows = {row["figure"]: row for row in seat_rows.published_rows(case, figures)}
    one, five = rows["seats.one_percent"], rows["seats.five_percent"]
    assert (one["q_low_fraction"], one["q_high_fraction"]) == pytest.approx((0.0689, 0.0727), abs=1e-4)
    assert (five["q_low_fraction"], five["q_high_fraction"]) == pytest.approx((0.0705, 0.0731), abs=1e-4)


def test_a_figure_that_does_not_follow_is_reported(case, figures):
    figures.loc[figures["id"] == "fleet.developers_250_servers", "value"] = "8"
    disagree = [row["figure"] for row in seat_rows.published_rows(case, figures) if not row["agrees"]]
    assert disagree == ["fleet.developers_250_servers"]


def test_both_seat_counts_stand_beside_the_break_even(case):
    assert (case.clock_seats(0.01), case.experienced_seats(0.01)) == (19, 13)
    assert case.experienced_seats(0.01) < case.prices.break_even() < case.clock_seats(0.01)


def test_pooled_seats_of_several_servers():
    def most(m, level):
        from spillway.seats.overload import most_developers

        return most_developers(lambda n: clock_overload(demand.independent(n, 0.071), 4 * m), level)

    found = [(most(m, 0.01), most(m, 0.05)) for m in range(1, 9)]
    assert found == [(19, 28), (51, 67), (88, 110), (128, 155), (170, 201), (213, 248), (258, 295), (303, 344)]


@pytest.mark.parametrize(("rho", "servers"), [(0, (4, 7)), (0.01, (5, 10)), (0.02, (5, 12)), (0.05, (7, 17)), (0.1, (10, 23))])
def test_servers_under_correlation(rho, servers):
    def overload(k, n):
        return clock_overload(demand.correlated(n, 0.071, rho), k)

    assert tuple(servers_pooled(n, 4, 0.01, overload) for n in (100, 250)) == servers


def test_servers_by_other_readings():
    def experienced(k, n):
        return experienced_overload(demand.independent(n, 0.071), k)

    assert tuple(servers_pooled(n, 4, 0.01, experienced) for n in (100, 250)) == (4, 8)
    assert [servers_by_home(n, seats) for seats in (19, 13) for n in (100, 250)] == [6, 14, 8, 20]
    prices = Prices(3.73, 180, 730)
    assert [round(100 * prices.saving(n, m), 1) for n, m in ((100, 6), (250, 14), (100, 8), (250, 20))] == [
        9.2,
        15.3,
        -21.0,
        -21.0,
    ]


def test_hours_paid_spare_and_operations_change_the_bill():
    assert Prices(3.73, 180, 176).break_even() == pytest.approx(3.65, abs=5e-3)
    assert Prices(3.73, 180, 220).break_even() == pytest.approx(4.56, abs=5e-3)
    spare = Prices(3.73, 180, 730, spare_servers=1)
    assert (spare.saving(100, 4), spare.saving(250, 7)) == pytest.approx((0.244, 0.516), abs=5e-4)
    work = Prices(3.73, 180, 730, operations_month=1800)
    assert work.saving(100, 4) == pytest.approx(0.3949 - 0.1, abs=5e-4)


@pytest.mark.parametrize(
    ("cv", "low", "high", "seats"),
    [(0.2, 0.053, 0.089, (15, 25)), (0.3, 0.045, 0.097, (14, 30)), (0.5, 0.027, 0.115, (12, 48))],
)
def test_how_sure_five_days_make_the_seats(case, cv, low, high, seats):
    from dataclasses import replace

    import numpy as np

    draws, _ = assumed_q_draws(0.071, 5, cv)
    found = np.quantile(draws, [0.025, 0.975])
    assert found == pytest.approx([low, high], abs=6e-4)
    assert replace(case, q=high).clock_seats(0.01) == seats[0]
    assert replace(case, q=low).clock_seats(0.01) == pytest.approx(seats[1], abs=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((-1, 180, 730), "server_hour: found -1"),
        ((3.73, 0, 730), "subscription_month: found 0"),
        ((3.73, 180, float("nan")), "hours_paid"),
    ],
)
def test_wrong_prices_are_named(arguments, said):
    with pytest.raises(SeatsError, match=said):
        Prices(*arguments)


def test_a_missing_published_figure_is_named(figures):
    with pytest.raises(SeatsError, match=r"usage\.q: found nothing"):
        published_case(figures[figures["id"] != "usage.q"], None, None)


def test_home_seats_of_zero_serve_nobody():
    with pytest.raises(SeatsError, match="seats: found 0"):
        servers_by_home(100, 0)
