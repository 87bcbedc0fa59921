"""Token-level agreement of two servers of one model: the same tokens put before both, and what each would say next.

A small model that fails every task still shows here whether placement or compression changes its numbers at all.
Log-probabilities are natural logarithms, so differences and divergences are in nats.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from spillway.quality import statistics

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Position:
    """One token of a text that was put before a server: its log-probability, and those of the most likely tokens."""

    token: int
    logprob: float
    top: Mapping[int, float]
    first: int
    """The most likely token."""


@dataclass(frozen=True)
class Reading:
    """One server's reading of one text, and what it wrote after it without sampling."""

    positions: Sequence[Position]
    written: Sequence[int]


def divergence(p: Mapping[int, float], q: Mapping[int, float]) -> float:
    """Kullback-Leibler divergence of q from p in nats, from the tokens that both name and the rest as one token.

    Merging tokens can only lower a divergence, so this is a lower bound of that over the whole vocabulary (the
    data-processing inequality). Values are log-probabilities. 0 if nothing but the rest is left.
    """
    shared = p.keys() & q.keys()
    total = math.fsum(math.exp(p[token]) * (p[token] - q[token]) for token in shared)
    p_rest = 1 - math.fsum(math.exp(p[token]) for token in shared)
    q_rest = 1 - math.fsum(math.exp(q[token]) for token in shared)
    if p_rest > 0 and q_rest > 0:
        total += p_rest * math.log(p_rest / q_rest)
    return max(0.0, total)  # rounding of numbers that are equal may leave -1e-17


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Tokens that two texts share before they part; None if they do not, also where one goes on longer."""
    for place, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return place
    return None if len(a) == len(b) else min(len(a), len(b))


def token_rows(text: str, a: Reading, b: Reading) -> Rows:
    """One row for each token of a text; raises ValueError if the two servers did not read the same tokens."""
    if [at.token for at in a.positions] != [at.token for at in b.positions]:
        raise ValueError(f"the text {text!r} is other tokens to one server than to the other; expected one tokenizer")
    return [
        {
            "text": text,
            "position": place,
            "token": one.token,
            "a_logprob": one.logprob,
            "b_logprob": other.logprob,
            "same_first": one.first == other.first,
            "divergence_nats": divergence(one.top, other.top),
        }
        for place, (one, other) in enumerate(zip(a.positions, b.positions, strict=True))
    ]


def text_row(text: str, a: Reading, b: Reading, tokens: Rows) -> dict[str, Any]:
    """The row of one text: means over its tokens, and where the texts written after it part."""
    same_numbers = all(dict(one.top) == dict(other.top) for one, other in zip(a.positions, b.positions, strict=True))
    parted = first_divergence(a.written, b.written)
    return {
        "text": text,
        "tokens": len(tokens),
        "a_nll_nats": -fmean(row["a_logprob"] for row in tokens),
        "b_nll_nats": -fmean(row["b_logprob"] for row in tokens),
        "same_first_fraction": fmean(row["same_first"] for row in tokens),
        "divergence_nats": fmean(row["divergence_nats"] for row in tokens),
        "written_tokens": min(len(a.written), len(b.written)),
        "diverges_after_tokens": parted,
        "identical": same_numbers and parted is None,
    }


def comparison_row(tokens: Rows, texts: Rows) -> dict[str, Any]:
    """The row of one comparison over all texts; the interval's unit is the text, since tokens of one are not independent."""
    differences = [row["b_nll_nats"] - row["a_nll_nats"] for row in texts]
    interval = statistics.clustered_interval(differences)
    parted = [row["diverges_after_tokens"] for row in texts if row["diverges_after_tokens"] is not None]
    return {
        "texts": len(texts),
        "tokens": len(tokens),
        "a_nll_nats": -fmean(row["a_logprob"] for row in tokens),
        "b_nll_nats": -fmean(row["b_logprob"] for row in tokens),
        "difference_nats": fmean(differences),
        "difference_low_nats": interval[0] if interval else None,
        "difference_high_nats": interval[1] if interval else None,
        "largest_difference_nats": max(abs(row["a_logprob"] - row["b_logprob"]) for row in tokens),
        "same_first_fraction": fmean(row["same_first"] for row in tokens),
        "divergence_nats": fmean(row["divergence_nats"] for row in tokens),
        "largest_divergence_nats": max(row["divergence_nats"] for row in tokens),
        "diverged_texts": len(parted),
        "first_divergence_tokens": min(parted, default=None),
        "identical_texts": sum(row["identical"] for row in texts),
        "identical": all(row["identical"] for row in texts),
    }
