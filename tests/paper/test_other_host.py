"""What every edition says of experiments recorded on one host: where, with what, and whether their aims were met."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from spillway.paper.content import Content
from spillway.paper.numbers import evaluate
from spillway.paper.render import render
from tests.conftest import ROOT, copy_project
from tests.paper.made_up import HOST, fill, make_up

KNOWN = {"commit": "c", "data_hash": "d", "host": "cpu"}


@pytest.fixture(scope="module")
def content() -> Content:
    return evaluate(ROOT, "cpu")


def text_of(content: Content, begin: str, end: str) -> str:
    """The paper's text between two marks, on one line."""
    text = render(ROOT / "paper/paper.en.tex.j2", content, KNOWN)
    start = text.index(begin)
    return " ".join(text[start : text.index(end, start)].split())


def meaning(content: Content) -> str:
    section = text_of(content, r"\label{sec:follow}", r"\section{Speed against context}")
    return section[section.index(r"\head{Meaning.}") :]


def with_value(content: Content, key: str, parts: tuple[str, ...], value: float) -> Content:
    """The same numbers but for one."""
    values = [replace(each, value=value) if each.parts == parts else each for each in content.numbers[key]]
    assert values != content.numbers[key]
    return replace(content, numbers=content.numbers | {key: values})


def test_following_is_said_to_be_of_its_host_with_dummy_weights_and_routing_as_recorded(content: Content) -> None:
    text = text_of(content, r"\label{sec:follow}", r"\section{Speed against context}")
    for said in (
        r"(host \texttt{h200}), whatever the host of this edition",
        "{one NVIDIA H200}",
        "dummy weights}",
        "2 sets of them in turn, 30 s each",
    ):
        assert said in text, said
    assert "full minute" not in text and "Not run" not in text


def test_links_of_the_other_host_have_a_table_that_names_it(content: Content) -> None:
    text = text_of(content, r"\head{Links of a GPU host.}", r"\section{Quality}")
    assert r"(host \texttt{h200})" in text and r"links of host \texttt{h200} (GB/s)" in text
    for link in ("gpu memory", "host to gpu", "gpu to host", "in place"):
        (value,) = (value for value in content.numbers["links.gpu.rate"] if value.parts[0] == link)
        assert rf"\datum{{{value.anchor}}}" in text, link


@pytest.mark.parametrize(
    ("key", "parts", "good", "bad", "aim"),
    [
        ("follow.still", ("following, no shift", "decode"), 100.9, 101.1, "first"),
        ("follow.recovered_most", (), 19.9, 20.1, "second"),
        ("follow.recoveries", (), None, 0.0, "second"),
        ("follow.step_spread", ("following", "experts move"), 1.9, 2.1, "third"),
    ],
)
def test_each_aim_is_said_to_be_met_or_missed_by_the_numbers(
    content: Content, key: str, parts: tuple[str, ...], good: float | None, bad: float, aim: str
) -> None:
    content = with_value(content, "follow.recovered_most", (), 1.0) if key == "follow.recoveries" else content

    def verdict(changed: Content) -> str:
        (found,) = re.findall(rf"[Tt]he {aim}\b[^:]*? is (met|missed):", meaning(changed))
        return str(found)

    if good is not None:
        assert verdict(with_value(content, key, parts, good)) == "met"
    assert verdict(with_value(content, key, parts, bad)) == "missed"


@pytest.mark.workflow
def test_the_edition_of_that_host_says_each_thing_once(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    fill(project, "h200")
    content = evaluate(project.root, "h200")
    text = render(ROOT / "paper/paper.en.tex.j2", content, KNOWN | {"host": "h200"})
    assert "whatever the host of this edition" not in text
    assert text.count(r"\caption{Rates of") == 1 and "Links of a GPU host" not in text
    assert text.count(f"{{number.{content.numbers['links.host'][0].anchor.removeprefix('number.')}}}{{}}") == 1
    for one_of_two in ("a demonstration", "without a GPU", "No GPU took part"):
        assert one_of_two not in text
    assert "Not run on this host:" not in text, "it runs every experiment"
    path = project.root / "experiments/e8_quality.yaml"
    asked = yaml.safe_load(path.read_text())
    asked["hosts"]["h200"] = {"not_run": "There was no time for it."}
    path.write_text(yaml.safe_dump(asked))
    text = render(ROOT / "paper/paper.en.tex.j2", evaluate(project.root, "h200"), KNOWN | {"host": "h200"})
    limits = " ".join(text[text.index("Not run on this host:") :].split(r"\item")[0].split())
    assert r"e8\_quality" in limits and limits.endswith("and nothing stands in for it.")


def test_limits_keep_apart_what_was_measured_here_and_there(content: Content) -> None:
    text = text_of(content, r"\label{sec:limits}", r"\bibliographystyle")
    assert "No GPU took part in what was measured on this host." in text
    assert r"was measured on host \texttt{h200} alone" in text
    assert "on some GPUs of a machine" not in text
    assert "shared machine" not in text_of(content, r"\label{tab:host}", r"\paragraph{Server.}")
    assert r"e15\_follow" not in text.partition("Not run on this host:")[2].split(r"\item")[0]


# What a placed server and an unplaced one differ by, and what is said of it beside two starts that differ by what stands first.
APART = {
    "as far": ((0.875, 2.5, 0.125, 5), "by no measure of"),
    "closer": ((0.9, 2.0, 0.1, 4), "by no measure of"),
    "further": ((0.8, 2.6, 0.2, 5), "; further apart than"),
    "some closer": ((0.8, 2.0, 0.2, 5), "by some measures of"),
    "no number": ((1.0, 0.0, 0.0, 2), "every log-probability the same, and"),
}


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> Content:
    project = copy_project(tmp_path_factory.mktemp("agreeing") / "project")
    make_up(project)
    return evaluate(project.root, HOST)


@pytest.mark.workflow
@pytest.mark.parametrize(("found", "said"), APART.values(), ids=APART)
def test_a_difference_is_held_against_that_of_two_starts(agreeing: Content, found: tuple[float, ...], said: str) -> None:
    placed = "bf16: placed against unplaced"
    for key, value in zip(("same_first", "largest", "divergence", "diverged"), found, strict=True):
        value *= 100 if key == "same_first" else 1
        name = f"agreement.{key}"
        values = [replace(each, value=value) if each.parts == (placed,) else each for each in agreeing.numbers[name]]
        agreeing = replace(agreeing, numbers=agreeing.numbers | {name: values})
    text = text_of(agreeing, r"\head{Result.} \Cref{tab:agreement}", r"\head{Published.}")
    (item,) = (item for item in text.split(r"\item") if item.strip().startswith(rf"\emph{{{placed}}}"))
    assert said in item
    assert "is bit for bit the first" in text


@pytest.mark.workflow
def test_where_no_start_equals_the_placed_server_none_is_said_to(agreeing: Content) -> None:
    equal = [replace(each, value=1.0) for each in agreeing.numbers["agreement.identical"]]
    content = replace(agreeing, numbers=agreeing.numbers | {"agreement.identical": equal})
    text = text_of(content, r"\head{Result.} \Cref{tab:agreement}", r"\head{Published.}")
    assert "is bit for bit the first" not in text and "bit for bit the same in every number" not in text
