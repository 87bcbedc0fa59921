rule figure:
    """One figure as PDF, drawn from the tables that paper/figures.yaml lists for it."""
    input:
        data=figure_data,
        manifest="data/MANIFEST.csv",
        figures="paper/figures.yaml",
        specifications=specifications(),
        library=library("paper", "record", "spec"),
    output:
        "build/{host}/figures/{figure}.pdf",
    log:
        "logs/figure/{host}.{figure}.log",
    shell:
        "python -m spillway.paper.figures {wildcards.figure} --host {wildcards.host} --out {output} > {log} 2>&1"
