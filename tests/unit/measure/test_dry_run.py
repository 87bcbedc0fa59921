"""What a dry run prints: the commands that a run starts, on any host, and nothing is started or made."""

import io
import itertools
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from spillway.measure import arms, dry_run
from spillway.measure.__main__ import main
from spillway.measure.errors import MeasureError
from spillway.measure.experiment import measure
from spillway.measure.run import Run
from spillway.spec.experiment import OnHost, Resolved, names, resolve
from spillway.spec.host import Host
from spillway.spec.read import SpecError, read
from tests.conftest import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    return tmp_path


def started(text: str) -> list[list[str]]:
    """The servers' commands among the lines, without the variables before them."""
    lines = [shlex.split(line) for line in text.splitlines() if " -m vllm" in line]
    return [line[next(at for at, word in enumerate(line) if word.endswith("bin/python")) :] for line in lines]


def test_it_prints_what_a_run_starts_on_every_host(project):
    compared = 0
    for host in names(project, "hosts"):
        engine = read(Host, project / f"experiments/hosts/{host}.yaml").engine.environment
        python = project / ".envs" / engine / "bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        for name in names(project):
            try:
                asked = resolve(project, name, host)
            except SpecError:
                continue
            if not isinstance(asked, Resolved) or not isinstance(asked.on, OnHost):
                continue
            printed = started(dry_run.commands(project, name, host, None))
            run = Run(asked, project, "run", io.StringIO())
            for (label, arm), command in zip(asked.on.served().items(), printed, strict=True):
                model_name, model = arm.model or asked.on.model, asked.arm_models.get(label, asked.served_model)
                way = arms.Way(label, arm, model_name, model, dry_run.where(project, model_name, model), None)
                assert command == [
                    *arms.launch(run, asked.on, way, project / "run").command,
                    "--host",
                    "127.0.0.1",
                    "--port",
                    "PORT",
                ]
                compared += 1
    assert compared >= 8


@pytest.mark.parametrize(("name", "seconds"), [("e4_ttft_context", 200), ("e3_tpot_context", 90)])
def test_an_experiment_of_long_prompts_may_wait_longer_for_an_answer_than_its_host_says(project, name, seconds):
    asked = resolve(project, name, "h200")
    assert isinstance(asked, Resolved) and isinstance(asked.on, OnHost)
    python = project / ".envs" / asked.host.engine.environment / "bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    way = arms.Way("", asked.on.served()[""], asked.on.model, asked.served_model, project / "model", None)
    launch = arms.launch(Run(asked, project, "run", io.StringIO()), asked.on, way, project / "run")
    assert launch.progress_timeout_s == seconds


def test_an_arm_whose_cold_share_changes_while_it_serves_gets_the_extension_that_does_it(project):
    printed = started(dry_run.commands(project, "e14_plan_choice", "h200", None))
    assert printed and all("--worker-extension-cls" in command for command in printed)


def test_nothing_is_made(project):
    before = sorted(project.rglob("*"))
    dry_run.commands(project, "e13_agents", "cpu", None)
    assert sorted(project.rglob("*")) == before


def test_a_host_that_an_experiment_does_not_run_with_a_model_of_choice(project):
    alone = dry_run.commands(project, "e14_plan_choice", "h200x2", None)
    assert "not run there" in alone and "--model NAME" in alone and not started(alone)
    (command,) = started(dry_run.commands(project, "e14_plan_choice", "h200x2", "qwen3-235b-a22b-fp8"))
    assert command[command.index("--tensor-parallel-size") + 1] == "2"
    assert command[command.index("--model") + 1].endswith("build/models/qwen3-235b-a22b-fp8")


OF_THE_ARTICLE = [f"e{number}_" for number in (1, 3, 4, 5, 6, 7, 13)]


@pytest.mark.parametrize("name", [name for name in names(ROOT) if name.startswith(tuple(OF_THE_ARTICLE))])
def test_the_articles_deployment_with_its_plan_tables_on_the_host_and_two_gpus(project, name, monkeypatch):
    for variable in ("SPILLWAY_DSV41_MODEL", "SPILLWAY_DSV41_PLAN"):
        monkeypatch.delenv(variable, raising=False)
    text = dry_run.commands(project, name, "rtxpro6000x2", None)
    assert "nothing is measured on it here" in " ".join(text.split())
    assert "# set SPILLWAY_DSV41_MODEL first" in text and "# set SPILLWAY_DSV41_PLAN first" in text
    monkeypatch.setenv("SPILLWAY_DSV41_MODEL", "/models/pack")
    monkeypatch.setenv("SPILLWAY_DSV41_PLAN", "/plans/mine.json")
    text = dry_run.commands(project, name, "rtxpro6000x2", None)
    assert "spillway plan export /plans/mine.json --out plan.bare.json" in text and "first" not in text
    (launch,) = (line for line in text.splitlines() if " -m vllm" in line)
    assert "EXL3_HOST_EXPERTS=plan.bare.json " in launch and "SPILLWAY_PLAN" not in launch
    (command,) = started(text)
    given = {option: value for option, value in itertools.pairwise(command) if option.startswith("--")}
    assert command[0].endswith(".envs/engine-exl3/bin/python") and given["--model"] == "/models/pack"
    assert (given["--tensor-parallel-size"], given["--quantization"]) == ("2", "exl3")
    assert json.loads(given["--engram-config"]) == {"cpu_offload": True}
    assert given["--cpu-offload-params"] == "model.embed_tokens"
    assert "--trust-remote-code" not in command


