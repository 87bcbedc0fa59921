"""The audit page in headless Chromium, from a file: quiet, legible, nothing cut off, and it finds, sorts and opens numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spillway.paper import printed
from spillway.paper.audit_page import page
from spillway.paper.markup import Latex
from spillway.paper.numbers import evaluate
from spillway.paper.view import Numbers
from tests import mini_project
from tests.conftest import ROOT
from tests.pages import chromium
from tests.pages.checks import CONTRAST

pytestmark = pytest.mark.skipif(chromium.path() is None, reason="Chromium is not installed: apt-get install chromium")

SHOWN = "[...document.querySelectorAll('#numbers > tbody')].filter(b => !b.hidden).map(b => b.id)"
TYPE = "{{ const s = document.getElementById('search'); s.value = {!r}; s.dispatchEvent(new Event('input')) }}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    with chromium.running(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page") / "mini"
    mini_project.make(root)
    (root / "paper/audit.html.j2").write_text((ROOT / "paper/audit.html.j2").read_text())
    content = evaluate(root, "cpu")
    numbers = Numbers(content, Latex(), "en", "paper")
    tex = f"{numbers.u('rate')} {numbers.n('rate.by', '', '4')}"
    (root / "audit.html").write_text(page(root, content, [printed.paper("paper.tex", tex)]))
    return root / "audit.html"


def press(browser: chromium.Chromium, key: str, text: str = "") -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "",
                     windowsVirtualKeyCode={"Enter": 13, "Escape": 27, "/": 191}[key])  # fmt: skip


def at(browser: chromium.Chromium, audit: Path, fragment: str = "") -> Any:
    """Go to the page, to a number if one is named; returns what the browser can evaluate."""
    browser.open(audit, 1280)
    if fragment:  # the event that the page waits for comes after the assignment
        browser.evaluate(
            "new Promise(done => { addEventListener('hashchange', () => done(), {once: true}); "
            f"location.hash = {fragment!r} }})"
        )
    return browser.evaluate


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_quiet_legible_and_whole(browser: chromium.Chromium, audit: Path, width: int, scheme: str) -> None:
    browser.open(audit, width, scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.evaluate("document.querySelectorAll('.used').forEach(button => button.click())")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    found = browser.evaluate(CONTRAST)
    assert found["texts"] > 100 and not found["faint"]
    assert browser.complaints() == []
    asked = [address for address in browser.requests() if not address.startswith("data:")]
    assert asked == [audit.resolve().as_uri()]


def test_search_and_choice_of_output(browser: chromium.Chromium, audit: Path) -> None:
    evaluate = at(browser, audit)
    everything = evaluate(SHOWN)
    evaluate(TYPE.format("median RATE_tok"))
    assert evaluate(SHOWN) == ["number.rate"]
    assert evaluate("document.getElementById('count').textContent") == f"1 of {len(everything)} numbers"
    evaluate(TYPE.format("no such thing"))
    assert evaluate(SHOWN) == [] and evaluate("!document.getElementById('none').hidden")
    evaluate(TYPE.format(""))
    choose = "{{ const w = document.getElementById('where'); w.value = {!r}; w.dispatchEvent(new Event('change')) }}"
    evaluate(choose.format("paper"))
    assert evaluate(SHOWN) == ["number.rate", "number.rate.by--4"]
    evaluate(choose.format("-"))
    assert set(evaluate(SHOWN)) == set(everything) - {"number.rate", "number.rate.by--4"}


def test_sort_by_value_up_down_and_back(browser: chromium.Chromium, audit: Path) -> None:
    evaluate = at(browser, audit)
    before = evaluate(SHOWN)
    click = "document.querySelector('th[data-sort=value] button').click()"
    values = "[...document.querySelectorAll('#numbers > tbody')].map(b => b.dataset.value).filter(v => v).map(Number)"
    evaluate(click)
    up = evaluate(values)
    assert up == sorted(up) and evaluate("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "ascending"
    evaluate(click)
    assert evaluate(values) == sorted(up, reverse=True)
    evaluate(click)
    assert evaluate(SHOWN) == before and evaluate("document.querySelector('[aria-sort]')") is None


def test_a_link_to_a_number_opens_it_even_under_a_search(browser: chromium.Chromium, audit: Path) -> None:
    evaluate = at(browser, audit)
    evaluate(TYPE.format("no such thing"))
    evaluate(
        "new Promise(done => { addEventListener('hashchange', () => done(), {once: true}); location.hash = 'number.rate' })"
    )
    assert evaluate("document.querySelector('#number\\\\.rate .detail').checkVisibility()")
    top = evaluate("document.getElementById('number.rate').getBoundingClientRect().top")
    bar = evaluate("document.querySelector('thead th').getBoundingClientRect().bottom")
    assert bar <= top < 900  # below what sticks to the top, and in sight
    evaluate("document.querySelector('#number\\\\.rate a[href^=\"#file\"]').click()")
    assert evaluate("new Promise(done => setTimeout(() => done(document.querySelector('details').open)))")


def test_the_keyboard_is_enough(browser: chromium.Chromium, audit: Path) -> None:
    evaluate = at(browser, audit)
    press(browser, "/", "/")
    assert evaluate("document.activeElement.id") == "search"
    evaluate(TYPE.format("rate"))
    press(browser, "Escape")
    assert evaluate("document.getElementById('search').value") == ""
    evaluate("document.querySelector('#number\\\\.rate .used').focus()")
    press(browser, "Enter", "\r")
    assert evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert evaluate("document.querySelector('#number\\\\.rate .detail').checkVisibility()")


def test_without_scripts_all_rows_are_shown(browser: chromium.Chromium, audit: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(audit, 1280)
        assert browser.evaluate("[...document.querySelectorAll('.detail')].every(row => row.checkVisibility())")
        assert not browser.evaluate("document.querySelector('.bar').checkVisibility()")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
