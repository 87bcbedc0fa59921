"""The article in a browser: at two widths, in both schemes, on paper."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.paper.article import pages
from spillway.paper.content import read_content
from spillway.paper.format import LANGUAGES
from tests.conftest import ROOT
from tests.pages import chromium
from tests.pages.checks import CONTRAST, OUTSIDE

WIDTHS = (360, 1280)
SCHEMES = ("light", "dark")
A4_POINTS = (595, 842)


@pytest.fixture(scope="module")
def article(numbers_json: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the article's pages."""
    folder = tmp_path_factory.mktemp("article")
    for code, page in pages(ROOT, read_content(numbers_json), ROOT / "paper/allowed.yaml").items():
        (folder / f"{code}.html").write_text(page, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    if chromium.path() is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with chromium.running(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.mark.parametrize("code", LANGUAGES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_page_is_quiet_fits_and_can_be_read(
    browser: chromium.Chromium, article: Path, code: str, width: int, scheme: str
) -> None:
    page = article / f"{code}.html"
    browser.open(page, width, scheme)
    assert browser.requests() == [page.resolve().as_uri()], "it asks for nothing but itself"
    assert not browser.complaints()
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, browser.evaluate(OUTSIDE)
    assert not browser.evaluate(OUTSIDE)
    found = browser.evaluate(CONTRAST)
    assert found["texts"] > 300
    assert not found["faint"]
    background = browser.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    dark = sum(int(part) for part in re.findall(r"\d+", background)[:3]) < 3 * 128
    assert dark == (scheme == "dark")


def test_the_checks_find_what_they_look_for(browser: chromium.Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><style>body { background: #fff } p { color: #999; width: 500px }</style><p>faint and wide</p>"
        "<svg width='100' height='40'><rect width='100' height='40' fill='#800'/><text y='20' fill='#a00'>red</text></svg>"
        "<img src='http://example.org/x.png'><script>console.log('said'); undefined.field</script>"
    )
    browser.open(page, WIDTHS[0])
    assert "http://example.org/x.png" in browser.requests()
    assert any("said" in told for told in browser.complaints()) and any("TypeError" in told for told in browser.complaints())
    assert [found.split()[0] for found in browser.evaluate(OUTSIDE)] == ["P"]
    faint = browser.evaluate(CONTRAST)["faint"]
    assert [found.split()[-1] for found in faint] == ["wide", "red"]


@pytest.mark.parametrize("code", LANGUAGES)
def test_links_of_the_page_lead_somewhere(browser: chromium.Chromium, article: Path, code: str) -> None:
    browser.open(article / f"{code}.html", WIDTHS[1])
    inside = browser.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.getAttribute('href'))")
    assert len(inside) > 10
    for link in inside:
        assert browser.evaluate(f"document.querySelector({link!r}) !== null"), link
    other = browser.evaluate("[...document.querySelectorAll('.languages a')].map(a => a.getAttribute('href'))")
    assert other and all((article / name).is_file() for name in other)


@pytest.mark.parametrize("width", WIDTHS)
def test_each_picture_is_shown_once(browser: chromium.Chromium, article: Path, width: int) -> None:
    browser.open(article / "en.html", width)
    shown = browser.evaluate("[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('svg')]"
                             ".filter(svg => svg.getBoundingClientRect().width > 0).length)")  # fmt: skip
    assert shown and set(shown) == {1}


@pytest.mark.parametrize("code", LANGUAGES)
def test_page_prints_on_a4(browser: chromium.Chromium, article: Path, code: str) -> None:
    browser.open(article / f"{code}.html", WIDTHS[1], "dark")
    printed = browser.pdf()
    assert printed.startswith(b"%PDF-")
    boxes = re.findall(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)\s*\]", printed)
    assert 4 <= len(boxes) <= 20
    for box in boxes:
        assert tuple(round(float(side)) for side in box) == A4_POINTS
