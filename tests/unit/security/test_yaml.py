"""Specification files that would make objects, grow without bound, or say two things at once."""

from pathlib import Path

import pytest

from spillway.spec.host import Host
from spillway.spec.read import MOST_BYTES, SpecError, read, read_yaml


def of(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch pwned']",
        "!!python/name:os.system",
        "!!python/object/new:subprocess.Popen [[touch, pwned]]",
        "!!bool x", "!!timestamp x", "!!int ''", "!!float x", "!!binary é", "!!omap x", "!!pairs 7", "!foreign x",
        "a: 1\nb: {c: 1, c: 2}",
        "{a: 1, a: 1}",
        "? [1, 2]\n: x",
        "a: *nowhere",
        "\ufeffa: 1\n---\nb: 2",
        f"a: {'9' * 5000}",
        "[" * 100_000,
        "{a: " * 5_000,
        "- " * 5_000,
        "x: " + "y" * MOST_BYTES,
    ],
)  # fmt: skip
def test_is_refused_with_one_message(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"file\.yaml: "):
        read_yaml(of(tmp_path / "file.yaml", text))
    assert not (tmp_path / "pwned").exists()


def levels(pattern: str, first: str) -> str:
    return "x: [" + ", ".join(f"&a{n} {pattern.format(n - 1) if n else first}" for n in range(40)) + "]"


@pytest.mark.parametrize(("pattern", "first"), [("[*a{0}, *a{0}]", "[lol]"), ("{{<<: [*a{0}, *a{0}]}}", "{k: 1}")])
def test_anchors_that_double_at_every_level_stay_small(tmp_path: Path, pattern: str, first: str) -> None:
    path = of(tmp_path / "file.yaml", levels(pattern, first))
    with pytest.raises(SpecError) as caught:  # as values of an unknown key, which the message shows
        read(Host, path)
    assert len(str(caught.value)) < 10_000


def test_a_merge_may_be_overridden_but_not_said_twice(tmp_path: Path) -> None:
    text = "base: &b {x: 1, y: 2}\nown: {<<: *b, y: 3}\n"
    assert read_yaml(of(tmp_path / "file.yaml", text)) == {"base": {"x": 1, "y": 2}, "own": {"x": 1, "y": 3}}
    with pytest.raises(SpecError, match="key 'y' stands twice"):
        read_yaml(of(tmp_path / "file.yaml", "base: &b {x: 1}\nown: {<<: *b, y: 3, y: 4}\n"))


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1e999"])
def test_times_are_finite(tmp_path: Path, value: str) -> None:
    text = f"title: t\nmeasured: true\nengine: {{environment: engine-cpu, module: m, ready_timeout_s: {value}}}\n"
    with pytest.raises(SpecError, match=r"ready_timeout_s"):
        read(Host, of(tmp_path / "file.yaml", text))
