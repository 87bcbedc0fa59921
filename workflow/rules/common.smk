"""Functions that the other rule files call: names and paths, read from the specifications. No rules here."""

import hashlib

sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from snakemake.exceptions import WorkflowError

from spillway.record.provenance import commit
from spillway.spec import experiment, number
from spillway.spec.read import SpecError, read

ROOT = Path(workflow.basedir)


def checked(function, *arguments):
    """The result of a function that reads specifications; a fault ends Snakemake with its message, not a traceback."""
    try:
        return function(*arguments)
    except SpecError as error:
        raise WorkflowError(str(error)) from None


def chosen_host(settings):
    """The host of this call; refuses settings that do not exist, and hosts without a file."""
    if unknown := sorted(set(settings) - {"host"}):
        raise WorkflowError(f"--config {unknown[0]}={settings[unknown[0]]}: unknown setting; expected: host")
    if settings["host"] not in hosts():
        raise WorkflowError(f"--config host={settings['host']}: no such host; in experiments/hosts/: {', '.join(hosts())}")
    return settings["host"]


def hosts():
    return experiment.names(ROOT, "hosts")


def experiments():
    return experiment.names(ROOT)


def figures(in_paper_only=False):
    """Names of the figures that can be made, or of those in the paper."""
    read_figures = checked(number.read_figures, ROOT)
    return sorted(name for name, figure in read_figures.items() if figure.in_paper or not in_paper_only)


def figure_data(wildcards):
    """The tables that one figure draws."""
    files = checked(number.read_figures, ROOT)[wildcards.figure].files
    return [f"data/{number.data_file(file, wildcards.host)}" for file in files]


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
    return content("workflow/spillway/paper/*.py", "workflow/spillway/record/*.py", "workflow/spillway/spec/*.py")


def specifications():
    return content("experiments/**/*.yaml")


def commit_of_project():
    return commit(ROOT)


def resolved(name):
    """One experiment on the chosen host, or why it is not run there."""
    return checked(experiment.resolve, ROOT, name, HOST)


def environment_of(name):
    """Marker of the engine environment that an experiment needs; nothing where it starts no server."""
    asked = resolved(name)
    starts_server = isinstance(asked, experiment.Resolved) and asked.model is not None
    return [f".envs/{asked.host.engine.environment}/.ready"] if starts_server else []


def targets():
    """What a person may ask for: name -> what it makes."""
    return {
        "paper.pdf": f"the paper, from the recorded data of host {HOST}; starts no server",
        "all": "everything made from recorded data (the default)",
        "measure": f"every experiment, measured anew on host {HOST}",
        **{name: f"measured anew on host {HOST}, published in data/{HOST}/" for name in experiments()},
    }
