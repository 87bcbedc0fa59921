"""Workloads: what the load client sends, as checked data.

Six kinds, each answering one question. In all of them a stream is a chain of requests, each sent when the one before has
been answered (closed loop), except `arrivals`, where requests are sent by the clock. Only `requests` of them are
measured. What precedes them in a stream is warm-up: every stream warms up with prompts of its own and goes on until
all have, so that the first measured request meets a full batch; and a stream that has finished its measured part goes on,
unmeasured, until all have, so that the last one does too.
"""

import argparse
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

MOST = 2**31 - 1
"""No more tokens, requests or streams, and no larger seed: what they are multiplied by still fits the tables' integers."""
Count = Annotated[int, Field(ge=0, le=MOST)]
PositiveCount = Annotated[int, Field(gt=0, le=MOST)]


def seed_option(text: str) -> int:
    """What argparse makes of an option that is a seed; it says the option's name before what is refused."""
    if not (text.isdecimal() and int(text) <= MOST):
        raise argparse.ArgumentTypeError(f"found {text}; expected 0 to {MOST}")
    return int(text)


class _Workload(BaseModel):
    """Every kind also says `most_streams`, at once, and `longest_sequence_tokens`, prompt and answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    limit_s: PositiveFloat | None = Field(
        None,
        description="no request is sent later than this after the streams' start; what remains is recorded as not sent",
    )


class _Closed(_Workload):
    streams: PositiveCount = Field(1, description="chains of requests at once: users, held contexts or agents")
    requests: PositiveCount = Field(description="measured requests in all, shared out evenly over the streams")
    warmup: Count = Field(1, description="warm-up requests of each stream before its measured ones")

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.requests % self.streams:
            raise ValueError(
                f"requests: {self.requests} do not share out over {self.streams} streams; use a multiple of `streams`"
            )
        return self

    @property
    def most_streams(self) -> int:
        return self.streams


class PromptSweep(_Closed):
    """Prompts of one length, none seen before: TTFT and TPOT against context."""

    kind: Literal["prompt_sweep"]
    prompt_tokens: PositiveCount
    output_tokens: PositiveCount

    @property
    def longest_sequence_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class CachedPrefix(_Closed):
    """Users who share one cached prefix: each request is the prefix and a suffix of its own, never seen before.

    The prefix is read once, alone and unmeasured, before the users start.
    """

    kind: Literal["cached_prefix"]
    prefix_tokens: PositiveCount
    suffix_tokens: PositiveCount
    output_tokens: PositiveCount

    @property
    def longest_sequence_tokens(self) -> int:
        return self.prefix_tokens + self.suffix_tokens + self.output_tokens


class Contexts(_Closed):
    """Contexts held at once: each stream keeps a context of its own in the KV cache and adds to it again and again.

    A request is the stream's context and a suffix never seen before, `context_tokens` in all; neither suffix nor answer
    is kept, so that the context held stays this long. Reading the contexts is warm-up.
    """

    kind: Literal["contexts"]
    context_tokens: PositiveCount
    suffix_tokens: PositiveCount
    output_tokens: PositiveCount
    warmup: PositiveCount = Field(1, description="requests of each stream before its measured ones; the first reads it")

    @model_validator(mode="after")
    def _room(self) -> "Contexts":
        if self.suffix_tokens >= self.context_tokens:
            raise ValueError(
                f"suffix_tokens: {self.suffix_tokens} leave nothing to hold of context_tokens {self.context_tokens}"
            )
        return self

    @property
    def longest_sequence_tokens(self) -> int:
        return self.context_tokens + self.output_tokens


class AgentTurns(_Closed):
    """Coding agents: each stream sends its growing context, is answered, and sends it again with the tool's result.

    Lengths and pauses are drawn from distributions fitted to real sessions (data/workloads/README.md), then scaled and
    limited to what the host can hold. A context that would pass its limit is replaced by a new one.
    """

    kind: Literal["agent_turns"]
    distributions: Path = Field(
        Path("data/workloads/agent_turns.csv"), description="a relative path is taken from the working directory"
    )
    context_limit_tokens: PositiveCount = Field(description="longest prompt; a longer one starts the next session")
    output_limit_tokens: PositiveCount
    token_scale: PositiveFloat = Field(1.0, description="multiplies every drawn length of context and tool result")
    output_scale: PositiveFloat = Field(1.0, description="multiplies every drawn length of answer")
    think_scale: float = Field(1.0, ge=0, description="multiplies every drawn pause")
    think_limit_s: PositiveFloat = Field(60.0, description="longest pause; a longer one is cut to this")

    @property
    def longest_sequence_tokens(self) -> int:
        return self.context_limit_tokens + self.output_limit_tokens


class Trace(_Closed):
    """Recorded sessions sent again: closed loop, with the recorded lengths, reuse and pauses.

    Each stream is a session drawn by the seed; one that ends is followed by another.

    The file is a Parquet table with one row per request: session, request, input_tokens, output_tokens, think_time
    (seconds since the previous answer), common_blocks (leading 64-token blocks shared with the session's previous
    request).
    """

    kind: Literal["trace"]
    path: Path = Field(description="the Parquet file; a relative path is taken from the working directory")
    context_limit_tokens: PositiveCount = Field(description="longest prompt; longer ones lose their end")
    output_limit_tokens: PositiveCount
    token_scale: PositiveFloat = Field(1.0, description="multiplies every recorded length of context")
    output_scale: PositiveFloat = Field(1.0, description="multiplies every recorded length of answer")
    think_scale: float = Field(1.0, ge=0, description="multiplies every recorded pause")
    think_limit_s: PositiveFloat = Field(60.0, description="longest pause; a longer one is cut to this")

    @property
    def longest_sequence_tokens(self) -> int:
        return self.context_limit_tokens + self.output_limit_tokens


class Arrivals(_Workload):
    """Requests by the clock, whether or not earlier ones were answered (open loop); prompts never seen before.

    Gaps are gamma distributed with the mean 1 / rate_per_s: burstiness 1 is Poisson, smaller is burstier, and `null` is a
    constant gap.
    """

    kind: Literal["arrivals"]
    rate_per_s: PositiveFloat
    burstiness: PositiveFloat | None = Field(1.0, description="shape of the gamma distribution of the gaps")
    prompt_tokens: PositiveCount
    output_tokens: PositiveCount
    requests: PositiveCount = Field(description="measured requests")
    warmup: Count = Field(0, description="requests before the measured ones, at the same rate")

    @property
    def most_streams(self) -> int:
        """One: the clock bounds nothing, and how many requests pile up is what the cell finds out."""
        return 1

    @property
    def longest_sequence_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


Workload = Annotated[PromptSweep | CachedPrefix | Contexts | AgentTurns | Trace | Arrivals, Field(discriminator="kind")]
