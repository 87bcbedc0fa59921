rule paper_tex:
    """The template with its numbers in place."""
    input:
        numbers="build/{host}/numbers.json",
        template="paper/paper.en.tex.j2",
        allowed="paper/allowed.yaml",
    output:
        "build/{host}/paper/paper.tex",
    log:
        "logs/paper_tex/{host}.log",
    params:
        code=code_of_paper(),
        commit=str(HERE),
    shell:
        "python -m spillway.paper.render --numbers {input.numbers} --template {input.template} --allowed {input.allowed} "
        "--out {output} > {log} 2>&1"


rule paper_pdf:
    """The paper as LaTeX sets it; the commit's time stands for today, so that the same inputs give the same bytes."""
    input:
        tex="build/{host}/paper/paper.tex",
        preamble="paper/preamble.tex",
        bibliography="paper/refs.bib",
        latexmkrc="paper/latexmkrc",
        figures=lambda wildcards: expand(
            "build/{host}/figures/{figure}.pdf", host=wildcards.host, figure=figures_of_paper(wildcards.host)
        ),
    output:
        "build/{host}/paper/paper.pdf",
    log:
        "logs/paper_pdf/{host}.log",
    params:
        epoch=HERE.time_s,
    shell:
        "cp {input.preamble} {input.bibliography} {input.latexmkrc} build/{wildcards.host}/paper/ "
        "&& cd build/{wildcards.host}/paper "
        "&& {{ SOURCE_DATE_EPOCH={params.epoch} FORCE_SOURCE_DATE=1 latexmk -g paper.tex > latexmk.log 2>&1 "
        "|| {{ grep -E '^!|^[^ ]+:[0-9]+: |undefined|treated as error' latexmk.log > ../../../{log}; "
        "echo 'all of its output: build/{wildcards.host}/paper/latexmk.log' >> ../../../{log}; exit 1; }}; }}"


rule paper:
    """The paper of the chosen host, where people look for it."""
    input:
        pdf=f"build/{HOST}/paper/paper.pdf",
        data=paper_data(HOST),
    output:
        "paper.pdf",
    log:
        "logs/paper/log",
    params:
        host=HOST,
    shell:
        "cp {input.pdf} {output} 2> {log} && echo 'paper.pdf: from the data of host {params.host} in data/{params.host}/'"
