"""Prompts: valid JSON of the asked length, new in the first block, cheap at 260,000 tokens."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.load.prompts import Alphabet, fresh

IDS = Alphabet.token_ids(range(5, 151_000))
WORDS = Alphabet.words()


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_a_prompt_is_json_of_the_asked_length_within_the_vocabulary(count: int, seed: int) -> None:
    content = IDS.draw(count, fresh("n", seed))
    prompt = json.loads(IDS.json(content))
    assert len(prompt) == IDS.tokens(content) == count
    assert all(5 <= token < 151_000 for token in prompt)
    text = json.loads(WORDS.json(WORDS.draw(count, fresh("n", seed))))
    assert len(text.split()) == count and {len(word) for word in text.split()} == {4}


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_context_is_a_slice_and_grows_by_appending(first: int, more: int) -> None:
    random = fresh("n")
    start, rest = IDS.draw(first, random), IDS.draw(more, random)
    whole = json.loads(IDS.json(start + rest))
    assert whole == json.loads(IDS.json(start)) + json.loads(IDS.json(rest))
    assert json.loads(IDS.json(IDS.first(start + rest, first))) == whole[:first]


@pytest.mark.parametrize("alphabet", [IDS, WORDS, Alphabet.token_ids(range(1000, 1200))])
def test_no_two_prompts_share_their_first_block(alphabet: Alphabet) -> None:
    blocks = {
        alphabet.draw(16, fresh(nonce, cell, stream)) for nonce in ("a", "b") for cell in ("c", "d") for stream in range(500)
    }
    assert len(blocks) == 2000


def test_the_same_names_give_the_same_tokens() -> None:
    assert IDS.draw(100, fresh("run", "cell", 1)) == IDS.draw(100, fresh("run", "cell", 1))
    assert IDS.draw(100, fresh("run", "cell", 1)) != IDS.draw(100, fresh("run", "cell", 11))


def test_260_000_tokens_are_made_between_two_events() -> None:
    begin = time.process_time()
    for number in range(10):
        IDS.json(IDS.draw(260_000, fresh("n", number)))
    assert (time.process_time() - begin) / 10 < 0.05  # seconds of processor time; measured at 0.006
