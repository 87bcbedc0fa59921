rule audit_page:
    """The audit of one host: every number from what is printed down to its rows. Needs no LaTeX: it reads rendered text."""
    input:
        numbers="build/{host}/numbers.json",
        template="paper/audit.html.j2",
        paper="build/{host}/paper/paper.tex",
        article=expand("build/{{host}}/article/{language}.html", language=LANGUAGES),
    output:
        "build/{host}/audit.html",
    log:
        "logs/audit_page/{host}.log",
    params:
        code=code_of_paper(),
        specifications=specifications(),
        commit=str(HERE),
    shell:
        "python -m spillway.paper.audit_page --numbers {input.numbers} --out {output} > {log} 2>&1"


rule audit:
    """The audit of the chosen host, where people look for it."""
    input:
        page=f"build/{HOST}/audit.html",
        data=paper_data(HOST),
    output:
        "audit.html",
    log:
        "logs/audit/log",
    params:
        host=HOST,
    shell:
        "cp {input.page} {output} 2> {log} && echo 'audit.html: of the data of host {params.host} in data/{params.host}/'"
