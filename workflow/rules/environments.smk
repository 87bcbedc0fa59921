rule engine_environment:
    """Install an engine from its lock; does nothing where it is installed already."""
    output:
        touch(".envs/{environment}/.ready"),
    log:
        "logs/engine_environment/{environment}.log",
    wildcard_constraints:
        environment="engine-[a-z0-9]+",
    shell:
        "scripts/setup {wildcards.environment} > {log} 2>&1"
