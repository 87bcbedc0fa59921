"""The audit page holds each number with its printed texts, its rows and its run, and links both ways."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spillway.paper import printed
from spillway.paper.article_language import Language
from spillway.paper.audit_page import AuditError, page
from spillway.paper.markup import Html, Latex
from spillway.paper.numbers import evaluate
from spillway.paper.view import Numbers
from tests.conftest import ROOT
from tests.mini_project import REASON, redefine


class Parsed(HTMLParser):
    """Ids, links, and every address that a browser would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a":
            self.links.append(found["href"])
        if tag in ("link", "script", "img", "iframe"):
            self.fetched += [found[name] for name in ("href", "src") if name in found]


@pytest.fixture
def html(mini: Path) -> str:
    (mini / "paper/audit.html.j2").write_text((ROOT / "paper/audit.html.j2").read_text())
    content = evaluate(mini, "cpu")
    paper, article = Numbers(content, Latex(), "en", "paper"), Numbers(content, Html(), "es", "article")
    spanish = Language("es", Path("es.yaml"), {}, ("cero", "uno"), {})
    outputs = [
        printed.paper("paper.tex", f"{paper.u('rate')} {paper.n('rate')} {paper.n('rate.by', '', '4')}"),
        printed.article("es.html", f"{article.u('rate')} {article.n('requests')}", spanish),
    ]
    return page(mini, content, outputs)


def row(html: str, anchor: str) -> str:
    return html[html.index(f'id="{anchor}"') :].split("<tbody", 1)[0]


def test_a_row_has_the_whole_chain(html: str, mini: Path) -> None:
    rate = row(html, "number.rate")
    (value,) = evaluate(mini, "cpu").numbers["rate"]
    for shown in (
        f"{value.texts['en']}\u00a0token/s",
        f"{value.texts['es']}\u00a0tokens/s",
        str(value.value),
        "median of rate_tok_per_s",
        "where outcome = ok",
        ">15</button>",
        "cpu/e1_here.cells",
        value.sha256[:12],
        "20260101T000000Z-e1_here",
        "cccccccccccc",
        'href="paper.pdf#nameddest=number.rate"',
        'href="article/es.html#number.rate"',
    ):
        assert shown in rate, shown
    assert rate.count("<tr><td>") == 5 and "and 10 more" in rate  # rows of the file, the first five
    assert re.search(r"<tr><td>0<td>0<td>ok<td>100\.0", rate)


def test_numbers_printed_nowhere_say_so_and_parts_lead_to_their_ratio(html: str) -> None:
    assert "not printed" in row(html, "number.engine")
    assert 'part of <a href="#number.ok_share">' in row(html, "number.ok")
    assert 'href="#number.requests">requests</a>' in row(html, "number.ok_share")


def test_a_ratio_by_groups_and_its_parts_lead_to_the_same_group(mini: Path) -> None:
    (mini / "paper/audit.html.j2").write_text((ROOT / "paper/audit.html.j2").read_text())
    redefine(mini, "count.by", "{file: e1_here.cells, where: {outcome: ok}, by: [arm, streams], statistic: count}")
    redefine(mini, "all.by", "{file: e1_here.cells, by: [arm, streams], statistic: count}")
    redefine(mini, "share.by", '{ratio: [count.by, all.by], unit: "%"}')
    html = page(mini, evaluate(mini, "cpu"), [])
    assert 'part of <a href="#number.share.by--4">share.by</a>' in row(html, "number.all.by--4")
    parsed = Parsed(html)
    assert {link[1:] for link in parsed.links if link.startswith("#")} <= set(parsed.ids)


def test_what_was_not_run_stands_with_its_reason(html: str) -> None:
    assert REASON in html and "Does e2_gpu work?" in html


def test_every_link_inside_the_page_arrives_and_nothing_is_fetched(html: str) -> None:
    parsed = Parsed(html)
    assert len(parsed.ids) == len(set(parsed.ids))
    inside = {link[1:] for link in parsed.links if link.startswith("#")}
    assert inside <= set(parsed.ids)
    assert parsed.fetched == ["data:,"]
    assert not re.search(r"https?://", html)


def test_a_page_that_prints_something_else_stops_it(mini: Path) -> None:
    (mini / "paper/audit.html.j2").write_text("")
    wrong = printed.paper("paper.tex", r"\datum{number.rate}{99}")
    with pytest.raises(AuditError, match=r"paper\.tex: prints '99' as number\.rate; expected '100\.0'"):
        page(mini, evaluate(mini, "cpu"), [wrong])


def test_numbers_in_latex_are_found_with_nested_braces() -> None:
    tex = r"a \datum{number.a}{1\,\%} \caption{\datum{number.b--x}{2\texttimes{}} \{ } \datum{number.a}{3}"
    assert printed.paper("f", tex).texts == {"number.a": [r"1\,\%", "3"], "number.b--x": [r"2\texttimes{}"]}
