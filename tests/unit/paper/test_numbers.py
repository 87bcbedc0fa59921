"""From data to numbers: what is computed, what is left out because a host does not run it, and what is refused."""

import json
import statistics
from pathlib import Path

import pandas as pd
import pytest

from spillway.paper.content import ContentError, from_json, read_content
from spillway.paper.format import ONE_BOOT
from spillway.paper.markup import Latex
from spillway.paper.numbers import NumberError, evaluate
from spillway.paper.view import Numbers
from spillway.spec.number import data_files, figures_drawn, read_numbers
from spillway.spec.read import SpecError
from tests.mini_project import REASON, cells, record, redefine


def test_values_texts_and_origin(mini: Path) -> None:
    numbers = evaluate(mini, "cpu").numbers
    good = cells().query("outcome == 'ok'")
    (rate,) = numbers["rate"]
    assert rate.value == statistics.median(good["rate_tok_per_s"])
    assert rate.texts == {"en": f"{rate.value:.1f}", "es": f"{rate.value:.1f}".replace(".", ",")}
    assert (rate.rows, rate.where, rate.what) == (15, "outcome = ok", "median of rate_tok_per_s")
    assert [value.parts for value in numbers["rate.by"]] == [("", "1"), ("", "4")]  # no arms: one, without a name
    assert numbers["rate.least"][0].value == pytest.approx(13)
    assert numbers["outcomes"][0].texts["es"] == "ok, timeout"
    assert numbers["ok_share"][0].texts == {"en": "93.8", "es": "93,8"}


def test_what_a_host_does_not_run_is_left_out_with_its_reason(mini: Path) -> None:
    content = evaluate(mini, "cpu")
    assert content.left_out == {
        **dict.fromkeys(["gone", "gone.least", "gone.share"], ("cpu", "e2_gpu")),
        "there": ("h200", "e2_gpu"),
    }
    assert not set(content.numbers) & set(content.left_out)
    assert content.not_run() == {"e2_gpu": REASON}
    assert content.experiments["h200"] == {"e1_here": REASON, "e2_gpu": "not recorded on host h200 yet"}
    assert json.loads(content.to_json())["not_run"] == {"e2_gpu": REASON}
    assert from_json(json.loads(content.to_json())) == content
    assert data_files(mini, "cpu") == ["cpu/e1_here.cells.parquet"]
    assert figures_drawn(mini, "cpu") == ["rates"]


def test_another_host_stands_beside_once_it_is_recorded(mini: Path) -> None:
    record(mini, "e2_gpu", "h200", cells=cells(), boots=cells())
    content = evaluate(mini, "cpu")
    assert content.numbers["there"][0].file == "data/h200/e2_gpu.cells.parquet"
    assert content.experiments["h200"]["e2_gpu"] is None
    assert set(content.left_out) == {"gone", "gone.least", "gone.share"}
    assert "h200/e2_gpu.cells.parquet" in data_files(mini, "cpu")
    (mini / "data/h200/e2_gpu.cells.parquet").unlink()  # recorded, for `boots` is there: so this one must be
    with pytest.raises(NumberError, match=r"there: .*data/h200/e2_gpu\.cells\.parquet: no such data file"):
        evaluate(mini, "cpu")
    (mini / "data/h200/e2_gpu.boots.parquet").unlink()  # and where all are gone, the manifest still lists them
    with pytest.raises(NumberError, match=r"there: .*data/h200/e2_gpu\.cells\.parquet: no such data file"):
        evaluate(mini, "cpu")


def test_a_named_host_that_is_the_papers_own_gives_the_same_number_under_one_key(mini: Path) -> None:
    same = "file: e1_here.cells, where: {outcome: ok}, column: rate_tok_per_s, statistic: median, unit: token/s, decimals: 1"
    redefine(mini, "beside", f"{{host: cpu, {same}}}")
    redefine(mini, "beside.share", '{ratio: [beside, rate], unit: "%"}')
    content = evaluate(mini, "cpu")
    assert content.same == {"beside": "rate"}
    assert "beside" not in content.numbers
    assert content.numbers["beside.share"][0].value == 100
    assert from_json(json.loads(content.to_json())) == content
    numbers = Numbers(content, Latex(), "en", "paper")
    assert numbers.u("beside") == numbers.u("rate")
    assert "beside" not in numbers.unused()


