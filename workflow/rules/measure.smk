# The only rules that start a server. They have no outputs: a run is a new one (runs/<host>/<experiment>/<run id>/), or one that
# was interrupted and goes on, and its tables are published into data/, which no rule makes. So nothing that builds the paper can ever start a server,
# and neither a clone nor `-F`, `touch` or `--delete-all-output` can lose or measure anything.

for name in EXPERIMENTS:

    rule:
        name:
            name
        input:
            ancient(needs_of(name)),
        log:
            f"logs/{name}/{HOST}.log",
        resources:
            measuring=1,
            gpu=JOB["gpu"],
            slurm_partition=JOB["partition"],
            cpus_per_task=JOB["cores"],
            mem_mb=JOB["memory_gib"] * 1024,
            runtime=JOB["minutes"],
        params:
            experiment=name,
            host=HOST,
        shell:
            "exec python -m spillway.measure {params.experiment} --host {params.host} --log {log} --stop-with-parent"


rule measure:
    """All experiments of the host, one after the other."""
    input:
        ancient(needs_of(*EXPERIMENTS)),
    log:
        f"logs/measure/{HOST}.log",
    resources:
        measuring=1,
        gpu=JOB["gpu"],
        slurm_partition=JOB["partition"],
        cpus_per_task=JOB["cores"],
        mem_mb=JOB["memory_gib"] * 1024,
        runtime=JOB["minutes"],
    params:
        host=HOST,
    shell:
        "exec python -m spillway.measure --all --host {params.host} --log {log} --stop-with-parent"
