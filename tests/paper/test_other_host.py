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
from tests.paper.made_up import fill

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
        "{dummy}",
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
    assert r"e15\_follow" not in text.partition("Not run on this host:")[2].split(r"\item")[0]
