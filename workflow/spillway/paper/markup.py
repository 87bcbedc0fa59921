"""How a text is written so that LaTeX or a browser shows it literally, and how a number is linked there."""

from html import escape as html_escape
from typing import Protocol

from spillway.paper.format import NARROW, WIDE

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "µ": r"\textmu{}",
    "×": r"\texttimes{}", "−": r"\textminus{}", NARROW: r"\,", WIDE: "~",
}  # fmt: skip


class Marked(str):
    """Text that is markup already; everything else that a template prints is escaped."""

    def __html__(self) -> str:
        """jinja2's sign for markup that autoescape leaves alone."""
        return str(self)


class Markup(Protocol):
    """What the numbers need of an output's language of markup."""

    def escape(self, text: object) -> Marked:
        """A value as the output shows it literally; markup stays as it is."""

    def linked(self, anchor: str, text: str) -> Marked:
        """A number's text as a link to where it comes from."""


class Latex:
    """LaTeX; a number links to its line in the provenance appendix."""

    def escape(self, text: object) -> Marked:
        if isinstance(text, Marked):
            return text
        return Marked("".join(_LATEX.get(character, character) for character in str(text)))

    def linked(self, anchor: str, text: str) -> Marked:
        return Marked(rf"\datum{{{anchor}}}{{{self.escape(text)}}}")


class Html:
    """HTML of one page; a number links to its row in the audit, and its first place can be linked from there.

    `audit` is the path from the page to audit.html.
    """

    def __init__(self, audit: str = "audit.html") -> None:
        self.audit = audit
        self._placed: set[str] = set()

    def escape(self, text: object) -> Marked:
        if isinstance(text, Marked):
            return text
        return Marked(html_escape(str(text)))

    def linked(self, anchor: str, text: str) -> Marked:
        place = "" if anchor in self._placed else f' id="{anchor}"'
        self._placed.add(anchor)
        return Marked(f'<a class="number" href="{self.audit}#{anchor}"{place}>{self.escape(text)}</a>')
