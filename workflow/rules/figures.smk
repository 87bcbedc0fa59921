rule figure:
    """One figure as PDF, drawn from the tables that paper/figures.yaml lists for it."""
    input:
        data=figure_data,
        manifest=ancient("data/MANIFEST.csv"),
        figures="paper/figures.yaml",
    output:
        "build/{host}/figures/{figure}.pdf",
    log:
        "logs/figure/{host}.{figure}.log",
    params:
        code=code_of_paper(),
        specifications=specifications(),
    shell:
        "python -m spillway.paper.figures {wildcards.figure} --host {wildcards.host} --out {output} > {log} 2>&1"
