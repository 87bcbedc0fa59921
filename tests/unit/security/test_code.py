"""The product's code: no shell, no pickle, no evaluated text, no YAML that makes objects, no archive that leaves its folder."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted([*ROOT.glob("workflow/**/*.py"), *ROOT.glob("scripts/*.py"), ROOT / "scripts" / "bundle"])

REFUSED_CALLS = {
    "eval", "exec", "os.system", "os.popen", "os.tempnam", "tempfile.mktemp", "asyncio.create_subprocess_shell",
    "subprocess.getoutput", "subprocess.getstatusoutput", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load",
    "yaml.full_load_all", "np.load", "numpy.load", "pd.read_pickle", "pandas.read_pickle",
    "torch.load", "joblib.load", "shutil.unpack_archive",
}  # fmt: skip
REFUSED_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "commands", "telnetlib"}


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each construct that reads or runs more than it should."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, module) for module in modules if module.split(".")[0] in REFUSED_IMPORTS)
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        unsafe_yaml = name == "yaml.load" and keywords.get("Loader") != "_UniqueKeyLoader"
        unpacks = name.endswith(".extractall") or name == "archive.extract"
        if name in REFUSED_CALLS or unsafe_yaml or (unpacks and keywords.get("filter") != "'data'"):
            yield node.lineno, name
        elif keywords.get("shell", "False") != "False" or keywords.get("allow_pickle", "False") != "False":
            yield node.lineno, f"{name} with shell or allow_pickle"
        elif name.startswith("subprocess.") and node.args and isinstance(node.args[0], ast.JoinedStr | ast.Constant):
            yield node.lineno, f"{name} of a text"


def test_no_program_runs_what_it_reads() -> None:
    assert len(PROGRAMS) > 100
    found = {str(path.relative_to(ROOT)): list(faults(path.read_text(encoding="utf-8"))) for path in PROGRAMS}
    assert {path: constructs for path, constructs in found.items() if constructs} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from dill import loads", "os.system('ls')", "eval(text)", "subprocess.run(f'ls {x}', shell=True)",
        "subprocess.run('ls')", "subprocess.Popen(command, shell=yes)", "yaml.load(text, Loader=yaml.Loader)",
        "yaml.load(text)", "yaml.unsafe_load(text)", "np.load(path)", "load(path, allow_pickle=True)", "torch.load(path)",
        "archive.extractall(folder)", "tempfile.mktemp()",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert list(faults(source))


def test_the_yaml_reader_is_the_safe_one() -> None:
    import yaml

    from spillway.spec.read import _UniqueKeyLoader

    assert issubclass(_UniqueKeyLoader, yaml.SafeLoader)
    assert _UniqueKeyLoader.yaml_constructors is yaml.SafeLoader.yaml_constructors, "a constructor was added"


RULES = "\n".join(path.read_text(encoding="utf-8") for path in [*sorted(ROOT.glob("workflow/rules/*.smk")), ROOT / "Snakefile"])
# What a command of a rule may hold beside file names that the rule states: each is a name that spec/names.py lets through, a
# number, a hash, or is quoted.
NAMES_IN_COMMANDS = {"wildcards.host", "wildcards.figure", "wildcards.environment", "wildcards.target", "params.experiment",
                     "params.host", "params.epoch", "params.targets:q", "wildcards.language"}  # fmt: skip


def test_commands_of_rules_hold_checked_names_only() -> None:
    commands = re.findall(r"shell:\n((?:\s+[rf]?\".*\"\n?)+)", RULES)
    assert len(commands) >= 8
    used = {name for command in commands for name in re.findall(r"(?<!\{)\{([^{}]+)\}(?!\})", command)}
    files = {name for name in used if re.match(r"(input|output|log)\b", name)}
    assert used - files <= NAMES_IN_COMMANDS
    constrained = set(
        re.findall(r"^ +(\w+)=(?:\"|r\")", "\n".join(re.findall(r"wildcard_constraints:\n((?: +.*\n)+)", RULES)), re.M)
    )
    assert {name.partition(".")[2] for name in used if name.startswith("wildcards.")} <= constrained
