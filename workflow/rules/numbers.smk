rule numbers:
    """Every number of the paper, computed from the data files and checked: finite, fresh, and vouched for by the manifest."""
    input:
        data=lambda wildcards: paper_data(wildcards.host),
        manifest="data/MANIFEST.csv",
        numbers="paper/numbers.yaml",
    output:
        "build/{host}/numbers.json",
    log:
        "logs/numbers/{host}.log",
    params:
        code=code_of_paper(),
        specifications=specifications(),
    shell:
        "python -m spillway.paper.numbers --host {wildcards.host} --out {output} > {log} 2>&1"
