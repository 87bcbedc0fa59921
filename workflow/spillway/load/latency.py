"""What the latencies mean: one small function for each, over times and counts of one request.

Times are seconds on one monotonic clock. An output chunk carries content, reasoning or tool-call text; a chunk with only
a role, a finish reason or a usage carries none. Nothing here is defined for a failed request: the client keeps its partial
timings apart. A value that cannot be known is None, never 0. How other clients define the same words, and what that does
to their numbers, stands in benchmarks/README.md.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from spillway.record.samples import samples_needed


def ttft_s(sent_s: float, first_output_s: float) -> float:
    """Time to first token: from sending the request's first byte to the first output chunk of any kind."""
    return first_output_s - sent_s


def ttfa_s(sent_s: float, first_answer_s: float | None) -> float | None:
    """Time to first answer: from sending to the first chunk with content or a tool call, past the reasoning."""
    return None if first_answer_s is None else first_answer_s - sent_s


def e2e_s(sent_s: float, last_output_s: float) -> float:
    """End to end: from sending to the last output chunk; later usage and end of stream do not count."""
    return last_output_s - sent_s


def response_s(scheduled_s: float, last_output_s: float) -> float:
    """From when the request was due to the last output chunk: e2e plus the wait for a free slot in the client."""
    return last_output_s - scheduled_s


def tpot_s(
    first_output_s: float, last_output_s: float, first_output_tokens: int | None, last_output_tokens: int | None
) -> float | None:
    """Time per output token: (t_last - t_first) / (n_last - n_first), n being the tokens up to and with that chunk.

    None if a count is unknown, or if all tokens came in one chunk.
    """
    if first_output_tokens is None or last_output_tokens is None or last_output_tokens <= first_output_tokens:
        return None
    return (last_output_s - first_output_s) / (last_output_tokens - first_output_tokens)


def rate_tok_per_s(tpot_s: float | None) -> float | None:
    """Speed of a stream while it writes: 1 / TPOT; None where TPOT is unknown, or 0 because all chunks came in one read."""
    return 1 / tpot_s if tpot_s else None


def chunk_gaps_s(output_times_s: Sequence[float]) -> list[float]:
    """Gaps between output chunks. A chunk may hold several tokens, so these are not inter-token latencies."""
    return [later - earlier for earlier, later in itertools.pairwise(output_times_s)]


def throughput_tok_per_s(chunks: Sequence[tuple[float, int]], window_start_s: float, window_end_s: float) -> float:
    """Output tokens per second over a window, each chunk's (time, new tokens) counted where it arrived.

    Raises ValueError if the window is empty.
    """
    if window_end_s <= window_start_s:
        raise ValueError(f"the window from {window_start_s} to {window_end_s} s is empty")
    tokens = sum(new for at_s, new in chunks if window_start_s <= at_s < window_end_s)
    return tokens / (window_end_s - window_start_s)


@dataclass(frozen=True)
class TooFewSamples:
    """Instead of a percentile that the sample cannot bound."""

    samples: int
    needed: int

    def __str__(self) -> str:
        return f"too few samples: {self.samples} of {self.needed}"


def percentile(values: Sequence[float], fraction: float, failures: int = 0) -> float | TooFewSamples:
    """The quantile at `fraction` of successes, or of all requests if `failures` are counted, each as infinitely slow.

    Interpolates linearly between order statistics, as numpy does, but is infinite as soon as a failure takes part.
    """
    count = len(values) + failures
    needed = samples_needed(fraction)
    if count < needed:
        return TooFewSamples(count, needed)
    ordered = [*sorted(values), *[math.inf] * failures]
    position = fraction * (count - 1)
    below = math.floor(position)
    share = position - below
    if share == 0:
        return ordered[below]
    low, high = ordered[below], ordered[below + 1]
    return math.inf if math.isinf(high) else low + share * (high - low)
