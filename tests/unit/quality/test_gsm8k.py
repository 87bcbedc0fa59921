"""What counts as the answer of a GSM8K reply, also where other harnesses are known to go wrong."""

import pytest

from spillway.quality import gsm8k

ENTRY = {"question": "How many?", "answer": "18 - 0 = 18\n#### 18"}


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("So 9 + 9 = 18.\n#### 18", "18"),
        ("#### 5\nNo, wait.\n#### 18", "18"),  # the leftmost one is what strict-match takes
        ("#### **18**", "18"),
        ("#### $1,800.50", "$1,800.50"),
        (r"Thus \boxed{18} eggs, and 3 are left.", "18"),
        (r"\boxed{\$18}", "$18"),
        ("The answer is 18 (from 2 baskets).", "18"),
        ("The answer: 17. No, the final answer is 18 eggs.", "18"),
        ("She has 18 eggs (of 20).", "18"),
        ("First 20, then 18.", "18"),
        ("-3 degrees", "-3"),
        ("It is 20-18 of them", "18"),
        ("It costs .5", ".5"),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_extraction(reply: str, number: str | None) -> None:
    assert gsm8k.extract(reply) == number


@pytest.mark.parametrize("text", ["18", "18.0", "$18", "18.", " 18.00 ", "0,018"])
def test_equal_numbers(text: str) -> None:
    assert gsm8k.right(ENTRY, text)


@pytest.mark.parametrize("text", ["180", "-18", "1 8 1", "", "eighteen", "NaN", None])
def test_other_numbers(text: str | None) -> None:
    assert not gsm8k.right(ENTRY, text)


def test_readings_of_the_known_harness_stand_beside() -> None:
    reply = "#### 5\nSorry.\n#### 18"
    assert gsm8k.right(ENTRY, gsm8k.extract(reply))
    assert not gsm8k.right_strict(ENTRY, reply)
    assert gsm8k.right_flexible(ENTRY, reply)
    assert not gsm8k.right_flexible(ENTRY, "It is 18. That took 2 steps.")  # the last number, whatever it counts
    assert gsm8k.right_strict(ENTRY, "#### 18.")


def test_entry_without_an_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="####"):
        gsm8k.gold({"answer": "eighteen"})
