"""Which marks a cell carries: every reason not to take its numbers as they are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from spillway.load.drive import Exchange
from spillway.load.scrape import COUNTERS
from spillway.record.samples import samples_needed

# Where the workload says that a prompt is cached, the cache may miss a tenth of it, or what ends inside two large blocks.
MISSED_FRACTION, MISSED_TOKENS = 0.1, 256


def failures(measured: Sequence[Exchange], others: Sequence[Exchange]) -> list[str]:
    """Failed requests, counted by class, and too few that succeeded to bound a median."""
    marks = []
    classes = Counter(exchange.reply.error for exchange in measured if exchange.reply.error)
    outside = sum(exchange.reply.error is not None for exchange in others)
    if classes:
        marks.append("failed_requests: " + ", ".join(f"{count} {error}" for error, count in sorted(classes.items())))
    if outside:
        marks.append(f"failed_requests: {outside} in warm-up or cool-down")
    ok = sum(exchange.reply.ok for exchange in measured)
    if ok < samples_needed(0.5):
        marks.append(f"too_few_samples: {ok} of {samples_needed(0.5)} for a median")
    return marks


def allowed_tokens(exchange: Exchange) -> int:
    """Most prompt tokens that a cache may answer: what the cell sent before, behind what the server's template adds.

    For prompts of token ids nothing is added. For words it also covers that a word may be more than one token, so there
    the check is weaker.
    """
    counted = exchange.reply.prompt_tokens
    added = 0 if counted is None else max(0, counted - exchange.prompt_tokens)
    return exchange.shared_tokens + added


def cache(sent: Sequence[Exchange], hits: int | None, queries: int | None, *, must_hit: bool) -> list[str]:
    """Whether the caches answered what they may and, where the workload says so, what they must.

    `hits` and `queries` are rises of the server's prefix counters in tokens, None if it has none. `must_hit`: the workload
    says that what is shared is cached.
    """
    marks = []
    told = [(exchange, exchange.reply.cached_tokens) for exchange in sent if exchange.reply.cached_tokens is not None]
    allowed = sum(map(allowed_tokens, sent))
    over = [(exchange, cached) for exchange, cached in told if cached > allowed_tokens(exchange)]
    if over:
        cached = sum(cached for _, cached in over)
        marks.append(f"contaminated: {len(over)} requests had {cached} tokens cached that this cell had not sent")
    elif hits is not None and hits > allowed:
        marks.append(f"contaminated: {hits} tokens hit by the server's counter; at most {allowed} were sent before")
    sent_tokens = sum(exchange.prompt_tokens for exchange in sent)
    if queries is not None and queries > sent_tokens:
        marks.append(f"contaminated: {queries} prompt tokens came in by the server's counter; this cell sent {sent_tokens}")
    if not told and hits is None:
        marks.append("cache_unknown: the server tells neither cached_tokens nor prefix cache counters")
    elif must_hit:
        measured = [(exchange, cached) for exchange, cached in told if exchange.phase == "measured"]
        missed = [exchange for exchange, cached in measured if cached < _must_hit(exchange)]
        if missed:
            marks.append(f"not_cached: {len(missed)} of {len(measured)} requests were answered without the cache")
        elif not measured and hits is not None and hits < sum(map(_must_hit, sent)):
            marks.append(f"not_cached: {hits} tokens hit by the server's counter; {sum(map(_must_hit, sent))} expected")
    return marks


def _must_hit(exchange: Exchange) -> float:
    return exchange.shared_tokens - max(MISSED_FRACTION * exchange.shared_tokens, MISSED_TOKENS)


def counters(pages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether one server, started once, answered the whole cell: then its counters only rise.

    `pages` are rows of the table server_metrics in the order of time.
    """
    highest: dict[tuple[str, str], int] = {}
    for page in pages:
        for column in COUNTERS:
            value, before = page[column], highest.get((page["engine"], column), 0)
            if value is None:
                continue
            if value < before:
                return [f"counters_fell: {column} from {before} to {value}; the server restarted, or another one answered"]
            highest[page["engine"], column] = value
    return []


def prompt_lengths(sent: Sequence[Exchange]) -> list[str]:
    """Prompts of token ids that the server counted differently from what was put into them."""
    wrong = [e for e in sent if e.reply.prompt_tokens is not None and e.reply.prompt_tokens != e.prompt_tokens]
    return [f"prompt_length: the server counted {len(wrong)} prompts differently"] if wrong else []


def client(delays: Mapping[str, float | None], bound_s: float) -> list[str]:
    """Whether the client was quick enough to be believed: its receive delay, and how late its event loop came to its ticks.

    A cell too short for a 99th percentile of the loop's lateness is judged by the largest: what kept the client from running
    may have been the server itself, which the receive delay, measured after the cell, does not see.
    """
    if delays["client_delay_p99_s"] is None:
        return ["client_delay: not measured"]
    loop = "loop_delay_p99_s" if delays["loop_delay_p99_s"] is not None else "loop_delay_max_s"
    marks = []
    for name, what in (("client_delay_p99_s", "receive delay p99"), (loop, f"event loop {loop.split('_')[2]}")):
        found_s = delays[name]
        if found_s is not None and found_s > bound_s:
            marks.append(f"client_delay: {what} {1000 * found_s:.1f} ms above the bound of {1000 * bound_s:g} ms")
    return marks
