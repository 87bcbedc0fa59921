"""What the server says about itself: the lines of its /metrics that matter beside a request."""

import re
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

# Column -> vLLM's metric. A counter is exposed with `_total` or without, depending on the version of its library.
GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_cache_usage_fraction": "vllm:kv_cache_usage_perc",  # of 1, despite its name
}
COUNTERS = {
    "preemptions": "vllm:num_preemptions",
    "prefix_query_tokens": "vllm:prefix_cache_queries",
    "prefix_hit_tokens": "vllm:prefix_cache_hits",
    "prompt_tokens": "vllm:prompt_tokens",
    "output_tokens": "vllm:generation_tokens",
}
COLUMNS = {**GAUGES, **COUNTERS}
_NAMES = {name: column for column, name in GAUGES.items()} | {
    name + suffix: column for column, name in COUNTERS.items() for suffix in ("", "_total")
}
MOST = 2.0**53
"""A value from here on, an infinite one or one that is no number is not taken for a count."""
# A whole page is hundreds of histogram lines, whose parsing would hold up the streams by 10 ms at every scrape.
_WANTED = re.compile(rf"^(?:{'|'.join(map(re.escape, _NAMES))})[{{ ].*$", re.MULTILINE)


def parse_metrics(page: str) -> dict[str, dict[str, float]]:
    """Engine -> column -> value; what the page lacks, or says in another form, is lacking here, never 0.

    An engine is the value of the label `engine` ("0" where there is none): one for each data-parallel rank.
    """
    engines: dict[str, dict[str, float]] = {}
    lines = "".join(line + "\n" for line in _WANTED.findall(page))
    try:
        samples = [sample for family in text_string_to_metric_families(lines) for sample in family.samples]
    except (ValueError, LookupError):  # a page cut short, or no page of Prometheus's at all
        return {}
    for sample in samples:
        column = _NAMES.get(sample.name)
        if column is None or not 0 <= sample.value < MOST:
            continue
        values = engines.setdefault(sample.labels.get("engine", "0"), {})
        # One engine may serve several model names, each with a line of its own.
        values[column] = values.get(column, 0.0) + sample.value
    return engines


def rise(before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]], column: str) -> int | None:
    """By how much a counter rose over all engines.

    None if either page lacks it, if they are not of the same engines, or if it fell with one of them (it restarted).
    """
    if not before or before.keys() != after.keys():
        return None
    rises = []
    for engine, values in before.items():
        first, last = values.get(column), after[engine].get(column)
        if first is None or last is None or last < first:
            return None
        rises.append(last - first)
    return round(sum(rises))


def rows(at_s: float, engines: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Rows of the table server_metrics, one for each engine."""
    found = []
    for engine, values in engines.items():
        row: dict[str, Any] = {"at_s": at_s, "engine": engine}
        for column in COLUMNS:
            value = values.get(column)
            row[column] = value if value is None or column == "kv_cache_usage_fraction" else round(value)
        found.append(row)
    return found
