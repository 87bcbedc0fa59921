"""The article: one structure, one set of numbers, a page for each language.

    python -m spillway.paper.article --numbers build/HOST/numbers.json --out article

Fails if a language lacks a sentence or calls other numbers than the other does, if a number is typed into a sentence or the
structure, if one is undefined or unused, or if a page prints a number as another language does.
"""

import argparse
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

import jinja2

from spillway.paper.article_charts import Charts
from spillway.paper.article_language import (
    ARTICLE,
    CALLS,
    FEWEST_WORD,
    NAMES,
    TEMPLATE,
    Language,
    LanguageError,
    read_languages,
    refuse_foreign_numbers,
    refuse_text,
    refuse_typed,
)
from spillway.paper.content import Content, ContentError, read_content
from spillway.paper.markup import Html, Marked, Markup
from spillway.paper.render import line_of, project, without_defaults
from spillway.paper.typed import Allowed
from spillway.paper.view import Numbers, RenderError
from spillway.spec.read import SpecError, read

STYLE = ARTICLE / "article.css"
AUDIT = "../audit.html"
EXAMPLE = "published.capacity"
_TAG = re.compile(r"<[^>]*>")


class Plain(Html):
    """Text without links, for titles and inside pictures."""

    def linked(self, anchor: str, text: str) -> Marked:
        return self.escape(text)


class Wording(Numbers):
    """The numbers of a page, which a language can also spell out, and whose texts it can read."""

    def __init__(self, content: Content, markup: Markup, language: Language) -> None:
        super().__init__(content, markup, language.code, "article")
        self.words, self.names, self.file = language.words, language.names, language.file

    def word(self, key: str, *parts: str) -> Marked:
        """A number as the language's word for it, or in digits where it has none."""
        value = self._find(key, parts)
        spelled = isinstance(value.value, float | int) and value.value in range(FEWEST_WORD, len(self.words))
        return self.markup.linked(value.anchor, self.words[int(value.value)] if spelled else value.texts[self.language])

    def named(self, text: str, key: str, *parts: str) -> Marked:
        """A text that stands in the name of a number, as a link to that number; the audit looks for it there."""
        linked = self.markup.linked(self._find(key, parts).anchor, text)
        return Marked(linked.replace('class="number"', 'class="number name"'))

    def name(self, key: str, *parts: str) -> Marked:
        """A text of the data, read as `reading` does."""
        value = self._find(key, parts)
        return self.markup.linked(value.anchor, self.reading(str(value.value)))

    def reading(self, text: str) -> Marked:
        """A name or a reason from the data: as the language's names have it, else in its own words and marked as English."""
        shown = self.names.get(text)
        language = "" if shown else ' lang="en"'
        return Marked(f'<bdi class="name"{language}>{self.markup.escape(shown or text)}</bdi>')

    def label(self, name: str) -> str:
        """A name in the data as the language has it; raises LanguageError if it has none."""
        if name not in self.names:
            raise LanguageError(f"{self.file}: {NAMES}: {name!r}: missing; the data have it, and a picture shows it")
        return self.names[name]

    def commands(self) -> dict[str, str]:
        """What a reader types to follow one number, and to measure again."""
        (number,) = self._known(EXAMPLE)
        return {
            "explain": f"spillway explain {number.key}",
            "hash": f"sha256sum {number.file}\ngrep {number.file.removeprefix('data/')} data/MANIFEST.csv",
            "again": f"snakemake e13_agents --config host={self.content.host}",
        }


class Sentences:
    """The sentences of a language with numbers in their places."""

    def __init__(self, language: Language, numbers: Wording, environment: jinja2.Environment) -> None:
        self.language, self.environment = language, environment
        self.calls = {call: getattr(numbers, call) for call in CALLS}

    def say(self, key: str) -> Marked:
        """A sentence as HTML; raises LanguageError naming file and key if it is missing or asks for what is not there."""
        self.language.sentence(key)
        try:
            return Marked(self.environment.get_template(key).render(**self.calls))
        except (jinja2.TemplateError, RenderError) as error:
            raise LanguageError(f"{self.language.file}: {key}: {error}") from None


def pages(root: Path, content: Content, allowed_file: Path) -> dict[str, str]:
    """Language -> its page; raises LanguageError, RenderError or SpecError naming what is wrong, where."""
    languages = read_languages(root)
    allowed = set(read(Allowed, allowed_file).root)
    for language in languages.values():
        refuse_typed(language, allowed)
    return {code: render(root, language, languages, content) for code, language in languages.items()}


def render(root: Path, language: Language, languages: dict[str, Language], content: Content) -> str:
    """The page of a language; raises LanguageError or RenderError naming what is wrong, where."""
    linked, plain = (Wording(content, markup, language) for markup in (Html(AUDIT), Plain()))
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(language.sentences), cache_size=-1, undefined=jinja2.StrictUndefined, autoescape=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    without_defaults(environment)
    sentences, bare = (Sentences(language, numbers, environment) for numbers in (linked, plain))

    def text(key: str) -> str:
        return " ".join(unescape(_TAG.sub("", bare.say(key))).split())

    charts = Charts(plain, text, plain.label)
    template = root / TEMPLATE
    source = template.read_text(encoding="utf-8")
    refuse_text(source, template)
    names: dict[str, Any] = {
        **linked.calls(), **project(content, root), "not_run": content.not_run(), "commands": linked.commands,
        "name": linked.name, "named": linked.named, "label": linked.label, "reading": linked.reading,
        "t": sentences.say, "bare": text, "charts": charts, "style": Marked((root / STYLE).read_text(encoding="utf-8")),
        "language": language.code,
        "languages": {code: other.sentence("language.name") for code, other in languages.items()},
    }  # fmt: skip
    try:
        page = environment.from_string(source).render(**names)
    except (jinja2.TemplateError, RenderError) as error:
        raise RenderError(f"{template}:{line_of(error)}: {error}") from None
    linked.used |= plain.used
    linked.refuse_unused(template)
    refuse_foreign_numbers(page, language.code, language.file)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--numbers", type=Path, required=True)
    parser.add_argument("--allowed", type=Path, default=Path("paper/allowed.yaml"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        made = pages(Path("."), read_content(options.numbers), options.allowed)
    except (ContentError, LanguageError, RenderError, SpecError) as error:
        sys.exit(f"spillway: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    for code, page in made.items():
        (options.out / f"{code}.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
