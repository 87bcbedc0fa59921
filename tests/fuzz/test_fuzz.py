"""Every reader answers samples, what once broke it, and a few hundred damaged samples with a value or with its own error.

The long search is a command of its own, see run.py. Its findings lie in crashes/ and are read again here for ever.
"""

from pathlib import Path

import pytest
from readers import READERS, Reader
from search import CRASHES, Finding, attempt, search

INPUTS = 25
HANG_S = 60.0
"""Far above what a busy machine makes of an input; the search itself allows a twelfth of it."""


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_samples_are_read(reader: Reader, tmp_path: Path) -> None:
    assert reader.samples()
    for content in reader.samples():
        assert attempt(reader, content, tmp_path, HANG_S) == "read"


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_damaged_samples_end_in_a_value_or_the_readers_own_error(reader: Reader, tmp_path: Path) -> None:
    found = search(reader, HANG_S, seed=1, scratch=tmp_path, current=None, most=INPUTS, kept=False)
    assert found.findings == {}


TEXTS = [name for name, reader in READERS.items() if reader.form == "text"]
PATTERNS = (b"[", b"<<", b". ", b"*", b" ", b"\n", b'"', b"{", b",", b"data: ", b"1", b"\r")


@pytest.mark.parametrize("name", TEXTS)
def test_what_repeats_without_end_takes_no_time_with_its_square(name: str, tmp_path: Path) -> None:
    """100,000 bytes take well under a second; a reader that is quadratic takes minutes, and is stopped at HANG_S."""
    for pattern in PATTERNS:
        outcome = attempt(READERS[name], pattern * (100_000 // len(pattern)), tmp_path, HANG_S)
        assert not isinstance(outcome, Finding), f"{pattern!r}: {outcome.trace}"


@pytest.mark.parametrize("name", sorted(path.name for path in CRASHES.iterdir()))
def test_what_once_broke_a_reader(name: str, tmp_path: Path) -> None:
    paths = sorted((CRASHES / name).iterdir())
    assert paths, f"{CRASHES / name} is empty"
    for path in paths:
        outcome = attempt(READERS[name], path.read_bytes(), tmp_path, HANG_S)
        assert not isinstance(outcome, Finding), f"{path}: {outcome.trace}"