def test_another_host_gives_the_number_where_the_papers_own_does_not_run_the_experiment(mini: Path) -> None:
    source = "otherwise: h200, where: {outcome: ok}, column: ttft_s, statistic: min, unit: ms"
    redefine(mini, "near", f"{{file: e1_here.cells, {source}}}")
    redefine(mini, "far", f"{{file: e2_gpu.cells, {source}}}")
    content = evaluate(mini, "cpu")
    assert content.numbers["near"][0].file == "data/cpu/e1_here.cells.parquet"
    assert content.left_out["far"] == ("h200", "e2_gpu"), "not recorded there yet"
    assert content.elsewhere == {} and not Numbers(content, Latex(), "en", "paper").measured("e2_gpu")
    record(mini, "e2_gpu", "h200", cells=cells(), boots=cells())
    content = evaluate(mini, "cpu")
    assert content.numbers["far"][0].file == "data/h200/e2_gpu.cells.parquet"
    assert "h200/e2_gpu.cells.parquet" in data_files(mini, "cpu")
    assert content.elsewhere == {"e2_gpu": "h200"} and from_json(json.loads(content.to_json())) == content
    numbers = Numbers(content, Latex(), "en", "paper")
    assert numbers.measured("e2_gpu") and (numbers.host_of("e2_gpu"), numbers.host_of("e1_here")) == ("h200", "cpu")
    own = evaluate(mini, "h200")
    assert own.elsewhere == {}
    assert own.numbers["far"] == content.numbers["far"]
    assert own.left_out["near"] == ("h200", "e1_here")


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{file: e2_gpu.cells, host: h200, otherwise: h200, statistic: count}", "otherwise: found beside host"),
        ("{file: published/figures.csv, otherwise: h200, statistic: count}", "otherwise: found beside the path"),
    ],
)
def test_otherwise_beside_what_decides_already_is_refused(mini: Path, source: str, fault: str) -> None:
    redefine(mini, "far", source)
    with pytest.raises(SpecError, match=fault):
        evaluate(mini, "cpu")


def test_the_file_of_an_experiment_that_is_run_must_be_there(mini: Path) -> None:
    with pytest.raises(NumberError, match=r"paper/numbers\.yaml: gone: .*data/h200/e2_gpu\.cells\.parquet: no such data file"):
        evaluate(mini, "h200")
    assert "h200/e2_gpu.cells.parquet" in data_files(mini, "h200")


def test_a_host_that_the_experiment_says_nothing_about_is_an_error(mini: Path) -> None:
    with pytest.raises((NumberError, SpecError), match=r"hosts\.h200x2: found nothing; expected what to do .* or `not_run`"):
        evaluate(mini, "h200x2")


def test_interval_over_boots_is_students(mini: Path) -> None:
    common = "file: e1_here.cells, where: {streams: 1, outcome: ok}, column: rate_tok_per_s, statistic: mean, unit: token/s"
    redefine(mini, "low", f"{{{common}, over_boots: low, decimals: 3}}")
    redefine(mini, "high", f"{{{common}, over_boots: high, decimals: 3}}")
    numbers = evaluate(mini, "cpu").numbers
    # means 101.5 and 103.5; 12.706 is the 97.5 % point of Student's t with one degree of freedom
    low, high = 102.5 - 12.7062, 102.5 + 12.7062
    assert numbers["low"][0].value == pytest.approx(low, abs=1e-3)
    assert numbers["high"][0].value == pytest.approx(high, abs=1e-3)
    redefine(mini, "low", f"{{{common.replace('streams: 1', 'streams: 1, boot: 0')}, over_boots: low}}")
    assert evaluate(mini, "cpu").numbers["low"][0].texts == ONE_BOOT


def test_relative_to_a_group(mini: Path) -> None:
    source = "file: e1_here.cells, where: {outcome: ok}, column: ttft_s, statistic: min"
    redefine(mini, "slower", f'{{{source}, by: streams, relative_to: "1", unit: x, decimals: 1}}')
    assert [value.texts["en"] for value in evaluate(mini, "cpu").numbers["slower"]] == ["1.0", "4.0"]
    redefine(mini, "slower", f'{{{source}, by: streams, relative_to: "2", unit: x}}')
    with pytest.raises(NumberError, match="slower: relative_to: no group '2'; there: 1, 4"):
        evaluate(mini, "cpu")


