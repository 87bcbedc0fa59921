"""The commands that an experiment would start on a host, without starting anything: for any host, described ones too.

Models are not made, plans not built, and no engine needs to be there; what a run makes on the spot is named where it will lie.
A host of several machines is served by vLLM over Ray, which is started by hand: its commands stand before the server's.
"""

import os
import re
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path

from spillway.measure.arms import BARE_PLAN, given_arguments, plan_path, server_command
from spillway.spec.arm import Arm, PlanChoice, PlanFile
from spillway.spec.experiment import EXPERIMENTS, Calculated, NotRun, OnHost, Resolved, UnnamedHost, launched, resolve
from spillway.spec.host import Converted, Folder, Host, Model
from spillway.spec.read import read
from spillway.spec.topology import LinkRates

RAY_PORT = 6379
HEAD = "HEAD_ADDRESS"
PORT = "PORT"


def commands(root: Path, name: str, host_name: str, model_name: str | None) -> str:
    """The text of a dry run: a comment for each thing that is not plain, a line for each command.

    `model_name` serves another model than the experiment says, or one where it says nothing of the host. Raises SpecError.
    """
    host = read(Host, root / EXPERIMENTS / "hosts" / f"{host_name}.yaml")
    lines = [f"# {name} on {host_name}: {host.title}"]
    if not host.measured and host.notes:
        lines += [f"# {line}" for line in textwrap.wrap(host.notes, 110, break_on_hyphens=False)]
    served: Mapping[str, Arm] = {"": Arm()}
    on: OnHost | None = None
    try:
        asked = resolve(root, name, host_name)
    except UnnamedHost:
        asked = NotRun(not_run="the experiment says nothing of this host")
    if isinstance(asked, NotRun):
        lines.append(f"# not run there: {asked.not_run}")
        if model_name is None:
            return "\n".join([*lines, "# with --model NAME its launch is shown as it would be"])
    elif isinstance(asked.on, Calculated | LinkRates):
        return "\n".join([*lines, "# starts no server"])
    else:
        on = asked.on if isinstance(asked.on, OnHost) else launched(asked.on)
        served = on.served()
        lines.append(f"# {on.boots} boot(s) of each command, with {len(on.workloads())} cell(s) of load each")
    for label, arm in served.items():
        lines += ["", *([f"# arm {label}"] if label else [])]
        model = _model(root, asked, label, model_name, arm)
        lines += launch_lines(root, host, *model, on, arm)
    return "\n".join(lines)


def _model(root: Path, asked: Resolved | NotRun, label: str, given: str | None, arm: Arm) -> tuple[str, Model]:
    if given is not None:
        return given, read(Model, root / EXPERIMENTS / "models" / f"{given}.yaml")
    assert isinstance(asked, Resolved) and not isinstance(asked.on, Calculated | LinkRates)  # or `commands` has ended
    return arm.model or asked.on.model, asked.arm_models.get(label, asked.served_model)


def launch_lines(root: Path, host: Host, model_name: str, model: Model, on: OnHost | None, arm: Arm) -> list[str]:
    """The lines that start one server on the host: Ray's over its machines if there are several, then vLLM's."""
    engine = host.engine
    environment = root / ".envs" / engine.environment / "bin"
    folder, given = where(root, model_name, model), given_arguments(host, on, arm)
    variables = engine.variables | arm.variables
    lines = []
    if engine.plan_variable is not None and arm.plan is not None:
        lines += _exported(arm.plan, folder)
        variables = engine.variables | {engine.plan_variable: BARE_PLAN} | arm.variables
    elif arm.plan is not None or arm.routing is not None:
        lines.append("# and the variables of the placement plugin: its plan and the folder of its proof are made for each run")
    if host.nodes > 1:
        lines += ray_lines(host, environment, variables)
        variables = variables | {"VLLM_HOST_IP": HEAD}
    command = server_command(str(environment / "python"), engine.module, model_name, model, folder, given)
    return [*lines, _line([*command, "--host", "127.0.0.1", "--port", PORT], variables)]


def _exported(plan: PlanChoice | PlanFile, folder: Path) -> list[str]:
    """The lines that bring a plan to an engine that places by itself."""
    if not isinstance(plan, PlanFile):
        return [f"# and {BARE_PLAN}, the plan that a run builds and exports"]
    path = str(plan_path(plan))
    return [
        *(f"# set {name} first: it is not set here" for name in re.findall(r"\$\{?(\w+)", f"{folder} {path}")),
        _line(["spillway", "plan", "check", path, "--model", str(folder)], {}),
        _line(["spillway", "plan", "export", path, "--out", BARE_PLAN], {}),
    ]


def ray_lines(host: Host, environment: Path, variables: dict[str, str]) -> list[str]:
    """Ray over the host's machines, as vLLM's documentation of serving over several nodes has it."""
    assert host.gpus is not None  # the host's file was checked for it
    ray, gpus = str(environment / "ray"), f"--num-gpus={host.gpus.count}"
    lines = []
    if host.slurm is not None:
        lines += [
            "# in a SLURM allocation, each of the lines below by srun on its machine:",
            f"salloc --partition={host.slurm.partition} --nodes={host.nodes} --gpus-per-node={host.gpus.count} --exclusive "
            f"--mem={host.slurm.memory_gib}G --time={host.slurm.minutes}",
        ]
    return [
        *lines,
        f"# on the first machine, whose address in a private network is {HEAD} (Ray lets in whoever reaches its ports):",
        _line(
            [ray, "start", "--head", f"--node-ip-address={HEAD}", f"--port={RAY_PORT}", gpus],
            variables | {"VLLM_HOST_IP": HEAD},
        ),
        f"# on each of the other {host.nodes - 1}, with its own address in VLLM_HOST_IP:",
        _line([ray, "start", f"--address={HEAD}:{RAY_PORT}", gpus], variables | {"VLLM_HOST_IP": "OWN_ADDRESS"}),
        "# on the first machine, once `ray status` shows all GPUs:",
    ]


def where(root: Path, model_name: str, model: Model) -> Path:
    """The folder from which a server would load the model, made or not."""
    match model.source:
        case Converted() as source:
            return root / ".envs" / source.setup / "model"
        case Folder() as source:
            return Path(os.path.expandvars(source.path)).expanduser()
        case _:
            return root / "build" / "models" / model_name


def _line(command: list[str], variables: Mapping[str, str]) -> str:
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(command)])
