rule article_pages:
    """The article in every language, from one structure and one set of numbers."""
    input:
        numbers="build/{host}/numbers.json",
        template="paper/article/article.html.j2",
        style="paper/article/article.css",
        languages=expand("paper/article/{language}.yaml", language=LANGUAGES),
        allowed="paper/allowed.yaml",
    output:
        expand("build/{{host}}/article/{language}.html", language=LANGUAGES),
    log:
        "logs/article_pages/{host}.log",
    params:
        code=code_of_paper(),
        commit=str(HERE),
    shell:
        "python -m spillway.paper.article --numbers {input.numbers} --allowed {input.allowed} "
        "--out build/{wildcards.host}/article > {log} 2>&1"


rule article:
    """The article of the chosen host, where people look for it."""
    input:
        pages=expand("build/{host}/article/{language}.html", host=HOST, language=LANGUAGES),
        data=paper_data(HOST),
    output:
        expand("article/{language}.html", language=LANGUAGES),
    log:
        "logs/article/log",
    params:
        host=HOST,
    shell:
        "cp {input.pages} article/ 2> {log} && echo 'article/: from the data of host {params.host} in data/{params.host}/'"
