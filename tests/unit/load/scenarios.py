"""Streams that clients are known to get wrong, each with what is right: class, text, counts and which chunks count.

The numbers are those of the published comparison of five clients, as far as one exists for the stream; "S" numbers name
the behaviours, the others are further cuts of the same. `script` is for golden_server; its `tokens` are the truth.
"""

import json
from dataclasses import dataclass, field
from typing import Any

GAP_S = 0.01
LATE_S = 0.3  # far above what a busy machine adds to a receive time


@dataclass(frozen=True)
class Scenario:
    """A scripted answer, and the only right reading of it. Fields left out are not told by the stream."""

    name: str
    script: dict[str, Any]
    error: str | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: str = ""
    tokens: int | None = None
    source: str = "none"
    first_chunk_tokens: int | None = None
    last_chunk_tokens: int | None = None
    message: str = ""  # part of the error's message
    endpoint: dict[str, Any] = field(default_factory=dict)  # overrides for the client
    seconds: float | None = None  # the client must be through within so many


def delta(content: Any = None, *, finish: str | None = None, usage: int | None = None, **fields: Any) -> dict[str, Any]:
    """One chat chunk; `usage` is its completion_tokens."""
    parts = fields if content is None else {"content": content} | fields
    return message([{"index": 0, "delta": parts, "finish_reason": finish}], usage)


