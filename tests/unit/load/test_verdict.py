"""Marks, each alone, on requests made by hand."""

from typing import Any

from spillway.load import verdict
from spillway.load.client import Reply
from spillway.load.drive import Exchange
from spillway.load.scrape import COLUMNS


def sent(prompt: int = 1000, shared: int = 0, phase: Any = "measured", **reply: Any) -> Exchange:
    answered = {"over": True, "prompt_tokens": prompt, "cached_tokens": 0} | reply
    return Exchange(0, 0, phase, 0.0, prompt, 10, shared, Reply(**answered))


def names(marks: list[str]) -> list[str]:
    return [mark.split(":")[0] for mark in marks]


def test_failures_are_counted_by_class() -> None:
    fine, lost, cut = [sent() for _ in range(5)], sent(error="transport"), sent(error="truncated")
    assert verdict.failures(fine, []) == []
    assert verdict.failures([*fine, lost, lost, cut], []) == ["failed_requests: 2 transport, 1 truncated"]
    assert verdict.failures(fine, [lost]) == ["failed_requests: 1 in warm-up or cool-down"]
    assert verdict.failures(fine[:4], []) == ["too_few_samples: 4 of 5 for a median"]


def test_cached_tokens_that_were_never_sent() -> None:
    assert verdict.cache([sent()], 0, 1000, must_hit=False) == []
    assert names(verdict.cache([sent(cached_tokens=16)], 16, 1000, must_hit=False)) == ["contaminated"]
    assert verdict.cache([sent(shared=500, cached_tokens=496)], 496, 1000, must_hit=False) == []
    assert names(verdict.cache([sent(shared=500, cached_tokens=512)], 512, 1000, must_hit=False)) == ["contaminated"]


def test_counters_must_agree_where_requests_tell_nothing() -> None:
    silent = sent(cached_tokens=None)
    assert names(verdict.cache([silent], 16, 1000, must_hit=False)) == ["contaminated"]
    assert names(verdict.cache([silent], 0, 1001, must_hit=False)) == ["contaminated"]
    assert verdict.cache([silent], 0, None, must_hit=False) == []
    assert names(verdict.cache([silent], None, None, must_hit=False)) == ["cache_unknown"]


def test_a_template_before_the_words_may_be_cached() -> None:
    chat = sent(prompt_tokens=1020, cached_tokens=16)
    assert verdict.cache([chat], 16, None, must_hit=False) == []


def test_what_must_be_cached_and_was_not() -> None:
    held = sent(shared=900, cached_tokens=768)  # 6 whole blocks of 128, the seventh ends behind the prefix
    lost = sent(shared=900, cached_tokens=512)
    assert verdict.cache([held], 768, 1000, must_hit=True) == []
    assert names(verdict.cache([held, lost], 1280, 2000, must_hit=True)) == ["not_cached"]
    assert verdict.cache([lost], 512, 1000, must_hit=False) == []
    warmup = sent(shared=900, cached_tokens=0, phase="warmup")
    assert verdict.cache([warmup, held], 768, 2000, must_hit=True) == []
    silent = sent(shared=900, cached_tokens=None)
    assert names(verdict.cache([silent], 128, 1000, must_hit=True)) == ["not_cached"]


def test_counters_that_fall_are_of_another_server() -> None:
    def page(engine: str, queries: int | None) -> dict[str, Any]:
        return {"at_s": 0.0, "engine": engine} | dict.fromkeys(COLUMNS) | {"running": 9, "prefix_query_tokens": queries}

    assert verdict.counters([]) == []
    assert verdict.counters([page("0", 5), page("1", 3), page("0", 5), page("0", None), page("1", 4) | {"running": 0}]) == []
    fell = ["counters_fell: prefix_query_tokens from 5 to 3; the server restarted, or another one answered"]
    assert verdict.counters([page("0", 0), page("0", 5), page("0", None), page("0", 3), page("0", 9)]) == fell


def test_prompts_that_the_server_counts_differently() -> None:
    assert verdict.prompt_lengths([sent()]) == []
    assert names(verdict.prompt_lengths([sent(), sent(prompt_tokens=1001)])) == ["prompt_length"]


def test_a_late_client() -> None:
    def judged(receive: float | None, loop: float | None, largest: float = 0.5) -> list[str]:
        delays = {"client_delay_p99_s": receive, "loop_delay_p99_s": loop, "loop_delay_max_s": largest}
        return verdict.client(delays, 0.010)

    assert judged(0.009, 0.009) == []
    assert judged(0.011, 0.009) == ["client_delay: receive delay p99 11.0 ms above the bound of 10 ms"]
    assert judged(0.009, 0.011) == ["client_delay: event loop p99 11.0 ms above the bound of 10 ms"]
    assert judged(None, 0.001) == ["client_delay: not measured"]
    # Too short a cell for a 99th percentile of its loop: the largest lateness is judged.
    assert judged(0.009, None, 0.009) == []
    assert judged(0.009, None, 0.130) == ["client_delay: event loop max 130.0 ms above the bound of 10 ms"]
