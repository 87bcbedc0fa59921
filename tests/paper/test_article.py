"""The article: the same in every language, every number a link, and builds that must fail with a message one understands."""

import dataclasses
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spillway.paper import article
from spillway.paper.article import pages
from spillway.paper.article_language import LanguageError, calls, read_languages
from spillway.paper.content import Content, read_content
from spillway.paper.format import LANGUAGES
from spillway.paper.numbers import evaluate
from spillway.paper.view import RenderError
from spillway.spec.read import SpecError
from tests.conftest import ROOT, Project, copy_project
from tests.paper.made_up import BESIDE, HOST, TITLE, make_up

EN, ES, STRUCTURE = "paper/article/en.yaml", "paper/article/es.yaml", "paper/article/article.html.j2"
NARROW = "\u202f"


@pytest.fixture(scope="module")
def content(numbers_json: Path) -> Content:
    return read_content(numbers_json)


@pytest.fixture(scope="module")
def made(content: Content) -> dict[str, str]:
    """The pages of the project as it is."""
    return pages(ROOT, content, ROOT / "paper/allowed.yaml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a copy of what the article is made from."""
    shutil.copytree(ROOT / "paper", tmp_path / "paper")
    return tmp_path


def edit(root: Path, file: str, old: str, new: str) -> None:
    text = (root / file).read_text(encoding="utf-8")
    assert old in text, f"{file} does not hold {old!r}"
    (root / file).write_text(text.replace(old, new, 1), encoding="utf-8")


def build(root: Path, content: Content) -> dict[str, str]:
    return pages(root, content, root / "paper/allowed.yaml")


def changed(content: Content, key: str, group: str = "", **changes: object) -> Content:
    """The same numbers, one of them changed."""
    numbers = dict(content.numbers)
    numbers[key] = [dataclasses.replace(v, **changes) if v.group == group else v for v in numbers[key]]  # type: ignore[arg-type]
    return dataclasses.replace(content, numbers=numbers)


def test_languages_have_the_same_sentences_and_numbers() -> None:
    first, *others = read_languages(ROOT).values()
    for other in others:
        assert list(first.sentences) == list(other.sentences)
        assert set(first.names) == set(other.names)
        for key in first.sentences:
            assert sorted(calls(first, key)) == sorted(calls(other, key)), key


# What is broken: (file, text, text in its place), and what the message must name.
TEAM, PACK, COST = "    team: equipo\n", "{{ u('published.pack') }}", "<h2>{{ t('cost.title') }}"
FAULTS: dict[str, tuple[list[tuple[str, str, str]], list[str]]] = {
    "sentence missing in Spanish": ([(ES, TEAM, "")], [ES, "cost.table.team", "missing", EN]),
    "sentence missing in English": ([(EN, "    team: team\n", "")], [EN, "cost.table.team", "missing", ES]),
    "sentence missing in both": (
        [(EN, "  lead: >", "  lede: >"), (ES, "  lead: >", "  lede: >")],
        ["page.lead", "no such sentence", STRUCTURE],
    ),
    "sentence empty": ([(ES, TEAM, "    team: ''\n")], [ES, "cost.table.team", "expected a sentence"]),
    "sentence twice": ([(ES, TEAM, f"{TEAM}    team: grupo\n")], [ES, "'team' stands twice"]),
    "name missing": ([(ES, "  exact: exactamente\n", "")], [ES, "names", "exact", "missing"]),
    "name of a bar missing": (
        [(EN, "  two humps:", "  three humps:"), (ES, "  two humps:", "  three humps:")],
        [EN, "'two humps'", "missing"],
    ),
    "another number in the translation": (
        [(ES, "n('published.layers')", "n('published.gpus')")],
        [ES, "experts.count", "published.gpus", "published.layers"],
    ),
    "undefined number": (
        [(file, "n('published.layers')", "n('published.layer')") for file in (EN, ES)],
        [EN, "experts.count", "undefined number 'published.layer'", "did you mean published.layers"],
    ),
    "digits typed": ([(EN, "An agent writes", "In 2024, an agent writes")], [EN, "guests.idle", "'2024' is typed"]),
    "English decimal typed in Spanish": ([(ES, "Los demás esperan", "Tarda 7.6 ms")], [ES, "experts.count", "'7.6' is typed"]),
    "number word typed": (
        [(ES, "Un bar con pocos", "Un bar con cuatro")],
        [ES, "guests.picture.title", "'cuatro' is typed", "word('key')"],
    ),
    "number typed as code": ([(EN, "The others wait.", "{{ 7.6 }} s.")], [EN, "experts.count", "7.6"]),
    "filter on a number": ([(EN, PACK, PACK[:-2] + "| default('-') }}")], [EN, "memory.card", "one of n, u, word, name"]),
    "broken braces": ([(ES, PACK, PACK[:-4] + " }}")], [ES, "memory.card"]),
    "digits in a name that the data lack": ([(ES, "  exact: exactamente", "  exact: los 4")], [ES, "exact", "'4'"]),
    "number typed in the structure": ([(STRUCTURE, COST, "<h2>7.6")], [STRUCTURE, "7.6"]),
    "number as a literal in the structure": ([(STRUCTURE, COST, "<h2>{{ '7.6' }}")], [STRUCTURE, "'7.6'"]),
    "words in the structure": ([(STRUCTURE, COST, "<h2>What it costs")], [STRUCTURE, "What it costs", "t('key')"]),
    "words in a label": ([(STRUCTURE, "{{ bare('language.choice') }}", "Language")], [STRUCTURE, "'Language'", "t('key')"]),
    "misspelt variable": ([(STRUCTURE, "{{ commit }}", "{{ comit }}")], [STRUCTURE, "'comit' is undefined"]),
}


@pytest.mark.parametrize(("edits", "told"), FAULTS.values(), ids=FAULTS)
def test_build_fails_and_says_why(root: Path, content: Content, edits: list[tuple[str, str, str]], told: list[str]) -> None:
    for file, old, new in edits:
        edit(root, file, old, new)
    with pytest.raises((LanguageError, RenderError, SpecError)) as failed:
        build(root, content)
    for words_told in told:
        assert words_told in str(failed.value)


def test_an_absent_language_fails(root: Path, content: Content) -> None:
    (root / ES).unlink()
    with pytest.raises(SpecError, match=r"es\.yaml: no such file"):
        build(root, content)


def test_a_message_and_no_traceback(root: Path, numbers_json: Path) -> None:
    edit(root, ES, "    team: equipo\n", "")
    done = subprocess.run(
        [sys.executable, "-m", "spillway.paper.article", "--numbers", str(numbers_json), "--out", "article"],
        cwd=root, env={"PYTHONPATH": str(ROOT / "workflow"), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("spillway: ") and "es.yaml: cost.table.team: missing" in done.stderr
    assert not (root / "article").exists(), "no page of one language without the other"


@pytest.mark.parametrize(("language", "foreign"), [("es", "102.1"), ("en", "102,1"), ("es", "1,234.5"), ("es", "15.360")])
def test_a_number_printed_as_in_another_language_fails(root: Path, content: Content, language: str, foreign: str) -> None:
    there = content.numbers["published.card_without"][0].texts
    with pytest.raises(LanguageError, match=rf"{language}\.yaml.*{re.escape(foreign)}"):
        build(root, changed(content, "published.card_without", texts=there | {language: foreign}))


def test_an_unused_number_of_the_article_fails(root: Path, content: Content) -> None:
    numbers = content.numbers | {"idle.number": content.numbers["seats.low"]}
    idle = dataclasses.replace(content, numbers=numbers, only_in=content.only_in | {"idle.number": "article"})
    with pytest.raises(RenderError, match=r"never used in .*article\.html\.j2: idle\.number"):
        build(root, idle)


def test_number_words_follow_the_data(root: Path, content: Content) -> None:
    six = changed(content, "published.capacity", value=6.0, texts={"en": "6", "es": "6"})
    text = {code: words(page) for code, page in build(root, six).items()}
    assert "the bar with six stools" in text["en"] and "four stools" not in text["en"]
    assert "el bar de los seis taburetes" in text["es"] and "cuatro taburetes" not in text["es"]


def test_numbers_are_written_as_each_language_does(made: dict[str, str]) -> None:
    text = {code: words(page) for code, page in made.items()}
    assert f"102.1{NARROW}GiB" in text["en"] and "15,360 experts" in text["en"] and "2723 euros" in text["en"]
    assert f"102,1{NARROW}GiB" in text["es"] and f"15{NARROW}360 expertos" in text["es"] and "2723 euros" in text["es"]
    assert f"7,1{NARROW}%" in text["es"]


def test_each_page_names_its_language_and_the_others(made: dict[str, str]) -> None:
    for code, page in made.items():
        assert f'<html lang="{code}">' in page
        for other in (*LANGUAGES, "x-default"):
            assert page.count(f'<link rel="alternate" hreflang="{other}"') == 1


def test_every_number_that_is_read_is_a_link_to_the_audit(made: dict[str, str], content: Content) -> None:
    anchors = {value.anchor for group in content.numbers.values() for value in group}
    for code, page in made.items():
        read = Reader(page)
        assert not read.unlinked, f"{code}: numbers in the text without a link: {read.unlinked}"
        assert len(read.links) > 100
        for link in read.links:
            page_of, _, anchor = link.partition("#")
            assert page_of == "../audit.html" and anchor in anchors


def test_published_numbers_look_published(content: Content) -> None:
    """The style tells them apart by their key; that must be where they come from."""
    for key, group in content.numbers.items():
        for value in group:
            assert key.startswith("published.") == value.file.startswith("data/published/"), key


@pytest.mark.parametrize("code", LANGUAGES)
def test_pictures_have_a_text_alternative_and_a_table(made: dict[str, str], code: str) -> None:
    page = made[code]
    pictures = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    assert len(pictures) == 12  # six, each for a wide and a narrow page
    for picture in pictures:
        name = re.search(r'role="img".*aria-labelledby="([^"]*)-title" aria-describedby="\1-desc"', picture)
        assert name
        for part in ("title", "desc"):
            assert re.search(rf'<{part} id="{name[1]}-{part}">[^<]{{10,}}</{part}>', picture)
        assert page.count(f'id="{name[1]}-title"') == 1
    assert len(re.findall(r"<details>.*?<table>.*?</details>", page, re.DOTALL)) == 4, "all but the two drawings hold data"


def test_pictures_show_what_the_data_say(content: Content) -> None:
    """Stools, guests and experts are as many as the numbers say, and follow them."""
    other = changed(content, "published.capacity", value=6.0)
    for numbers, stools in ((content, 4), (other, 6)):
        wide = pictures(pages(ROOT, numbers, ROOT / "paper/allowed.yaml")["en"])
        assert wide["guests-picture"].count('class="seat"') == stools
        assert wide["guests-picture"].count('<circle class="person') == 19
        assert wide["guests-picture"].count('<circle class="person lit"') == 1, "7.1 % of 19 developers are busy on average"
        assert (wide["experts-chart"].count('class="lit"'), wide["experts-chart"].count('class="idle"')) == (6, 378)
        assert wide["breaks-chart"].count("<rect") == len(numbers.numbers["seats.assumed"])


def test_curves_are_drawn_through_the_data(made: dict[str, str], content: Content) -> None:
    """The published speeds, read back from the picture's pixels by two of them, are those of the data."""
    (points,) = re.findall(r'<polyline class="line published-line" points="([^"]*)"', pictures(made["en"])["stools-chart"])
    drawn = [float(point.split(",")[1]) for point in points.split()]
    speeds = [float(v.value) for v in content.numbers["published.agents"] if v.group.endswith("_median")]
    per_pixel = (speeds[-1] - speeds[0]) / (drawn[-1] - drawn[0])
    assert [speeds[0] + (y - drawn[0]) * per_pixel for y in drawn] == pytest.approx(speeds, abs=0.2)


def pictures(page: str) -> dict[str, str]:
    """Name -> what is drawn, of the pictures of a wide page."""
    return dict(re.findall(r'<svg class="wide"[^>]*aria-labelledby="([a-z-]+)-wide-title"[^>]*>(.*?)</svg>', page, re.DOTALL))


@pytest.fixture(scope="module")
def gpu(content: Content, tmp_path_factory: pytest.TempPathFactory) -> Content:
    """The numbers of a GPU host that does not exist, made up, and as if it had started its server again and asked questions."""
    project = copy_project(tmp_path_factory.mktemp("made_up") / "project")
    make_up(project)
    numbers = changed(evaluate(project.root, HOST), "server.boots", value=3)
    asked = {key: content.numbers[key] for key in ("quality.asked", "quality.model")}
    return dataclasses.replace(numbers, numbers=numbers.numbers | asked)


def undecided(gpu: Content) -> Content:
    """As if no level of the first arm had enough turns to be judged, and the agents' server had started once."""
    group = gpu.numbers["agents.capacity"][0].group
    numbers = changed(gpu, "agents.capacity", group, value=0.0)
    numbers = changed(numbers, "agents.capacity_is", group, value="at least")
    return changed(numbers, "server.boots", value=1.0)


def leaping(gpu: Content) -> Content:
    """As if the agents' level that fails were larger by more than one than the one that holds."""
    group = gpu.numbers["agents.capacity_fails"][0].group
    numbers = changed(gpu, "agents.capacity", group, value=2.0)
    return changed(numbers, "agents.capacity_fails", group, value=4.0)


def without_tasks(gpu: Content) -> Content:
    """As made up: the host compared texts token by token, and asked no questions."""
    return dataclasses.replace(gpu, numbers=gpu.numbers | {"quality.asked": []})


def apart(gpu: Content) -> Content:
    """As if no server with experts in host memory had given the numbers of one without."""
    differing = [dataclasses.replace(value, value=1.0) for value in gpu.numbers["agreement.identical"]]
    return dataclasses.replace(without_tasks(gpu), numbers=without_tasks(gpu).numbers | {"agreement.identical": differing})


def nothing_run(content: Content) -> Content:
    """The numbers of a host that ran no experiment, where no other did either."""
    reasons = {name: "no time" for name in content.experiments[content.host] if not name.startswith(("e10", "e11"))}
    left_out = {
        key: (content.host, experiment)
        for key, group in content.numbers.items()
        if group and (experiment := group[0].file.split("/")[-1].split(".")[0]) in reasons
    }
    everywhere = {host: {name: reasons.get(name) for name in known} for host, known in content.experiments.items()}
    return dataclasses.replace(content, left_out=content.left_out | left_out, experiments=everywhere)


def test_every_sentence_is_said_on_some_host(
    root: Path, content: Content, gpu: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also: the pages of a GPU host, and of one that ran nothing, are made without a fault."""
    said: set[str] = set()
    say = article.Sentences.say

    def remember(self: article.Sentences, key: str) -> object:
        said.add(key)
        return say(self, key)

    monkeypatch.setattr(article.Sentences, "say", remember)
    for variant in (content, gpu, undecided(gpu), leaping(gpu), without_tasks(gpu), apart(gpu), nothing_run(content)):
        build(root, variant)
    for language in read_languages(ROOT).values():
        assert sorted(set(language.sentences) - said) == ["language.name"], f"{language.file}: the rest is said nowhere"


def test_a_cpu_host_says_that_its_speeds_are_none_of_a_gpu(made: dict[str, str], gpu: Content) -> None:
    on_gpu = pages(ROOT, gpu, ROOT / "paper/allowed.yaml")
    for code, warning in (
        ("en", "Its speeds say nothing about a graphics card."),
        ("es", "Sus velocidades no dicen nada sobre una tarjeta gráfica."),
    ):
        assert warning in words(made[code])
        assert warning not in words(on_gpu[code])
        assert TITLE in words(on_gpu[code]), "the machine is named"
        assert not Reader(on_gpu[code]).unlinked


def test_experiments_on_some_cards_of_a_machine_are_named(made: dict[str, str], gpu: Content) -> None:
    for code, told in (("en", "These experiments had only some"), ("es", "Estos experimentos solo tuvieron")):
        (named,) = re.findall(rf"{told}[^<]*((?:<code>\w+</code>(?:, )?)+)\.</p>", build(ROOT, gpu)[code])
        assert named == f"<code>{BESIDE}</code>"
        assert told not in made[code]


def test_a_placed_server_is_said_to_agree_only_if_it_does(gpu: Content) -> None:
    same, noise = "what one with all experts on the card gave", "does not give every number again"
    text = words(build(ROOT, without_tasks(gpu))["en"])
    assert same in text and noise in text
    text = words(build(ROOT, apart(gpu))["en"])
    assert same not in text and "The paper says how far the numbers agree." in text


def test_speeds_are_drawn_by_rising_number_of_agents(gpu: Content) -> None:
    lines = re.findall(r'<polyline class="line ours-line" points="([^"]*)"', pictures(build(ROOT, gpu)["en"])["stools-chart"])
    for line in lines:
        at = [float(point.split(",")[0]) for point in line.split()]
        assert at == sorted(at)
    assert len(lines) >= 4


def test_a_gpu_host_says_what_it_cannot_know(gpu: Content) -> None:
    assert gpu.numbers["tpot.boots"][0].value == 3
    some, every = undecided(gpu), "Each experiment on speed started its server once."
    assert every not in words(build(ROOT, some)["en"]), "where one of them started more often"
    assert "Some experiments on speed started their server once" in words(build(ROOT, some)["en"])
    assert every in words(build(ROOT, changed(some, "tpot.boots", value=1.0))["en"])
    arm = gpu.numbers["agents.capacity"][0].parts[0]
    for code, unknown in (("en", "not known, for too few turns"), ("es", "no se sabe, por falta de turnos")):
        assert f"{read_languages(ROOT)[code].names[arm]}: {unknown}" in words(build(ROOT, some)[code])


def test_only_cells_that_write_a_text_have_a_time_for_each_token(gpu: Content) -> None:
    page = words(build(ROOT, gpu)["en"])
    assert "after 4096 tokens of context" in page and "4 agents at once" in page
    assert "cold prompt" not in page and "context_tokens" not in page


def test_what_was_not_run_stands_with_its_reason(made: dict[str, str], content: Content) -> None:
    assert content.not_run(), "the recorded host runs everything; this test needs another one"
    for page in made.values():
        for experiment, reason in content.not_run().items():
            assert f"<code>{experiment}</code>" in page and reason


class Reader(HTMLParser):
    """What a reader sees: links of numbers, and text with digits that is in none."""

    NO_TEXT = ("style", "title", "svg", "code")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.within: list[tuple[str, str]] = []
        self.links: list[str] = []
        self.unlinked: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Nothing is within an element that ends where it starts."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag in ("meta", "link", "br"):
            return
        self.within.append((tag, named.get("class", "")))
        if "number" in named.get("class", "").split() and tag == "a":
            self.links.append(named["href"])

    def handle_endtag(self, tag: str) -> None:
        while self.within and self.within.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tags = {tag for tag, _ in self.within}
        if tags & set(self.NO_TEXT):
            return
        self.text.append(data)
        classes = {name for _, css in self.within for name in css.split()}
        names = re.sub(r"GSM8K|coolbho3k", "", data)
        if re.search(r"\d", names) and not classes & {"number", "name"}:
            self.unlinked.append(data.strip())


def words(page: str) -> str:
    """The text of a page as it is read, in one line."""
    return re.sub(r"[^\S\u202f\u00a0]+", " ", "".join(Reader(page).text))


@pytest.mark.workflow
def test_snakemake_makes_both_pages_once_and_names_what_is_missing(project: Project) -> None:
    done = project.snakemake("article")
    assert done.returncode == 0, done.stdout + done.stderr
    for code in LANGUAGES:
        assert (project.root / f"article/{code}.html").stat().st_size > 10_000
    done = project.snakemake("article")
    assert "Nothing to be done" in done.stdout + done.stderr
    project.edit(ES, "    team: equipo\n", "")
    done = project.snakemake("article")
    assert done.returncode != 0
    assert "es.yaml: cost.table.team: missing" in done.stdout + done.stderr
    (project.root / "data/cpu/e11_seats.seats_models.parquet").unlink()
    done = project.snakemake("article")
    assert done.returncode != 0
    assert "data/cpu/e11_seats.seats_models.parquet" in done.stdout + done.stderr


FAULTS = {
    "a newer file": (ES, "    team: equipo\n", "", "es.yaml: cost.table.team: missing"),
    "another parameter": ("experiments/e4_ttft_context.yaml", "seed: 4", "seed: 5", "stale: measured for the specification"),
}


@pytest.mark.workflow
@pytest.mark.parametrize(("file", "old", "new", "said"), FAULTS.values(), ids=FAULTS)
def test_what_failed_fails_again_though_the_pages_of_before_are_there(
    project: Project, file: str, old: str, new: str, said: str
) -> None:
    assert project.snakemake("article").returncode == 0
    sound = (project.root / file).read_text()
    project.edit(file, old, new)
    for time in "first", "second", "third":
        done = project.snakemake("article")
        assert done.returncode != 0, f"the {time} time"
        assert said in done.stdout + done.stderr
    (project.root / file).write_text(sound)
    done = project.snakemake("article")
    assert done.returncode == 0, done.stdout + done.stderr
