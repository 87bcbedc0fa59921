"""Numbers whose rows may be absent: only those that say so."""

from pathlib import Path
from typing import cast

import pandas as pd
import pytest

from spillway.paper.content import Content
from spillway.paper.format import words
from spillway.paper.markup import Latex
from spillway.paper.numbers import NumberError, Sources, evaluate, parts
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


def test_provenance_that_only_some_hosts_have_is_optional(mini: Path) -> None:
    path = mini / "paper/numbers.yaml"
    added = "gpu: {file: e1_here.cells, provenance: host_gpu0_name, text: true%s}\n"
    text = path.read_text()
    path.write_text(text + added % ", optional: true")
    assert evaluate(mini, "cpu").numbers["gpu"] == []
    path.write_text(text + added % "")
    with pytest.raises(NumberError, match=r"gpu: .*its provenance has no 'host_gpu0_name'"):
        evaluate(mini, "cpu")


def test_a_template_may_ask_for_it_and_need_not_print_it() -> None:
    content = Content("cpu", "", {"key": []}, {}, {}, {}, {"cpu": {}})
    numbers = Numbers(content, Latex(), "en", "paper")
    numbers.refuse_unused("a template")
    assert not numbers.has("key")


@pytest.mark.parametrize(
    ("cell", "printed"),
    [
        ("cold_share=0.05,streams=4", "5\u202f% cold, 4 streams"),
        ("decode, uniform cold_share=0.296875", "decode, uniform: 29.7\u202f% cold"),
        ("agents streams=1", "agents: 1 stream"),
        ("context context_tokens=131072", "context: 131,072\u00a0tokens"),
        ("once output_tokens=2", "once: output tokens 2"),
        ("decode of 8", "decode of 8"),
        ("cached_prefix", "cached prefix"),
    ],
)
def test_a_cell_is_printed_in_words(cell: str, printed: str) -> None:
    assert words(cell) == printed
