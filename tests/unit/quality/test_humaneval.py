"""Programs from replies, and that a program which a model wrote can do no harm and cannot cheat its tests."""

import os
from pathlib import Path

import pytest

from spillway.quality import confined, humaneval
from spillway.quality.answers import MARK
from spillway.quality.errors import QualityError
from spillway.quality.items import load_items, own_items

ENTRY = {
    "prompt": 'from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    """Sum."""\n',
    "entry_point": "total",
    "test": "def check(f):\n    assert f([1, 2]) == 3\n",
}


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("Here:\n```python\ndef total(n):\n    return sum(n)\n```\nDone.", "def total(n):\n    return sum(n)"),
        ("```\ndef total(n): pass\n```\n```python\ndef total(n):\n    return sum(n)\n```", "def total(n):\n    return sum(n)"),
        ("```python\nprint(total([1]))\n```\n```py\ndef total(n): return 1\n```", "def total(n): return 1"),
        ("```python\ndef total(n):\n    return sum(n)", "def total(n):\n    return sum(n)"),  # cut off by the budget
        ("def total(n):\n    return sum(n)", "def total(n):\n    return sum(n)"),
        ("def totals(n): pass", None),
        ("I cannot.", None),
    ],
)
def test_extraction(reply: str, code: str | None) -> None:
    assert humaneval.extract(reply, "total") == code


def test_imports_and_earlier_functions_of_the_prompt_are_there() -> None:
    prompt = 'import math\n\n\ndef near(x):\n    return math.floor(x)\n\n\ndef asked(x):\n    """Use near."""\n'
    assert humaneval.imports(prompt) == "import math\ndef near(x):\n    return math.floor(x)"


@pytest.fixture(scope="module")
def namespaces() -> confined.Confinement:
    if reason := confined.no_namespaces():
        pytest.skip(reason)
    return "namespaces"


def outcome(code: str, confinement: confined.Confinement, time_s: float = 5) -> confined.Outcome:
    return confined.run(code + f"\nprint({MARK!r})", MARK, time_s=time_s, confinement=confinement)


def test_own_items_solutions_pass_their_tests_and_empty_ones_do_not(namespaces: confined.Confinement) -> None:
    for item in own_items("humaneval")[::4]:
        for body, ending in ((item.entry["canonical_solution"], "passed"), ("    return None\n", "failed")):
            program = humaneval.program(item.entry, item.entry["prompt"] + body, MARK)
            assert confined.run(program, MARK, time_s=5, confinement=namespaces).ending == ending, item.name


def test_real_items_solutions_pass_their_tests(namespaces: confined.Confinement) -> None:
    if "SPILLWAY_TRIAL_DATA" not in os.environ:
        pytest.skip("SPILLWAY_TRIAL_DATA names no folder with the public sets")
    for item in load_items("humaneval", "full", Path(os.environ["SPILLWAY_TRIAL_DATA"]) / "quality")[::20]:
        reply = f"```python\n{item.entry['prompt']}{item.entry['canonical_solution']}\n```"
        code = humaneval.extract(reply, item.entry["entry_point"])
        assert code is not None, item.name
        program = humaneval.program(item.entry, code, MARK)
        assert confined.run(program, MARK, time_s=10, confinement=namespaces).ending == "passed", item.name


def test_ending_early_passes_no_test(namespaces: confined.Confinement) -> None:
    code = "import os\ndef total(n): return 0\nos._exit(0)"
    assert confined.run(humaneval.program(ENTRY, code, MARK), MARK, time_s=5, confinement=namespaces).ending == "failed"


def test_no_network(namespaces: confined.Confinement) -> None:
    code = "import socket\nassert [name for _, name in socket.if_nameindex()] == ['lo']\n"
    code += "try:\n    socket.create_connection(('127.0.0.1', 9), 1)\n"
    code += "except OSError as error:\n    assert error.errno == 101, error"
    assert outcome(code, namespaces) == confined.Outcome("passed", "")


def test_no_file_but_its_own_and_no_environment(namespaces: confined.Confinement, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    code = f"""
import os
for path in ({str(tmp_path / "a")!r}, "/tmp/spillway-escaped", "/dev/shm/spillway-escaped"):
    try:
        open(path, "w")
    except OSError as error:
        assert error.errno in (30, 13), error
    else:
        raise SystemExit(path)
open("own", "w").write("x")
assert os.listdir(".") == ["own"] and set(os.environ) <= {{"PATH", "HOME", "TMPDIR", "LC_CTYPE"}}, os.environ
"""
    assert outcome(code, namespaces) == confined.Outcome("passed", "")
    assert list(tmp_path.iterdir()) == []


def test_no_way_back_to_rights(namespaces: confined.Confinement) -> None:
    code = """
told = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
assert all(int(told[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")), told
assert told["NoNewPrivs"] == "1", told
"""
    assert outcome(code, namespaces) == confined.Outcome("passed", "")


def test_no_other_process_is_seen(namespaces: confined.Confinement) -> None:
    code = "import os\nassert [name for name in os.listdir('/proc') if name.isdigit()] == ['1'], os.listdir('/proc')"
    assert outcome(code, namespaces) == confined.Outcome("passed", "")


def test_processes_memory_and_files_are_limited(namespaces: confined.Confinement) -> None:
    forks = (
        "import os, time\ntry:\n    for _ in range(100):\n        if os.fork() == 0:\n            time.sleep(9); os._exit(0)\n"
    )
    assert outcome(forks + "except OSError:\n    pass\nelse:\n    raise SystemExit(1)", namespaces).ending == "passed"
    assert outcome("try:\n    bytearray(4 << 30)\nexcept MemoryError:\n    pass", namespaces).ending == "passed"
    assert outcome("open('big', 'wb').write(bytes(8 << 20))", namespaces).ending == "failed"
    assert outcome("while True:\n    print('x' * 10_000)", namespaces).ending == "failed"


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
@pytest.mark.parametrize("confinement", ["namespaces", "limits only"])
def test_time_is_limited(code: str, confinement: confined.Confinement, request: pytest.FixtureRequest) -> None:
    if confinement == "namespaces":
        request.getfixturevalue("namespaces")
    assert outcome(code, confinement, time_s=0.3).ending == "timeout"


def test_where_namespaces_are_refused_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "no_namespaces", lambda: "confinement: the kernel refuses namespaces here")
    with pytest.raises(QualityError, match="refuses namespaces"):
        confined.run("print(1)", "1", time_s=5, confinement="namespaces")
    assert confined.run("print(1)", "1", time_s=5, confinement="limits only").ending == "passed"


def test_without_the_commands_it_says_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "util-linux" in (confined.no_namespaces.__wrapped__() or "")
