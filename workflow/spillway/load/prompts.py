"""Prompts that no cache has seen, made fast enough for 260,000 tokens between two events.

A prompt is written straight into the request's JSON, and every token takes the same number of bytes there, so that a
context of n tokens is a slice and a new one is a table look-up: token ids are padded with spaces, which JSON allows.
A server that takes only text gets common English words of four letters, about one token each; how many it counted stands
in its usage.
"""

import hashlib

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_TEXT = (
    "able area away back ball bank base been best blue body book born both call came care city cold come cost dark "
    "data days dead deal deep does done door down draw each east easy edge else even ever face fact fall farm fast "
    "feel feet fell felt file fill film find fine fire firm fish five food foot form four free full game gave girl "
    "give goes gold gone good half hall hand hard have head hear held help here high hold home hope hour idea into "
    "kind king knew know land last late lead left less life line list live long look lord lose loss lost love made "
    "main make many mean meet mind miss more most move much must name near need news next nice nine once only open "
    "over page paid part past path plan play poor read real rest rich ride ring rise road rock role room rule safe "
    "said sale same save seen self send sent ship shop show side sign site size skin slow snow soft soil sold some "
    "song soon sort step stop such sure take talk task team tell term test text than that them then they thin this "
    "thus time told took town tree trip true turn type unit upon used very view vote wait walk wall want warm wash "
    "week well went were west what when whom wide wife wild will wind wine wish with wood word work yard year your "
    "zero"
)
_WORDS = _TEXT.split()


class Alphabet:
    """The tokens that prompts are made of, each as the bytes that stand for it in a request."""

    def __init__(self, rows: list[bytes], before: bytes, after: bytes) -> None:
        self._width = len(rows[0])  # bytes of every token
        self._table: Bytes = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), self._width)
        self._before, self._after = before, after

    @classmethod
    def token_ids(cls, vocabulary: range) -> "Alphabet":
        """For /v1/completions: the prompt is a JSON list of ids from the vocabulary."""
        width = len(str(vocabulary[-1]))
        return cls([b"%*d," % (width, token) for token in vocabulary], b"[", b"]")

    @classmethod
    def words(cls) -> "Alphabet":
        """For /v1/chat/completions: the prompt is a JSON string of words."""
        return cls([word.encode() + b" " for word in _WORDS], b'"', b'"')

    def draw(self, count: int, random: np.random.Generator) -> bytes:
        """`count` random tokens."""
        return self._table[random.integers(0, len(self._table), count)].tobytes()

    def tokens(self, content: bytes | bytearray) -> int:
        return len(content) // self._width

    def first(self, content: bytes | bytearray, count: int) -> bytes:
        """The first `count` tokens."""
        return bytes(memoryview(content)[: count * self._width])

    def json(self, content: bytes | bytearray) -> bytes:
        """A JSON value; the separator after the last token is left out."""
        return self._before + bytes(memoryview(content)[:-1]) + self._after


def fresh(nonce: str, *names: object) -> np.random.Generator:
    """A generator of its own for each nonce and names.

    Content drawn from it differs from any other's within the first block: 16 tokens of 200 words coincide with
    probability 200^-16. Pass the run id in the nonce, or a second run meets the first one's cache.
    """
    digest = hashlib.sha256("/".join([nonce, *map(str, names)]).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))
