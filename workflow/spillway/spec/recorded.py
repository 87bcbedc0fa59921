"""Which experiment stands behind a data file, and why a host has no data of an experiment.

An experiment that the host in question does not run (`not_run`) has no data, and the paper says why. One that it does run
must have all of its files: an absent file is an error of whoever reads it. A comparison of answers has those alone that it
makes: without tasks none of answers, without a plan none of placement. Other hosts appear beside the one in question; of
them nothing is asked, so an experiment of which there is no file there, and by the manifest ought to be none, is not
recorded, which is no error either.
"""

from pathlib import Path, PurePosixPath

from spillway.spec.experiment import EXPERIMENTS, Experiment, NotRun, names
from spillway.spec.quality import Quality
from spillway.spec.read import SpecError, read

DATA = Path("data")
MANIFEST = "MANIFEST.csv"
NOT_MADE = "what is compared on that host has nothing for this table"


def measured_by(root: Path, file: str) -> tuple[str, str] | None:
    """(host, experiment) of a path below data/; None for a file that no experiment makes, such as published/figures.csv."""
    path = PurePosixPath(file)
    host = path.parent.name
    return (host, path.name.split(".")[0]) if path.suffix == ".parquet" and host in names(root, "hosts") else None


def tables_not_made(root: Path, experiment: str, host: str) -> frozenset[str]:
    """The tables that an experiment has on other hosts, and not on this one by what it does there; raises SpecError."""
    asked = read(Experiment, root / EXPERIMENTS / f"{experiment}.yaml").hosts.get(host)
    return asked.not_made if isinstance(asked, Quality) else frozenset()


def why_not(root: Path, experiment: str, host: str, paper_host: str) -> str | None:
    """Why `host` has no data of an experiment, in words that the paper can print; None if it has, or must have.

    Raises SpecError if the experiment does not exist or says nothing about the host.
    """
    path = root / EXPERIMENTS / f"{experiment}.yaml"
    specified = read(Experiment, path)
    asked = specified.hosts.get(host, specified.other_hosts)
    if asked is None:
        raise SpecError(f"{path}: hosts.{host}: found nothing; expected what to do on that host, or `not_run` with the reason")
    if isinstance(asked, NotRun):
        return asked.not_run
    if host != paper_host and not _recorded(root / DATA, experiment, host):
        return f"not recorded on host {host} yet"
    return None


def _recorded(data: Path, experiment: str, host: str) -> bool:
    """Whether there is, or by the manifest ought to be, a file of an experiment on a host."""
    manifest = data / MANIFEST
    listed = manifest.read_text(encoding="utf-8").splitlines() if manifest.is_file() else []
    return any(line.startswith(f"{host}/{experiment}.") for line in listed) or any(
        (data / host).glob(f"{experiment}.*.parquet")
    )
