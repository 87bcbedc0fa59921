"""Refuse a measurement in a SLURM job that is not where the host's file says: its rows would bear the wrong name."""

from collections.abc import Mapping

from spillway.measure.run import MeasureError
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
