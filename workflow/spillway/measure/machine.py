"""Refuse a measurement on a machine that is not what the host's file says: its rows would bear the wrong name."""

from collections.abc import Mapping

import pynvml

from spillway.engine.host import describe_gpus
from spillway.measure.errors import MeasureError
from spillway.spec.experiment import Resolved
from spillway.spec.host import Host


def check_job(host: Host, host_name: str, environment: Mapping[str, str], cores: int) -> None:
    """Raise MeasureError if `environment` is that of a SLURM job in another partition, or one with fewer `cores`."""
    if "SLURM_JOB_ID" not in environment:
        return
    where = f"experiments/hosts/{host_name}.yaml: slurm"
    partition = environment.get("SLURM_JOB_PARTITION", "unknown")
    if host.slurm is None:
        raise MeasureError(
            f"{where}: found nothing, in a job of the partition {partition!r}; expected partition, cores, minutes, so that it "
            "is certain on which machines this host is measured"
        )
    if partition != host.slurm.partition:
        raise MeasureError(
            f"{where}.partition: found {host.slurm.partition!r}, in a job of the partition {partition!r}; choose the host that "
            "describes those machines with --config host=..., or correct the file"
        )
    if cores < host.slurm.cores:
        raise MeasureError(
            f"{where}.cores: found {host.slurm.cores}, in a job that may use {cores}; start it with "
            "`--workflow-profile profiles/slurm`, which asks for them"
        )


def check_gpus(asked: Resolved) -> None:
    """Raise MeasureError unless this machine has the GPUs, by name and number, of the host on which `asked` is measured."""
    wanted = asked.host.gpus
    if wanted is None or not asked.on_gpus:
        return
    try:
        described = describe_gpus()
    except pynvml.NVMLError as error:
        raise MeasureError(
            f"the NVIDIA driver does not answer: {error}; `spillway doctor --host {asked.host_name}` says what to do"
        ) from error
    found = [str(name) for key, name in described.items() if key.endswith("_name")]
    if found.count(wanted.name) < wanted.count:
        here = f"with {', '.join(found)}" if found else "where the NVIDIA driver lists no GPU"
        correct = "...; if the machine is the right one, correct gpus.name, as the driver says it, and gpus.count"
        raise MeasureError(
            f"experiments/hosts/{asked.host_name}.yaml: gpus: found {wanted.count} x {wanted.name}, on a machine {here}; "
            f"measure {asked.name} on such a machine, or here as another host: --config host={correct if found else 'cpu'}"
        )
