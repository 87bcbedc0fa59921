"""The article's languages: `paper/article/<language>.yaml`, a sentence for each key, the same keys and numbers in each.

A sentence is HTML that may call `n`, `u`, `word` and `name` for numbers and names by key, and nothing else.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from spillway.paper.format import MARKS
from spillway.spec.read import read_yaml

ARTICLE = Path("paper/article")
TEMPLATE = ARTICLE / "article.html.j2"
WORDS, NAMES = "language.words", "names"
CALLS = ("n", "u", "word", "name")
FEWEST_WORD = 2
"""From here on a number word counts as a number: `one` is also an article and a pronoun."""

_LEXER = jinja2.Environment()
_TAG = re.compile(r"<[^>]*>")
_BETWEEN = re.compile(r"(?:^|>)([^<>]*)(?:<|$)")
_READ_OUT = re.compile(r'\b(?:alt|aria-label|title|placeholder)="([^"]*)"')
_DIGITS = re.compile(r"[^\W\d_]*\d(?:[\w.,]*\w)?")
_NAME = re.compile(r'<bdi class="name"[^>]*>.*?</bdi>', re.DOTALL)
# What a number looks like in the text of a language. Groups of digits are set apart by a space in Spanish, so each is one.
_NUMBERS = {"en": r"\d+(?:,\d{3})*(?:\.\d+)?", "es": r"\d+(?:,\d+)?"}


class LanguageError(Exception):
    """A language file is wrong or does not fit the others; the message names file and key."""


@dataclass(frozen=True)
class Language:
    """One language: sentences by dotted key, number words from zero on, and names in the data -> how they read here."""

    code: str
    file: Path
    sentences: dict[str, str]
    words: tuple[str, ...]
    names: dict[str, str]

    def sentence(self, key: str) -> str:
        """The source of a sentence; raises LanguageError if it is missing."""
        if key not in self.sentences:
            raise LanguageError(f"{self.file}: {key}: no such sentence; {TEMPLATE} asks for it")
        return self.sentences[key]


def read_languages(root: Path) -> dict[str, Language]:
    """Code -> language, all that the numbers are formatted for; raises SpecError, or LanguageError if two disagree."""
    languages = {code: _read(root / ARTICLE / f"{code}.yaml", code) for code in MARKS}
    first, *others = languages.values()
    for other in others:
        _refuse_difference(first, other)
    return languages


def _read(file: Path, code: str) -> Language:
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise LanguageError(f"{file}: found {content!r}; expected sections with sentences")
    names = content.pop(NAMES, None)
    if not isinstance(names, dict) or not all(isinstance(part, str) for item in names.items() for part in item):
        raise LanguageError(f"{file}: {NAMES}: found {names!r}; expected names in the data -> how they read here")
    flat = dict(_flat(content))
    words = flat.pop(WORDS, None)
    if not isinstance(words, list) or len(words) <= FEWEST_WORD:
        raise LanguageError(f"{file}: {WORDS}: found {words!r}; expected the words for zero, one, two and so on")
    for key, text in flat.items():
        if not isinstance(text, str) or not text.strip():
            raise LanguageError(f"{file}: {key}: found {text!r}; expected a sentence")
    return Language(code, file, flat, tuple(words), names)


def _flat(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _refuse_difference(first: Language, other: Language) -> None:
    for one, two in ((first, other), (other, first)):
        if missing := sorted(set(one.sentences) - set(two.sentences)):
            raise LanguageError(f"{two.file}: {', '.join(missing)}: missing; {one.file} has it, and both need the same keys")
        if missing := sorted(set(one.names) - set(two.names)):
            raise LanguageError(f"{two.file}: {NAMES}: {', '.join(missing)}: missing; {one.file} has it")
    if len(first.words) != len(other.words):
        raise LanguageError(f"{other.file}: {WORDS}: found {len(other.words)}; {first.file} has {len(first.words)}")
    for key in first.sentences:
        here, there = (Counter(calls(language, key)) for language in (other, first))
        if here != there:
            odd = sorted({" ".join(call) for call in (here - there) + (there - here)})
            raise LanguageError(f"{other.file}: {key}: its numbers are not those of {first.file}: {', '.join(odd)}")


def calls(language: Language, key: str) -> list[tuple[str, ...]]:
    """What a sentence calls for, as (function, argument, ...); raises LanguageError at anything but a call by key."""
    found, tokens = [], [token for token in _lexed(language.sentence(key), language.file, key) if token[1] != "whitespace"]
    position = 0
    while position < len(tokens):
        if tokens[position][1] == "data":
            position += 1
            continue
        end = next((i for i in range(position, len(tokens)) if tokens[i][1] == "variable_end"), len(tokens))
        inside = tokens[position + 1 : end]
        kinds = " ".join(kind if kind == "string" else text for _, kind, text in inside[1:])
        if tokens[position][1] != "variable_begin" or not inside or inside[0][2] not in CALLS or not re.fullmatch(
            r"\( string(?: , string)* \)", kinds
        ):  # fmt: skip
            code = "".join(text for _, _, text in tokens[position : end + 1])
            raise LanguageError(
                f"{language.file}: {key}: found {code}; expected one of {', '.join(CALLS)} with the key of a number, such as "
                "{{ n('key') }}"
            )
        found.append((inside[0][2], *(text[1:-1] for _, kind, text in inside if kind == "string")))
        position = end + 1
    return found


def _lexed(source: str, file: Path, key: str) -> list[tuple[int, str, str]]:
    try:
        return list(_LEXER.lex(source))
    except jinja2.TemplateSyntaxError as error:
        raise LanguageError(f"{file}: {key}: {error}") from None


def refuse_typed(language: Language, allowed: set[str]) -> None:
    """Raise LanguageError for the first number in a sentence, in digits or words, that no key stands for.

    In a name, digits that the name in the data has too are no fault.
    """
    words = [word for word in language.words[FEWEST_WORD:] if word]
    spelled = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)
    for key in language.sentences:
        text = " ".join(text for _, kind, text in _lexed(language.sentence(key), language.file, key) if kind == "data")
        for token in typed_in(text, allowed) or spelled.findall(_without(text, allowed)):
            raise LanguageError(
                f"{language.file}: {key}: the number {token!r} is typed into the sentence; define it in paper/numbers.yaml and "
                "write {{ n('key') }}, or {{ word('key') }} to have it spelled out; if it is part of a name, list the name in "
                "paper/allowed.yaml with the reason"
            )
    for name, text in language.names.items():
        if typed := sorted(set(typed_in(text, allowed)) - set(typed_in(name, set()))):
            raise LanguageError(f"{language.file}: {NAMES}: {name}: the number {typed[0]!r} is typed into {text!r}")


def typed_in(text: str, allowed: set[str]) -> list[str]:
    """The tokens with digits that a reader of some HTML would see, without the allowed names."""
    return _DIGITS.findall(_without(text, allowed))


def _without(text: str, allowed: set[str]) -> str:
    text = _TAG.sub(" ", text)
    for name in sorted(allowed, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w|[.,]\d)", " ", text)
    return text


def refuse_text(template: str, file: Path) -> None:
    """Raise LanguageError for words or numbers that stand in the structure itself, where they would be in no language."""
    seen, code = "", ""
    for line, kind, text in _lexed(template, file, "the structure"):
        code = "" if kind.endswith("_begin") else code + text
        # A comparison prints nothing, and a position in a number's groups is none of its values.
        harmless = re.match(r"\s*(?:if|elif)\b", code) or re.search(r"\bparts\('[^']*', \d$", code)
        number = kind in ("integer", "float") or (kind == "string" and re.fullmatch(r"\W*\d[\d.,]*\W*", text[1:-1]))
        if number and not harmless:
            _refuse_text(file, line, text)
        seen += text if kind == "data" else "\n" * text.count("\n")
    for pattern in (_READ_OUT, _BETWEEN):
        for found in pattern.finditer(seen):
            if re.search(r"\w", found[1]):
                _refuse_text(file, seen.count("\n", 0, found.start(1)) + 1, found[1])


def _refuse_text(file: Path, line: int, text: str) -> None:
    raise LanguageError(f"{file}:{line}: found {text.strip()!r}; expected text as t('key') and numbers as n('key')")


def refuse_foreign_numbers(page: str, code: str, file: Path) -> None:
    """Raise LanguageError for a number in a page's text that is written as another language does; names are left out."""
    text = " ".join(_TAG.sub(" ", re.sub(r"<(style|script)\b.*?</\1>", " ", _NAME.sub(" ", page), flags=re.DOTALL)).split())
    for found in re.finditer(r"\d[\d.,]*\d", text):
        if not re.fullmatch(_NUMBERS[code], found.group()):
            around = text[max(0, found.start() - 40) : found.end() + 20]
            raise LanguageError(
                f"{file}: the number {found.group()!r} in '{around}' is not written as in {code!r}; print numbers by key, and "
                "names with digits by name('key')"
            )
