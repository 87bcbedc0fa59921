"""The numbers that stand in a built paper or article, found by their links: what a reader sees, not what was meant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser

from spillway.paper.article_language import Language
from spillway.paper.content import Content, Value
from spillway.paper.format import with_unit
from spillway.paper.markup import Latex

_DATUM = r"\datum{"


@dataclass(frozen=True)
class Output:
    """A built page: its name for readers, its file, its language, and anchor -> the texts that stand there."""

    name: str
    file: str
    language: str
    texts: dict[str, list[str]]
    places: frozenset[str] = frozenset()
    """Anchors that the page can be opened at."""
    words: tuple[str, ...] = ()
    """How an article spells whole numbers out, from zero on."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Texts of the data -> how an article puts them in its language."""
    named: Mapping[str, list[str]] = field(default_factory=dict)
    """Anchor -> texts that an article takes from the number's name, such as the streams of a published level."""


def paper(file: str, tex: str) -> Output:
    """The numbers of a rendered LaTeX paper; its texts are as LaTeX prints them."""
    texts: dict[str, list[str]] = {}
    at = tex.find(_DATUM)
    while at >= 0:
        anchor, end = _braced(tex, at + len(_DATUM) - 1)
        text, end = _braced(tex, end)
        texts.setdefault(anchor, []).append(text)
        at = tex.find(_DATUM, end)
    return Output("paper", file, "en", texts, frozenset(texts))


def article(file: str, html: str, language: Language) -> Output:
    """The numbers of a rendered article, which its language may spell out or translate."""
    links = _Links()
    links.feed(html)
    places = frozenset(links.ids)
    name = f"article {language.code}"
    return Output(name, file, language.code, links.texts, places, language.words, language.names, links.named)


def faults(content: Content, output: Output) -> list[str]:
    """Texts of an output that are not the number's, or are of no number at all."""
    values = {value.anchor: value for group in content.numbers.values() for value in group}
    found = []
    for anchor, texts in output.named.items():
        name = values[anchor].name if anchor in values else ""
        found += [
            f"{output.file}: prints {text!r} as in the name of {anchor}, which it is not" for text in texts if text not in name
        ]
    for anchor, texts in output.texts.items():
        if anchor not in values:
            found.append(f"{output.file}: prints {texts[0]!r} as {anchor}, which is no number of numbers.json; build it anew")
            continue
        wanted = as_printed(values[anchor], output)
        for text in dict.fromkeys(texts):
            if text not in wanted:
                found.append(
                    f"{output.file}: prints {text!r} as {anchor}; expected {' or '.join(map(repr, dict.fromkeys(wanted)))}"
                )
    return found


def as_printed(value: Value, output: Output) -> dict[str, str]:
    """The ways in which an output may print a number, without and with its unit: as they stand there -> as read."""
    text = value.texts[output.language]
    plain = [text, with_unit(text, value.unit, output.language)]
    if isinstance(value.value, str):
        plain += [output.names[value.value]] if value.value in output.names else []
    elif value.value in range(len(output.words)):
        plain.append(output.words[int(value.value)])
    return {Latex().escape(text) if output.name == "paper" else text: text for text in plain}


def read_in(value: Value, output: Output) -> list[str]:
    """How an output prints a number, as it is read; empty if nowhere."""
    ways = as_printed(value, output)
    return list(dict.fromkeys(ways.get(text, text) for text in output.texts.get(value.anchor, [])))


def _braced(tex: str, start: int) -> tuple[str, int]:
    """The text in the braces that open at `start`, and the position after them; escaped braces do not count."""
    depth, at = 0, start
    while at < len(tex):
        if tex[at] == "\\":
            at += 1
        elif tex[at] == "{":
            depth += 1
        elif tex[at] == "}":
            depth -= 1
            if depth == 0:
                return tex[start + 1 : at], at + 1
        at += 1
    return tex[start + 1 :], at


class _Links(HTMLParser):
    """Collects the texts of links of class `number` by anchor, and the ids of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, list[str]] = {}
        self.named: dict[str, list[str]] = {}
        self.ids: set[str] = set()
        self._into = self.texts
        self._anchor, self._text = "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if identity := found.get("id"):
            self.ids.add(identity)
        classes = (found.get("class") or "").split()
        if tag == "a" and "number" in classes:
            self._into = self.named if "name" in classes else self.texts
            self._anchor, self._text = (found.get("href") or "").partition("#")[2], ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._anchor:
            self._into.setdefault(self._anchor, []).append(self._text)
            self._anchor = ""