def test_a_ratio_of_two_hosts_is_taken_group_by_group(mini: Path) -> None:
    source = "where: {outcome: ok}, by: [arm, streams], column: ttft_s, statistic: min, unit: ms"
    redefine(mini, "near", f"{{file: e1_here.cells, {source}}}")
    redefine(mini, "far", f"{{file: e2_gpu.cells, host: h200, {source}}}")
    redefine(mini, "slower", "{ratio: [far, near], unit: x, decimals: 1}")
    assert evaluate(mini, "cpu").left_out["slower"] == ("h200", "e2_gpu")  # said, and not skipped
    there = cells().query("streams == 4").assign(ttft_s=lambda rows: 3 * rows["ttft_s"])
    record(mini, "e2_gpu", "h200", cells=pd.concat([there, there.assign(streams=8)]))
    (ratio,) = evaluate(mini, "cpu").numbers["slower"]
    assert (ratio.parts, ratio.texts["en"], ratio.anchor) == (("", "4"), "3.0", "number.slower--4")
    assert (ratio.file, ratio.what) == ("data/h200/e2_gpu.cells.parquet", "far / near")


CELLS = "file: e1_here.cells, where: {outcome: ok}"


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (f"{{{CELLS}, column: rate_tok_per_s, statistic: median, unit: token/s, decimals: 1}}",
         r"rate and extra: found one definition under two keys; expected one key"),
        (f"{{{CELLS}, column: rate_tok_per_s, statistic: median, unit: token/s, decimals: 2}}",
         r"one definition under two keys, printed with 1 and with 2 decimals"),
        ("{file: e1_here.cells, where: {outcome: ok, streams: 1}, column: ttft_s, statistic: max, unit: ms}",
         r"rate\.least and extra are one value of data/cpu/e1_here\.cells\.parquet, .* printed as 13\.0 and as 13; give both"),
        (f"{{{CELLS}, column: ttft_s, statistic: median, unit: miles}}", r"extra: unit: found 'miles'; expected one of: s, "),
        (f"{{{CELLS}, column: streams, statistic: median, unit: stools}}", r"extra: unit: found 'stools'.*paper/format\.py"),
        (f"{{{CELLS}, column: ttft_s, statistic: only, unit: s}}", r"extra: .*`only` expects one value in ttft_s; found 8"),
        (f"{{{CELLS}, column: outcome, statistic: median}}", r"extra: .*outcome is not a number, but 'ok'; set `text: true`"),
        ("{ratio: [outcomes, ok]}", r"extra\.ratio: found 'outcomes'; expected the key of a plain number"),
        ("{ratio: [rate.by, ok]}", r"extra\.ratio: found numbers by arm and streams and by nothing; expected the same"),
        (f"{{{CELLS}, column: ttft_s, statistic: median, unit: s, over_boots: both}}", r"extra\.over_boots: found 'both'"),
        ("{file: published/figures.csv, host: h200, statistic: count}", r"extra: host: found beside the path"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_key(mini: Path, definition: str, message: str) -> None:
    redefine(mini, "extra", definition)
    with pytest.raises((NumberError, SpecError), match=message):
        evaluate(mini, "cpu")


def test_two_numbers_never_share_an_anchor(mini: Path) -> None:
    record(mini, "e1_here", "cpu", cells=cells(), names=pd.DataFrame({"name": ["a b", "a-b"]}))
    redefine(mini, "extra", "{file: e1_here.names, by: name, statistic: count}")
    with pytest.raises(NumberError, match=r"extra \[a b\] and extra \[a-b\] have one anchor, number\.extra--a-b; rename"):
        evaluate(mini, "cpu")


def test_a_group_without_a_name_is_refused(mini: Path) -> None:
    record(mini, "e1_here", "cpu", cells=cells(), names=pd.DataFrame({"name": ["a", None]}))
    redefine(mini, "extra", "{file: e1_here.names, by: name, statistic: count}")
    with pytest.raises(NumberError, match="1 of 2 rows have no name; leave them out"):
        evaluate(mini, "cpu")


def test_numbers_json_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    path.write_text('{"host": "cpu", "numbers": {}}')
    with pytest.raises(ContentError, match=r"not the layout of this version.*snakemake -f"):
        read_content(path)
    with pytest.raises(ContentError, match="no such file; `snakemake"):
        read_content(tmp_path / "none.json")


def test_defaults_of_definitions(mini: Path) -> None:
    assert read_numbers(mini, "cpu")["requests"].only_in == "article"
    assert read_numbers(mini, "cpu")["rate.by"].groups == ["arm", "streams"]
