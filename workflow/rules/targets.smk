rule all:
    """Everything that is made from recorded data."""
    default_target: True
    input:
        "paper.pdf",
        expand("article/{language}.html", language=LANGUAGES),
        "audit.html",
        paper_data(HOST),


rule no_such_target:
    """Answers a target typed wrong with the ones that exist."""
    output:
        "{target}",
    log:
        "logs/no_such_target/{target}.log",
    wildcard_constraints:
        target=r"(?!(paper\.pdf|audit\.html)$)[A-Za-z0-9_-]+(\.pdf|\.html)?",
    params:
        targets=lambda wildcards: "\n".join(f"  {name:<18} {what}" for name, what in targets().items()),
    shell:
        "echo {wildcards.target}: no such target. There are: > {log}; echo {params.targets:q} >> {log}; exit 1"
