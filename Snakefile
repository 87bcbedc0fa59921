"""Spillway's entry: which host, which experiments, and the rules in workflow/rules/."""

import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.0")


configfile: "workflow/config.yaml"


# The commands of all rules run in the environment that Snakemake itself runs in, also when nobody activated it.
shell.prefix(f"set -euo pipefail; export PATH='{Path(sys.executable).parent}':\"$PATH\"; ")


include: "workflow/rules/common.smk"


HOST = chosen_host(config)
JOB = job_on_cluster(HOST)
EXPERIMENTS = experiments()
HERE = commit_of_project()


wildcard_constraints:
    host="|".join(hosts()),
    figure="|".join(figures()),


include: "workflow/rules/environments.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/numbers.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/paper.smk"
include: "workflow/rules/article.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/targets.smk"


onerror:
    forget_failed_jobs()


# On a cluster (profiles/slurm) only measuring is worth a job; papers are made where Snakemake runs.
workflow.localrules(*(each.name for each in workflow.rules if each.name not in {"measure", *EXPERIMENTS}))
