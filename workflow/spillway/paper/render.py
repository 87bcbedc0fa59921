"""From a template and `numbers.json` to LaTeX: the template gets numbers by key and nothing else.

    python -m spillway.paper.render --numbers build/HOST/numbers.json --template paper/paper.en.tex.j2 --out FILE.tex

Fails if the template uses an undefined number, if a defined number is used nowhere, or if a number is typed into the text or
into the code of a figure.
"""

import argparse
import sys
from pathlib import Path

import jinja2

from spillway.paper import typed
from spillway.paper.content import Content, ContentError, read_content
from spillway.paper.markup import Latex
from spillway.paper.view import Numbers, RenderError
from spillway.record.provenance import commit
from spillway.spec.experiment import names
from spillway.spec.read import SpecError

FIGURE_CODE = Path("workflow/spillway/paper")


def render(template: Path, content: Content, project: dict[str, str]) -> str:
    """The LaTeX text of a template; raises RenderError naming the template, its line and what is wrong there."""
    latex = Latex()
    numbers = Numbers(content, latex, "en", "paper")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, finalize=latex.escape, trim_blocks=True, keep_trailing_newline=True,
        block_start_string=r"\BLOCK{", block_end_string="}", variable_start_string=r"\VAR{", variable_end_string="}",
        comment_start_string=r"\#{", comment_end_string="}",
    )  # fmt: skip
    without_defaults(environment)
    text = template.read_text(encoding="utf-8")
    try:
        rendered = environment.from_string(text).render(**numbers.calls(), **project)
    except (jinja2.TemplateError, RenderError) as error:
        raise RenderError(f"{template}:{line_of(error)}: {error}") from None
    numbers.refuse_unused(template)
    return rendered


def without_defaults(environment: jinja2.Environment) -> None:
    """Take jinja2's `default` away: a missing number is an error, never a dash."""
    del environment.filters["default"], environment.filters["d"]


def line_of(error: BaseException) -> int:
    """The template line at which rendering stopped: jinja2 gives its own errors one, and every frame of a template."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return error.lineno
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def project(content: Content, root: Path) -> dict[str, str]:
    """What a page says of its own origin: commit, hash of the data, host."""
    return {"commit": str(commit(root)), "data_hash": content.data_hash[:12], "host": content.host}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--numbers", type=Path, required=True)
    parser.add_argument("--template", type=Path, required=True)
    parser.add_argument("--allowed", type=Path, default=Path("paper/allowed.yaml"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    root = Path(".")
    try:
        content = read_content(options.numbers)
        typed.check(options.template, options.allowed, names(root))
        typed.check_figures(root / FIGURE_CODE, options.allowed, names(root))
        rendered = render(options.template, content, project(content, root))
    except (ContentError, RenderError, SpecError, typed.TypedNumber) as error:
        sys.exit(f"spillway: {error}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(rendered, encoding="utf-8")


if __name__ == "__main__":
    main()
