"""/metrics: both spellings of a counter, several engines, and the difference between absent and 0."""

from pathlib import Path

import pytest
from golden_server import GoldenServer, Settings

from spillway.load.scrape import COLUMNS, parse_metrics, rise, rows

PAGE = Path(__file__).with_name("vllm_0_32_0_metrics.txt")


def test_a_page_of_vllm_has_every_column() -> None:
    engines = parse_metrics(PAGE.read_text())
    assert list(engines) == ["0"]
    assert engines["0"].keys() == COLUMNS.keys()
    assert engines["0"]["prefix_query_tokens"] == 3000.0
    assert engines["0"]["prefix_hit_tokens"] == 896.0  # 7 blocks of 128
    assert engines["0"]["output_tokens"] == 24.0


@pytest.mark.parametrize("old_names", [False, True])
def test_counters_with_and_without_total(old_names: bool) -> None:
    server = GoldenServer(Settings(old_metric_names=old_names))
    server.queries, server.hits = 700, 32
    values = parse_metrics(server.metrics())["0"]
    assert (values["prefix_query_tokens"], values["prefix_hit_tokens"]) == (700.0, 32.0)


def test_absent_is_unknown_and_never_0() -> None:
    page = "vllm:num_requests_running 3.0\n"
    engines = parse_metrics(page)
    assert engines == {"0": {"running": 3.0}}
    assert rise(engines, engines, "prefix_hit_tokens") is None
    assert rise({}, {}, "prefix_hit_tokens") is None
    assert rows(1.5, engines) == [{"at_s": 1.5, "engine": "0", **dict.fromkeys(COLUMNS), "running": 3}]
    assert rows(1.5, parse_metrics("<html>not found</html>")) == []


def test_engines_apart_and_models_together() -> None:
    page = (
        'vllm:prefix_cache_hits_total{engine="0",model_name="a"} 10\n'
        'vllm:prefix_cache_hits_total{engine="0",model_name="b"} 5\n'
        'vllm:prefix_cache_hits_total{engine="1",model_name="a"} 100\n'
        'vllm:prefix_cache_hits_created{engine="1",model_name="a"} 1.7e9\n'
    )
    before, after = parse_metrics(page), parse_metrics(page.replace(" 100\n", " 164\n"))
    assert before == {"0": {"prefix_hit_tokens": 15.0}, "1": {"prefix_hit_tokens": 100.0}}
    assert rise(before, after, "prefix_hit_tokens") == 64
    assert rise(after, before, "prefix_hit_tokens") is None  # it fell: another server answered


def test_a_rise_is_of_the_same_engines_each_of_them_risen() -> None:
    both = {"0": {"prefix_hit_tokens": 10.0}, "1": {"prefix_hit_tokens": 100.0}}
    assert rise(both, {"0": {"prefix_hit_tokens": 15.0}, "1": {"prefix_hit_tokens": 100.0}}, "prefix_hit_tokens") == 5
    one_restarted = {"0": {"prefix_hit_tokens": 200.0}, "1": {"prefix_hit_tokens": 30.0}}
    assert rise(both, one_restarted, "prefix_hit_tokens") is None  # though their sum rose
    only_one = {"1": {"prefix_hit_tokens": 5000.0}}
    assert rise(both, only_one, "prefix_hit_tokens") is None
    assert rise(only_one, both | only_one, "prefix_hit_tokens") is None  # what the other counted before is not known
