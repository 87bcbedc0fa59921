"""Each kind of instruction: a reply that follows it and one that nearly does; counting rules at their edges."""

from typing import Any

import pytest

from spillway.quality import ifeval

CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["Sea", "c++"]}, "The sea, in C++.", "The seal."),
    ("keywords:frequency", {"keyword": "ab", "frequency": 2, "relation": "at least"}, "ab Ab", "ab"),
    ("keywords:frequency", {"keyword": "ab", "frequency": 2, "relation": "less than"}, "ab", "ab ab"),
    ("keywords:forbidden_words", {"forbidden_words": ["time"]}, "Timely sometimes.", "No Time."),
    ("keywords:letter_frequency", {"letter": "A", "let_frequency": 2, "let_relation": "at least"}, "aA", "ab"),
    ("keywords:letter_frequency", {"letter": "#", "let_frequency": 2, "let_relation": "at least"}, "##", "a#"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two!", "One, two."),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "one two", "one two three"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n***\n***\nb"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "president"},
        'One.\n\n"President, hello.',
        "One.\n\nThe president.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] and [b c]", "[a]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. More.", "Bye. PS more"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "P.S. a\nP.P.S b", "P.S. a"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n- b\n- c"),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", "*a* and **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1\na\nSECTION 2\nb",
        "SECTION 1\na\nSection 2",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', '{"a": 1'),
    ("detectable_format:title", {}, "<<Rain>>\nIt falls.", "<< >>"),
    ("combination:two_responses", {}, "one\n******\ntwo", "one\n******\none"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "say it. It.", "I say it."),
    ("startend:end_checker", {"end_phrase": "That is all."}, 'Bread. That is all."', "That is all. Bread."),
    ("startend:quotation", {}, ' "Hello" ', '"Hello'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "NOW GO", "NOW go"),
    ("change_case:english_capital", {}, "ALL OF IT.", "All OF IT."),
    ("change_case:english_lowercase", {}, "all of it.", "All of it."),
    ("punctuation:no_comma", {}, "no comma", "a, comma"),
]


def entry(kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"instruction_id_list": [kind], "kwargs": [arguments]}


@pytest.mark.parametrize(("kind", "arguments", "follows", "fails"), CASES)
def test_instruction(kind: str, arguments: dict[str, Any], follows: str, fails: str) -> None:
    assert ifeval.strict(entry(kind, arguments), follows) == [True]
    assert ifeval.strict(entry(kind, arguments), fails) == [False]


def test_every_kind_that_is_checked_is_tested() -> None:
    assert {kind for kind, *_ in CASES} == set(ifeval.CHECKS)


def test_an_empty_reply_follows_nothing() -> None:
    assert ifeval.strict(entry("punctuation:no_comma", {}), " \n") == [False]


def test_loose_forgives_a_first_line_and_asterisks() -> None:
    quoted = entry("startend:quotation", {})
    reply = 'Sure, here it is:\n"Hello"'
    assert ifeval.strict(quoted, reply) == [False]
    assert ifeval.loose(quoted, reply) == [True]
    assert ifeval.loose(entry("startend:end_checker", {"end_phrase": "Bye."}), "Hi. **Bye.**") == [True]


def test_a_kind_that_is_not_checked_is_no_pass() -> None:
    with pytest.raises(KeyError):
        ifeval.strict(entry("language:response_language", {"language": "de"}), "Guten Tag.")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("One", 1),
        ("One. Two? Three!", 3),
        ("Dr. Brown met Mrs. Green at 3.5 p.m. today.", 1),
        ('He said "Go." Then he went.', 2),
        ("1. First point\n2. Second point", 1),
        ("Wait... what?! No.", 3),
        ("See e.g. the list etc. and go.", 1),
    ],
)
def test_sentences(text: str, number: int) -> None:
    assert ifeval.sentences(text) == number
