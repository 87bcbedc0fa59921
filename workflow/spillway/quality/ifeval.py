"""IFEval: prompts whose instructions a program can check (J. Zhou et al., arXiv:2311.07911, 2023).

The checks follow the published definitions with four differences, each where those need data that are fetched when they
run, or are known to be wrong:

- `language:response_language` is not checked, since it needs a language detector; the item lists leave such prompts out.
  `change_case:english_*` checks the case and not the language, for the same reason.
- sentences and words are split by the rules below instead of NLTK's trained model;
- `keywords:letter_frequency` counts the character that the entry names, also where it is no letter (keys 1122 and 1129;
  the original counts a random letter there).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

NOT_CHECKED = frozenset({"language:response_language"})
_ABBREVIATIONS = re.compile(
    r"a\.m|approx|co|dept|dr|e\.g|etc|fig|i\.e|inc|jr|ltd|mrs?|ms|no|p\.m|prof|sr|st|u\.k|u\.s|vs"
    r"|jan|feb|mar|apr|jun|jul|aug|sep|oct|nov|dec"
)
# The replies are a stranger's: no pattern here takes time with the square of their length, hence `++` and the look-behinds.
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]*_]*+(?=\s|$)")
_WORD = re.compile(r"\w+")
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_FENCE = re.compile(r"```(?:json)?\s*", re.IGNORECASE)

Arguments = Mapping[str, Any]
Check = Callable[[str, Arguments], bool]


def prompt(entry: Mapping[str, Any]) -> str:
    """What the model is asked: the entry's prompt as it is."""
    return str(entry["prompt"])


def strict(entry: Mapping[str, Any], reply: str) -> list[bool]:
    """For each instruction of an entry, whether the reply follows it; raises KeyError for a kind that is not checked."""
    followed = []
    for kind, arguments in zip(entry["instruction_id_list"], entry["kwargs"], strict=True):
        check = CHECKS[kind]
        followed.append(bool(reply.strip()) and check(reply, arguments))
    return followed


def loose(entry: Mapping[str, Any], reply: str) -> list[bool]:
    """The same, where it is enough that the reply follows without its first line, its last line or its asterisks."""
    lines = reply.split("\n")
    cuts = [reply, "\n".join(lines[1:]).strip(), "\n".join(lines[:-1]).strip(), "\n".join(lines[1:-1]).strip()]
    readings = [strict(entry, text) for cut in cuts for text in (cut, cut.replace("*", ""))]
    return [any(followed) for followed in zip(*readings, strict=True)]


def sentences(text: str) -> int:
    """Sentences: ends with . ! ? before a blank, except behind an abbreviation, an initial or a list's number."""
    count, start, seen, worded = 0, 0, 0, False
    whole = len(text.rstrip())
    for end in _SENTENCE_END.finditer(text):
        worded = worded or _WORD.search(text, seen, end.start()) is not None
        seen = end.start()
        before = text[max(start, seen - 200) : seen].split()
        last = before[-1].lstrip("\"'“‘([*_").lower() if before else ""
        is_dot = end.group().startswith(".") and not end.group().startswith("..")
        at_end = end.end() >= whole
        if is_dot and not at_end and (_ABBREVIATIONS.fullmatch(last) or (len(last) == 1 and last != "i") or last.isdigit()):
            continue
        if worded:
            count += 1
            start = seen = end.end()
            worded = False
    return count + (worded or _WORD.search(text, seen) is not None)


def _relation(found: int, relation: str, wanted: int) -> bool:
    match relation:
        case "at least":
            return found >= wanted
        case "less than":
            return found < wanted
    raise ValueError(f"relation: found {relation!r}; expected at least or less than")


def _existence(reply: str, a: Arguments) -> bool:
    return all(re.search(re.escape(word), reply, re.IGNORECASE) for word in a["keywords"])


def _keyword_frequency(reply: str, a: Arguments) -> bool:
    found = len(re.findall(re.escape(a["keyword"]), reply, re.IGNORECASE))
    return _relation(found, a["relation"], a["frequency"])


def _forbidden(reply: str, a: Arguments) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", reply, re.IGNORECASE) for word in a["forbidden_words"])


def _letter_frequency(reply: str, a: Arguments) -> bool:
    return _relation(reply.lower().count(a["letter"].lower()), a["let_relation"], a["let_frequency"])


def _number_sentences(reply: str, a: Arguments) -> bool:
    return _relation(sentences(reply), a["relation"], a["num_sentences"])


def _number_words(reply: str, a: Arguments) -> bool:
    return _relation(len(_WORD.findall(reply)), a["relation"], a["num_words"])