def test_the_stock_offloader_beside_the_articles_plan_moves_as_many_bytes(project):
    placed, *stock = started(dry_run.commands(project, "e2_stock_offload", "rtxpro6000x2", None))
    assert len(stock) == 2 and placed[placed.index("--cpu-offload-gb") + 1] == "1.3"
    for command, blocks in zip(stock, ("64", "128"), strict=True):
        assert command[command.index("--block-size") + 1] == blocks
        at = command.index("--cpu-offload-params")
        assert command[at + 1 : at + 4] == ["w13_trellis", "w2_trellis", "model.embed_tokens"]
        budget = float(command[command.index("--cpu-offload-gb") + 1]) * 2**30
        due = 4608 * 13_271_040 / 2 + 129_280 * 5120 * 2
        assert due <= budget < due + 384 * 13_271_040 / 2


def test_nobody_measures_on_a_host_that_is_only_described(project):
    with pytest.raises(MeasureError, match=r"measured: found false.*on such a machine, set it to true"):
        measure(project, "e13_agents", "rtxpro6000x2", io.StringIO())


def test_an_experiment_without_a_server_says_so(project):
    assert dry_run.commands(project, "e12_topology", "cpu", None).endswith("# starts no server")


CLUSTER = {
    "title": "two nodes of four H200",
    "measured": False,
    "nodes": 2,
    "gpus": {"name": "NVIDIA H200", "count": 4, "memory_gib": 139.8},
    "slurm": {"partition": "h200", "cores": 64, "memory_gib": 500, "minutes": 240},
    "engine": {
        "environment": "engine-cuda",
        "module": "vllm.entrypoints.openai.api_server",
        "ready_timeout_s": 1800,
        "arguments": {"tensor-parallel-size": 4, "pipeline-parallel-size": 2, "distributed-executor-backend": "ray"},
    },
}


def host_file(project: Path, **changes: object) -> None:
    (project / "experiments/hosts/pair.yaml").write_text(yaml.safe_dump(CLUSTER | changes))


def test_several_machines_are_joined_by_ray_before_the_server(project):
    host_file(project)
    text = dry_run.commands(project, "e13_agents", "pair", "qwen3-235b-a22b-fp8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 4
    assert lines[0].startswith("salloc --partition=h200 --nodes=2 --gpus-per-node=4 --exclusive")
    assert "ray start --head --node-ip-address=HEAD_ADDRESS --port=6379 --num-gpus=4" in lines[1]
    assert "ray start --address=HEAD_ADDRESS:6379 --num-gpus=4" in lines[2] and "OWN_ADDRESS" in lines[2]
    assert lines[3].startswith("VLLM_HOST_IP=HEAD_ADDRESS ")
    assert {"--pipeline-parallel-size 2", "--distributed-executor-backend ray"} <= {
        " ".join(pair) for pair in itertools.pairwise(started(text)[0])
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": 3}, r"nodes: found 3 with 4 GPUs each, and tensor-parallel-size 4 .* expected the product to be 12"),
        ({"gpus": None}, r"nodes: found 2; expected 1 on a host without gpus|tensor-parallel-size"),
        ({"engine": CLUSTER["engine"] | {"arguments": {"tensor-parallel-size": 8}}}, r"executor-backend: expected ray"),
        ({"slurm": {"partition": "a b", "cores": 1, "memory_gib": 1, "minutes": 1}}, r"slurm\.partition: found 'a b'"),
        ({"slurm": {"partition": "a"}}, r"slurm\.cores: found nothing"),
    ],
)  # fmt: skip
def test_a_host_of_several_machines_that_cannot_be_is_refused(project, changes, said):
    host_file(project, **{key: value for key, value in changes.items() if value is not None})
    if changes.get("gpus", "") is None:
        path = project / "experiments/hosts/pair.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in CLUSTER.items() if key != "gpus"}))
    with pytest.raises(SpecError, match=said):
        read(Host, project / "experiments/hosts/pair.yaml")


COMMAND = ["-m", "spillway.measure", "e13_agents", "--host", "cpu", "--root"]


def test_the_command_prints_and_ends_well(project):
    done = subprocess.run([sys.executable, *COMMAND, project, "--dry-run"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and len(started(done.stdout)) == 1, done.stderr


def test_a_model_of_choice_is_for_a_dry_run_alone(project, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [*COMMAND[1:], str(project), "--model", "tiny-qwen3-moe"])
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    assert "--model goes with --dry-run" in capsys.readouterr().err