def message(choices: list[dict[str, Any]], usage: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": choices}
    if usage is not None:
        found["usage"] = {"prompt_tokens": 7, "completion_tokens": usage, "total_tokens": 7 + usage}
    return found


def data(value: Any, tokens: int | None = None, wait_s: float = GAP_S) -> dict[str, Any]:
    return {"data": value, "wait_s": wait_s} | ({} if tokens is None else {"tokens": tokens})


def text(value: str, tokens: int | None = None, wait_s: float = GAP_S) -> dict[str, Any]:
    return {"text": value, "wait_s": wait_s} | ({} if tokens is None else {"tokens": tokens})


ROLE = data(delta("", role="assistant"))
DONE = text("data: [DONE]\n\n", wait_s=0)
WORDS = ["Hello", " wide", " world", ",", " again"]


def words(usage: bool = True, gap_s: float = GAP_S) -> list[dict[str, Any]]:
    """Five tokens, one per chunk."""
    return [data(delta(word, usage=n if usage else None), n, gap_s) for n, word in enumerate(WORDS, start=1)]


def finish(usage: int | None = None) -> dict[str, Any]:
    return data(delta(finish="length", usage=usage))


def last_usage(tokens: int, wait_s: float = 0.0) -> dict[str, Any]:
    return data(message([], tokens), wait_s=wait_s)


def joined(steps: list[dict[str, Any]]) -> str:
    """The bytes of steps as one text."""
    return "".join(
        f"data: {json.dumps(step['data'], ensure_ascii=False)}\n\n" if "data" in step else step["text"] for step in steps
    )


def script(*steps: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"steps": list(steps), **options}


PLAIN = [ROLE, *words(), finish(5), last_usage(5), DONE]
FIVE = {"content": "".join(WORDS), "tokens": 5, "source": "continuous_usage", "first_chunk_tokens": 1, "last_chunk_tokens": 5}
FIVE_BY_CHUNKS = FIVE | {"source": "final_usage"}
UNICODE = [ROLE, data(delta("über ", usage=1), 1), data(delta("日本 🜁", usage=2), 2), finish(2), last_usage(2), DONE]
TWO_UNICODE = {
    "content": "über 日本 🜁",
    "tokens": 2,
    "source": "continuous_usage",
    "first_chunk_tokens": 1,
    "last_chunk_tokens": 2,
}


def _inside_umlaut() -> int:
    return joined(UNICODE).encode().index("ü".encode()) + 1


def _after_spaces() -> list[int]:
    body = joined(PLAIN).encode()
    return [at + 1 for at, byte in enumerate(body) if byte == ord(" ")]


def _tool_call(**function: str) -> dict[str, Any]:
    return {"index": 0, "id": "call_1", "type": "function", "function": function}


SCENARIOS = [
    Scenario("01 baseline", script(*PLAIN), **FIVE),
    Scenario(
        "02 keep-alive comments in packets of their own (S2)",
        script(ROLE, text(": ping\n\n"), *[s for word in words() for s in (word, text(": ping\n\n"))], finish(5), DONE),
        **FIVE,
    ),
    Scenario("03 cut after every space (S3)", script(*PLAIN, cut=_after_spaces()), **FIVE),
    Scenario("03b cut after every byte (S3)", script(ROLE, *words(), DONE, cut="bytes"), **FIVE),
    Scenario("04 cut inside a UTF-8 character (S3)", script(*UNICODE, cut=[_inside_umlaut()]), **TWO_UNICODE),
    Scenario("05 all in one packet (S3)", script(text(joined(PLAIN), tokens=5)), **FIVE),
    Scenario("06 CRLF (S4)", script(text(joined(PLAIN).replace("\n", "\r\n"), tokens=5)), **FIVE),
    Scenario("06b CR alone (S4)", script(text(joined(PLAIN).replace("\n", "\r"), tokens=5)), **FIVE),
    Scenario("06c CRLF cut between CR and LF (S4)", script(text(joined(PLAIN).replace("\n", "\r\n"), 5), cut="bytes"), **FIVE),
    Scenario("07 data: without space (S4)", script(text(joined(PLAIN).replace("data: ", "data:"), tokens=5)), **FIVE),
    Scenario(
        "07b event, id and retry lines, data over two lines (S4)",
        script(
            text("retry: 10\nid: 7\nevent: message\n" + joined(PLAIN[:-1]).replace('{"id"', '{\ndata: "id"'), tokens=5), DONE
        ),
        **FIVE,
    ),
    Scenario("07c byte order mark", script(text("\ufeff" + joined(PLAIN), tokens=5)), **FIVE),
    Scenario(
        "08 raw U+2028, U+2029 and U+0085 (S5)",
        script(ROLE, data(delta("a\u2028b\u2029c\u0085d", usage=1), 1), finish(1), DONE),
        content="a\u2028b\u2029c\u0085d",
        tokens=1,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=1,
    ),
    Scenario(
        "09 error inside the stream (S6)",
        script(ROLE, *words()[:2], data({"error": {"message": "engine died", "code": 500}}), DONE),
        error="in_band_error",
        message="engine died",
        content="Hello wide",
        tokens=2,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=2,
    ),
    Scenario(
        "09b event of type error (S6)",
        script(ROLE, *words()[:2], text('event: error\ndata: {"message": "overloaded"}\n\n'), DONE),
        error="in_band_error",
        message="overloaded",
        content="Hello wide",
        tokens=2,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=2,
    ),
    Scenario(
        "09c an error with half a surrogate pair, which no file can hold",
        script(text('data: {"error": {"message": "\\ud83d"}}\n\n'), DONE),
        error="in_band_error",
        message="\\ud83d",
    ),
    Scenario(
        "09d a finish_reason with half a surrogate pair",
        script(ROLE, *words(), text('data: {"choices": [{"delta": {}, "finish_reason": "\\ud83d"}]}\n\n'), DONE),
        **FIVE,
    ),
    Scenario(
        "10 reset in the stream (S7)",
        script(ROLE, *words()[:2], {"wait_s": 0.05, "end": "reset"}),
        error="transport",
        content="Hello wide",
        tokens=2,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=2,
    ),
    Scenario(
        "10b connection closed without the end of the body (S7)",
        script(ROLE, *words()[:2], {"wait_s": 0.05, "end": "close"}),
        error="transport",
        content="Hello wide",
        tokens=2,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=2,
    ),
    Scenario(
        "10c body shorter than its Content-Length (S7)",
        script(*PLAIN[:3], {"end": "close"}, length=100_000),
        error="transport",
        content="Hello wide",
        tokens=2,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=2,
    ),
    Scenario(
        "11 complete body without finish_reason and [DONE] (S7)",
        script(ROLE, *words()),
        error="truncated",
        **FIVE,
    ),
    Scenario(
        "11b body ends inside the finish event (S7)",
        script(ROLE, *words(), text(joined([finish(5)]).rstrip("\n"))),
        error="truncated",
        **FIVE,
    ),
    Scenario("11c finish_reason without [DONE]", script(ROLE, *words(), finish(5)), **FIVE),
    Scenario("11d [DONE] without finish_reason", script(ROLE, *words(), DONE), **FIVE),
    Scenario("11e [DONE], then the body never ends", script(*PLAIN, {"end": "hang"}), seconds=2.5, **FIVE),
    Scenario("11f [DONE], then a reset", script(*PLAIN, {"wait_s": 0.05, "end": "reset"}), **FIVE),
    Scenario(
        "11g [DONE], then keep-alive comments for ever (S2)",
        script(*PLAIN, *[text(": ping\n\n", wait_s=0.3)] * 20, {"end": "hang"}),
        seconds=2.5,
        **FIVE,
    ),
    Scenario(
        '11h finish_reason "" for null on every chunk, then a complete body (S7)',
        script(ROLE, *[data(delta(word, finish="", usage=n), n) for n, word in enumerate(WORDS, start=1)]),
        error="truncated",
        **FIVE,
    ),
    Scenario(
        "11i an answer that the engine aborted: finish_reason and [DONE] are there",
        script(ROLE, *words()[:2], data(delta(finish="abort", usage=2)), last_usage(2), DONE),
        error="in_band_error",
        message="finish_reason: abort",
        content="Hello wide",
        tokens=2,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=2,
    ),
    Scenario(
        "12 reasoning, then content (S9)",
        script(
            ROLE,
            data(delta(reasoning_content="Let me", usage=1), 1),
            data(delta(reasoning=" think", usage=2), 2),
            data(delta("Yes", usage=3), 3, LATE_S),
            finish(3),
            DONE,
        ),
        content="Yes",
        reasoning="Let me think",
        tokens=3,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=3,
    ),
    Scenario(
        "13 tool calls only (S9)",
        script(
            ROLE,
            data(delta(tool_calls=[_tool_call(name="search", arguments="")], usage=1), 1),
            data(delta(tool_calls=[{"index": 0, "function": {"arguments": '{"q": 1}'}}], usage=4), 4),
            data(delta(finish="tool_calls", usage=4)),
            DONE,
        ),
        tool_calls='search{"q": 1}',
        tokens=4,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=4,
    ),
    Scenario("14 no usage at all (S10)", script(ROLE, *words(usage=False), finish(), DONE), content="".join(WORDS)),
    Scenario(
        "14b usage in the last chunk only (S10)",
        script(ROLE, *words(usage=False), finish(), last_usage(5), DONE),
        **FIVE_BY_CHUNKS,
    ),
    Scenario(
        "14c usage in the last chunk, several tokens per chunk (S10)",
        script(ROLE, *words(usage=False), finish(), last_usage(9), DONE),
        content="".join(WORDS),
        tokens=9,
        source="final_usage",
    ),
    Scenario(
        "14d usage in the last chunk, the end token without text",
        script(ROLE, *words(usage=False), data(delta(finish="stop")), last_usage(6), DONE),
        content="".join(WORDS),
        tokens=6,
        source="final_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=5,
    ),
    Scenario(
        "15 twelve tokens in three chunks (S11)",
        script(
            ROLE,
            data(delta("a b c d", usage=4), 4),
            data(delta(" e f g h", usage=8), 8, 0.1),
            data(delta(" i j k l", usage=12), 12, 0.1),
            finish(12),
            last_usage(12),
            DONE,
        ),
        content="a b c d e f g h i j k l",
        tokens=12,
        source="continuous_usage",
        first_chunk_tokens=4,
        last_chunk_tokens=12,
    ),
    Scenario(
        "15b a count that falls says nothing about the chunks",
        script(
            ROLE, data(delta("a b", usage=5), 5), data(delta(" c", usage=3), 3), data(delta(" d", usage=6), 6), finish(6), DONE
        ),
        content="a b c d",
        tokens=6,
        source="final_usage",
    ),
    Scenario(
        "15c a chunk that counts more than the whole answer has",
        script(ROLE, data(delta("a", usage=1), 1), data(delta(" b c d", usage=30), 30), last_usage(4), DONE),
        content="a b c d",
        tokens=4,
        source="final_usage",
    ),
    Scenario(
        "16 role chunk long before the text (S1)",
        script(ROLE, {**words()[0], "wait_s": LATE_S}, *words()[1:], finish(5), DONE),
        **FIVE,
    ),
    Scenario("17 only [DONE] (S8)", script(DONE), error="empty"),
    Scenario("17b role, finish and [DONE], no output (S8)", script(ROLE, finish(1), DONE), error="empty", tokens=1),
    Scenario("17c empty body (S8)", script(), error="empty"),
    Scenario(
        "17d a page of HTML (S8)", script(text("<html>\n<body>Sign in</body></html>\n")), error="not_sse", message="Sign in"
    ),
    Scenario(
        "17e one JSON object instead of a stream (S8)",
        script(text('{"choices": [{"message": {"content": "Hi"}}]}'), headers={"content-type": "application/json"}),
        error="not_sse",
        message='"Hi"',
    ),
    Scenario("17f an event that is not JSON", script(ROLE, text("data: {oops\n\n"), DONE), error="not_sse", message="oops"),
    Scenario("17g an event that is a JSON list", script(ROLE, text("data: [1]\n\n"), DONE), error="not_sse", message="[1]"),
    Scenario("17h an event of another shape", script(text('data: {"choices": [3]}\n\n'), DONE), error="not_sse", message="[3]"),
    Scenario("18 usage in the finish chunk (S10)", script(ROLE, *words(usage=False), finish(5), DONE), **FIVE_BY_CHUNKS),
    Scenario(
        "19 usage half a second late (S10)",
        script(ROLE, *words(), finish(5), last_usage(5, wait_s=0.5), DONE),
        **FIVE,
    ),
    Scenario(
        "20 fields that are null (S9)",
        script(
            data({**delta("", role="assistant", reasoning_content=None, tool_calls=None), "usage": None, "error": None}),
            *[
                data({**delta(word, usage=n, reasoning_content=None, reasoning=None, tool_calls=None), "error": None}, n)
                for n, word in enumerate(WORDS, start=1)
            ],
            data(message([{"index": 0, "delta": None, "finish_reason": "length"}])),
            data({**message([], 5), "choices": None}),
            DONE,
        ),
        **FIVE,
    ),
    Scenario(
        "21 status 500 with a message",
        script(text("worker crashed"), status=500),
        error="http_status",
        message="500: worker crashed",
    ),
    Scenario(
        "21b status 400 in the middle of nothing",
        script(text('{"error": {"message": "too long"}}'), status=400, headers={"content-type": "application/json"}),
        error="http_status",
        message="too long",
    ),
    Scenario(
        "21c status 502 with an encoding that was not asked for, and broken",
        script(text("bad gateway"), status=502, headers={"content-encoding": "gzip"}),
        error="transport",
        message="DecodingError",
    ),
    Scenario(
        "21d a redirect to what is no address",
        script(status=302, headers={"location": "//\x7f/"}),
        error="transport",
        message="location",
    ),
    Scenario(
        "22 an event of one megabyte (S3)",
        script(ROLE, data(delta("x" * 1_000_000, usage=1), 1), finish(1), DONE),
        content="x" * 1_000_000,
        tokens=1,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=1,
    ),
    Scenario(
        "23 two tokens, then silence (S12)",
        script(ROLE, *words()[:2], {"end": "hang"}),
        error="timeout",
        message="after 2 output chunks",
        content="Hello wide",
        tokens=2,
        source="continuous_usage",
        first_chunk_tokens=1,
        last_chunk_tokens=2,
        endpoint={"progress_timeout_s": 0.3},
        seconds=1.5,
    ),
    Scenario(
        "23b keep-alive comments and no token (S2, S12)",
        script(ROLE, *[text(": ping\n\n", wait_s=0.1)] * 20, *words(), DONE),
        error="timeout",
        message="after 0 output chunks",
        endpoint={"first_output_timeout_s": 0.5},
        seconds=1.5,
    ),
    Scenario(
        "23c slow, but never silent for long (S12)",
        script(ROLE, *words(gap_s=0.2), finish(5), DONE),
        endpoint={"progress_timeout_s": 0.5, "first_output_timeout_s": 0.8},
        **FIVE,
    ),
    Scenario("24 an answer of Content-Length", script(*PLAIN, length=True), **FIVE),
]