def _number_paragraphs(reply: str, a: Arguments) -> bool:
    parts = [part.strip() for part in reply.strip().split("***")]
    inner = parts[1:-1] if len(parts) > 1 else []
    return all(inner) and sum(bool(part) for part in parts) == int(a["num_paragraphs"])


def _first_word(reply: str, a: Arguments) -> bool:
    parts = reply.split("\n\n")
    whole = [part for part in parts if part.strip()]
    if len(whole) != a["num_paragraphs"] or a["nth_paragraph"] > len(parts):
        return False
    paragraph = parts[a["nth_paragraph"] - 1].strip()
    word = paragraph.split()[0] if paragraph else ""
    return re.split(r"[.,?!'\"]", word.lstrip("'\""))[0].lower() == str(a["first_word"]).lower()


def _placeholders(reply: str, a: Arguments) -> bool:
    found = sum(len(re.findall(r"\[[^\]]*\]", line[: line.rfind("]") + 1])) for line in reply.split("\n"))
    return found >= int(a["num_placeholders"])


def _postscript(reply: str, a: Arguments) -> bool:
    letters = [letter for letter in a["postscript_marker"].lower() if letter.isalpha()]
    last_dot = r"\." if a["postscript_marker"].endswith(".") else ""
    return re.search(r"p\.\s?" * (len(letters) - 1) + "s" + last_dot, reply.lower()) is not None


def _bullets(reply: str, a: Arguments) -> bool:
    found = re.findall(r"^[^\S\n]*\*[^*].*$", reply, re.MULTILINE) + re.findall(r"^[^\S\n]*-.*$", reply, re.MULTILINE)
    return len(found) == int(a["num_bullets"])


def _constrained(reply: str, a: Arguments) -> bool:
    return any(answer in reply for answer in _ANSWERS)


def _highlights(reply: str, a: Arguments) -> bool:
    single = [part for part in re.findall(r"\*[^\n*]*\*", reply) if part.strip("*").strip()]
    double = [part for part in re.findall(r"\*\*[^\n*]*\*\*", reply) if part.strip("*").strip()]
    return len(single) + len(double) >= int(a["num_highlights"])


def _sections(reply: str, a: Arguments) -> bool:
    return len(re.findall(rf"{re.escape(a['section_spliter'].strip())}\s?\d+", reply)) >= int(a["num_sections"])


def _json(reply: str, a: Arguments) -> bool:
    try:
        text = reply.strip()
        fence = _FENCE.match(text)
        json.loads(text[fence.end() if fence else 0 :].removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(reply: str, a: Arguments) -> bool:
    titles = [title for line in reply.split("\n") for title in re.findall(r"<<.+>>", line[: line.rfind(">>") + 2])]
    return any(title.strip("<>").strip() for title in titles)


def _two_responses(reply: str, a: Arguments) -> bool:
    parts = [part.strip() for part in reply.split("******")]
    responses = [part for part in parts if part]
    return all(parts[1:-1]) and len(responses) == 2 and responses[0] != responses[1]


def _repeat(reply: str, a: Arguments) -> bool:
    return reply.strip().lower().startswith(a["prompt_to_repeat"].strip().lower())


def _end(reply: str, a: Arguments) -> bool:
    return reply.strip().strip('"').lower().endswith(a["end_phrase"].strip().lower())


def _quoted(reply: str, a: Arguments) -> bool:
    text = reply.strip()
    return len(text) > 1 and text[0] == '"' and text[-1] == '"'


def _capital_words(reply: str, a: Arguments) -> bool:
    found = sum(word.isupper() for word in re.findall(r"\w+(?:[-'’]\w+)*", reply))
    return _relation(found, a["capital_relation"], a["capital_frequency"])


CHECKS: dict[str, Check] = {
    "keywords:existence": _existence,
    "keywords:frequency": _keyword_frequency,
    "keywords:forbidden_words": _forbidden,
    "keywords:letter_frequency": _letter_frequency,
    "length_constraints:number_sentences": _number_sentences,
    "length_constraints:number_words": _number_words,
    "length_constraints:number_paragraphs": _number_paragraphs,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": _constrained,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": _repeat,
    "startend:end_checker": _end,
    "startend:quotation": _quoted,
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": lambda reply, _: reply.isupper(),
    "change_case:english_lowercase": lambda reply, _: reply.islower(),
    "punctuation:no_comma": lambda reply, _: "," not in reply,
}
"""Kind of instruction -> whether a reply that is not empty follows it, with the entry's arguments."""
