"""Functions that the other rule files call: names and paths, read from the specifications. No rules here."""

import hashlib
from functools import cache

sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from snakemake.exceptions import WorkflowError

from spillway.measure.errors import MeasureError
from spillway.measure.machine import check_gpus
from spillway.paper.format import LANGUAGES
from spillway.record.provenance import commit
from spillway.spec import experiment, number
from spillway.spec.host import Host
from spillway.spec.read import SpecError, read

ROOT = Path(workflow.basedir)


def checked(function, *arguments):
    """The result of a function that reads specifications or looks at the machine; a fault ends Snakemake with its message,
    not a traceback."""
    try:
        return function(*arguments)
    except (SpecError, MeasureError) as error:
        raise WorkflowError(str(error)) from None


def chosen_host(settings):
    """The host of this call; refuses settings that do not exist, and hosts without a file."""
    if unknown := sorted(set(settings) - {"host"}):
        raise WorkflowError(f"--config {unknown[0]}={settings[unknown[0]]}: unknown setting; expected: host")
    if settings["host"] not in hosts():
        raise WorkflowError(f"--config host={settings['host']}: no such host; in experiments/hosts/: {', '.join(hosts())}")
    return settings["host"]


def hosts():
    return checked(experiment.names, ROOT, "hosts")


def experiments():
    return checked(experiment.names, ROOT)


@cache
def figures():
    """Names of the figures that can be made."""
    return sorted(checked(number.read_figures, ROOT, HOST))


@cache
def figures_of_paper(host):
    """Names of the figures in the paper of a host: without those whose experiment is not run there."""
    return checked(number.figures_drawn, ROOT, host)


def figure_data(wildcards):
    """The tables that one figure draws."""
    figure = checked(number.read_figures, ROOT, wildcards.host)[wildcards.figure]
    return [f"data/{file}" for file in number.files_drawn(figure, wildcards.host)]


@cache
def paper_data(host):
    """Every data file of the paper: direct inputs of each target, so that a missing one ends the build by its name."""
    return [f"data/{file}" for file in checked(number.data_files, ROOT, host)]


def content(*patterns):
    """Hash over the files that match, for the `params` of rules whose commands read them: Snakemake does not see what a
    command imports, a list of fifty inputs hides the one that matters, and a hash knows no times."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def code_of_paper():
    folders = [f"workflow/spillway/{folder}/*.py" for folder in ("paper", "record", "spec")]
    return content(*folders, "workflow/spillway/seats/distributions.py")


def specifications():
    return content("experiments/**/*.yaml")


def commit_of_project():
    return commit(ROOT)


def resolved(name):
    """One experiment on the chosen host, or why it is not run there."""
    return checked(experiment.resolve, ROOT, name, HOST)


def environment_of(name):
    """Markers of what an experiment needs installed: its engine, and a model that the set-up converts."""
    asked = resolved(name)
    if not isinstance(asked, experiment.Resolved):
        return []
    made = [asked.model.source.setup] if asked.model is not None and asked.model.source.kind == "converted" else []
    needed = [asked.host.engine.environment] if asked.model is not None or asked.on_gpus else []
    return [f".envs/{name}/.ready" for name in needed + made]


def needs_of(*names):
    """An input function: what experiments need installed. Asked when they are to be measured, it first looks for the host's
    GPUs, unless the jobs run elsewhere, since an engine for GPUs that are not here takes minutes to install."""

    def needed(wildcards):
        if workflow.executor_plugin is not None and workflow.local_exec and not workflow.dryrun:
            for asked in map(resolved, names):
                if isinstance(asked, experiment.Resolved):
                    checked(check_gpus, asked)
        return sorted({marker for name in names for marker in environment_of(name)})

    return needed


def job_on_cluster(host_name):
    """What a measuring job asks a cluster for (profiles/slurm): nothing but GPUs where the host's file names no partition."""
    host = checked(read, Host, ROOT / experiment.EXPERIMENTS / "hosts" / f"{host_name}.yaml")
    gpus = {"gpu": host.gpus.count if host.gpus is not None else 0}
    nothing = {"partition": "", "cores": 0, "memory_gib": 0, "minutes": 0}
    return gpus | (host.slurm.model_dump() if host.slurm is not None else nothing)


def forget_failed_jobs():
    """Drop what Snakemake notes of a job that failed as if it had succeeded: its inputs and parameters. The outputs are gone,
    but a file in the middle that is missing is none of its reasons to run a job, so the same call again would find nothing to
    do and succeed, with a paper of before the fault (Snakemake's pull request 2966)."""
    for job in workflow.dag.jobs:
        for file in job.output:
            if not Path(file).exists():
                workflow.persistence.cleanup_metadata(file)


def targets():
    """What a person may ask for: name -> what it makes."""
    return {
        "paper.pdf": f"the paper, from the recorded data of host {HOST}; starts no server",
        "article": f"the article for general readers, in {' and '.join(LANGUAGES)}, from the same numbers",
        "audit": "audit.html: every number down to its rows",
        "all": "everything made from recorded data (the default)",
        "measure": f"every experiment, measured anew on host {HOST}",
        **{name: f"measured anew on host {HOST}, published in data/{HOST}/" for name in experiments()},
    }
