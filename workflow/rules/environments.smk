rule engine_environment:
    """Install an engine, or a model out of its package, from a lock; does nothing where it is installed already."""
    output:
        touch(".envs/{environment}/.ready"),
    log:
        "logs/engine_environment/{environment}.log",
    wildcard_constraints:
        environment="[a-z0-9-]+",
    shell:
        "scripts/setup {wildcards.environment} > {log} 2>&1"
