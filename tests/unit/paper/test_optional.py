"""Numbers whose rows may be absent: only those that say so."""

from typing import cast

import pandas as pd
import pytest

from spillway.paper.content import Content
from spillway.paper.format import words
from spillway.paper.markup import Latex
from spillway.paper.numbers import NumberError, Sources, parts
from spillway.paper.view import Numbers
from spillway.spec.number import Number


class OneTable:
    host = "cpu"

    def table(self, file: str) -> pd.DataFrame:
        return pd.DataFrame({"outcome": ["served"], "startup_s": [2.0]})


def asked(*, optional: bool) -> Number:
    return Number(
        file="e2.arms", where={"outcome": "failed"}, column="startup_s", statistic="median", unit="s", optional=optional
    )


def test_an_optional_number_without_rows_has_no_value() -> None:
    assert list(parts("key", asked(optional=True), cast(Sources, OneTable()))) == []


def test_any_other_number_without_rows_is_an_error() -> None:
    with pytest.raises(NumberError, match="outcome = 'failed'"):
        list(parts("key", asked(optional=False), cast(Sources, OneTable())))


def test_a_template_may_ask_for_it_and_need_not_print_it() -> None:
    content = Content("cpu", "", {"key": []}, {}, {}, {}, {"cpu": {}})
    numbers = Numbers(content, Latex(), "en", "paper")
    numbers.refuse_unused("a template")
    assert not numbers.has("key")


def test_a_cell_is_printed_in_words() -> None:
    assert words("cold_share=0.05,streams=4") == "cold share 0.05, streams 4"
