"""How many faults are injected, with which seed, and the report at the end.

python -m pytest tests/faults                                    a moderate share, as in CI
python -m pytest tests/faults --kills 300 --real 20 --seed 7     the whole campaign; the seed repeats a failure
"""

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Project
from tests.faults.aftermath import DataLost, gone, stop_ours

HERE = Path(__file__).parent
KILLS, REAL_KILLS = 6, 1
KILLS_IN_A_ROW = 6
CAMPAIGN = pytest.mark.campaign
"""Marks what is too long for a small share."""

Fault = Callable[[str], contextlib.AbstractContextManager[Callable[[], None]]]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption("--kills", type=int, default=KILLS, help="processes to kill at random moments, with a fake server")
    group.addoption("--real", type=int, default=REAL_KILLS, help="the same with real vLLM on the CPU")
    group.addoption("--seed", type=int, default=None, help="of the victims and moments; printed at the start")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"campaign: too long for a small share, runs with --kills {KILLS + 1} or more")
    if config.getoption("seed", None) is None:
        config.option.seed = random.SystemRandom().randrange(1_000_000)


def pytest_report_header(config: pytest.Config) -> str:
    kills, real = config.getoption("kills", KILLS), config.getoption("real", REAL_KILLS)
    return f"faults: --kills {kills} --real {real} --seed {config.getoption('seed')}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Kills come in chains, each a test with a seed of its own, which stands in the test's name, and a number of kills."""
    for name, default in (("kills", KILLS), ("real", REAL_KILLS)):
        argument = f"{name}_chain"
        if argument in metafunc.fixturenames:
            count, seed = metafunc.config.getoption(name, default), metafunc.config.getoption("seed")
            lengths = [min(KILLS_IN_A_ROW, count - done) for done in range(0, count, KILLS_IN_A_ROW)]
            chains = [(seed + number, length) for number, length in enumerate(lengths)]
            metafunc.parametrize(argument, chains, ids=[f"seed{seed}x{length}" for seed, length in chains])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The fault report: what was injected, what survived it, and whether data were lost."""
    injected: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    late: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for key, found in report.user_properties if report.when == "call" else ():
            if key == "fault":
                injected[found["name"]] += found["injected"]
                survived[found["name"]] += found["survived"]
                late[found["name"]] += not found["injected"]
                lost[found["name"]] += found["data_lost"]
    if not injected:
        return
    terminalreporter.section("faults")
    line = "{:<58} {:>8} {:>8} {:>9} {:>8}".format
    terminalreporter.write_line(line("fault", "injected", "survived", "data lost", "too late"))
    for fault in injected:
        terminalreporter.write_line(line(fault, injected[fault], survived[fault], lost[fault], late[fault]))
    sums = (sum(counted.values()) for counted in (injected, survived, lost, late))
    terminalreporter.write_line(line("all", *sums))
    terminalreporter.write_line("too late: the process had ended before it could be hit; not counted as injected")


@pytest.fixture
def fault(record_property: Callable[[str, object], None]) -> Fault:
    """Name a fault and say, each time, that it has been injected; what the block then raises was not survived."""

    @contextlib.contextmanager
    def name(fault: str) -> Iterator[Callable[[], None]]:
        found: dict[str, object] = {"name": fault, "data_lost": False}
        injected, survived = 0, False

        def landed() -> None:
            nonlocal injected
            injected += 1

        try:
            yield landed
            survived = True
        except DataLost:
            found["data_lost"] = True
            raise
        finally:
            counts = {"injected": injected, "survived": injected if survived else max(0, injected - 1)}
            record_property("fault", found | counts)

    return name


@pytest.fixture(autouse=True)
def only_in_a_campaign(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("campaign") and request.config.getoption("kills", KILLS) <= KILLS:
        pytest.skip(f"too long for a small share: runs with --kills {KILLS + 1} or more")


def with_faulty_server(project: Project, *flags: str) -> Project:
    """Serve the faulty server in vLLM's place, fast and without a fault unless the flags say so."""
    speeds = ("--tokens-per-second", "2000", "--prefill-tokens-per-second", "1000000")
    project.fake_engine(*speeds, *flags)
    python = project.root / ".envs/engine-cpu/bin/python"
    python.write_text(python.read_text().replace(str(ROOT / "tests/golden_server.py"), str(HERE / "faulty_server.py")))
    return project


TWO_CELLS = """\
question: How fast does the server write after how much context?
measures: load
hosts:
  cpu:
    model: tiny-qwen3-moe
    seed: {seed}
    boots: {boots}
    cells:
      - workload: {{kind: prompt_sweep, output_tokens: {output_tokens}, requests: 5}}
        sweep: {{prompt_tokens: [64, 128]}}
"""


def ask(project: Project, boots: int = 1, output_tokens: int = 8, seed: int = 3) -> None:
    """Have e3_tpot_context ask for two small cells, on the host `cpu` alone."""
    text = TWO_CELLS.format(boots=boots, output_tokens=output_tokens, seed=seed)
    (project.root / "experiments/e3_tpot_context.yaml").write_text(text)


@pytest.fixture
def small(project: Project) -> Iterator[Project]:
    """A copy with a fast fake engine and two small cells; nothing of it is left after the test, whatever it did."""
    with_faulty_server(project)
    ask(project)
    yield project
    stop_ours(project)
    assert gone(project)
    shutil.rmtree(project.root)  # hundreds of copies would fill the disk
