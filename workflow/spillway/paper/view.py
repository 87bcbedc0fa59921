"""What a template may call: numbers by key, in one language and one markup, and nothing else."""

import difflib
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, Literal

from spillway.paper.content import Content, Value
from spillway.paper.format import with_unit, words
from spillway.paper.markup import Marked, Markup
from spillway.spec.number import NUMBERS

Output = Literal["paper", "article"]
SEEN = ".gpus_visible"
LEDGER_CHARS = 60
"""A text longer than this, such as a server's last words, would take a page of the appendix; the audit has it whole."""


class RenderError(Exception):
    """The template and the numbers do not agree; the message names the key and the file."""


class Numbers:
    """The numbers of one output. Remembers each use, so that undefined and unused numbers are found."""

    def __init__(self, content: Content, markup: Markup, language: str, output: Output) -> None:
        self.content, self.markup, self.language, self.output = content, markup, language, output
        self.used: set[str] = set()

    def calls(self) -> dict[str, Callable[..., Any]]:
        """Name in a template -> what it calls."""
        return {
            "n": self.n, "u": self.u, "raw": self.raw, "has": self.has, "groups": self.groups, "parts": self.parts,
            "rising": self.rising, "told_as": self.told_as, "on_some_gpus": self.on_some_gpus, "measured": self.measured,
            "host_of": self.host_of, "why_not": self.why_not, "files": self.files, "ledger": self.ledger, "words": words,
        }  # fmt: skip

    def n(self, key: str, *parts: str) -> Marked:
        """The number alone, as a link to where it comes from; `parts` are the values of its `by` columns."""
        value = self._find(key, parts)
        return self.markup.linked(value.anchor, value.texts[self.language])

    def u(self, key: str, *parts: str) -> Marked:
        """The number with its unit, as a link."""
        value = self._find(key, parts)
        return self.markup.linked(value.anchor, self._with_unit(value))

    def raw(self, key: str, *parts: str) -> float | str:
        """The bare value of a number, for conditions in the template."""
        return self._find(key, parts).value

    def has(self, key: str, *parts: str) -> bool:
        """Whether a number has such a group: not every arm finishes every cell."""
        return any(value.parts == parts for value in self._known(key))

    def groups(self, key: str) -> list[str]:
        """The values of the `by` column of a number, in order."""
        return self.parts(key, 0)

    def parts(self, key: str, position: int, *before: str) -> list[str]:
        """The distinct values of one of several `by` columns, in order, among groups whose first ones are `before`."""
        values = [value.parts for value in self._known(key)]
        if any(position >= len(parts) for parts in values):
            raise RenderError(f"number {key!r} has {len(values[0])} `by` columns; expected more than {position}")
        return list(dict.fromkeys(parts[position] for parts in values if parts[: len(before)] == before))

    def rising(self, key: str, *before: str) -> list[str]:
        """The groups below `before` by the number itself, least first: a file has them in the order of its experiment."""
        values = [value for value in self._known(key) if value.parts[:-1] == before]
        return [value.parts[-1] for value in sorted(values, key=lambda value: float(value.value))]

    def told_as(self, key: str, *parts: str) -> Literal["unknown", "leap", "bound"]:
        """How a capacity is to be told: not at all, with the level that fails where none between was measured, or as it is.

        Of `KEY`, the streams that hold, by `KEY_is`, exact or at least, and `KEY_fails`, the least level that fails.
        """
        streams, fails = float(self.raw(key, *parts)), f"{key}_fails"
        if self.raw(f"{key}_is", *parts) == "at least" and streams == 0:
            return "unknown"
        return "leap" if self.has(fails, *parts) and float(self.raw(fails, *parts)) > streams + 1 else "bound"

    def on_some_gpus(self) -> list[dict[str, str]]:
        """The experiments whose servers saw only some of their machine's GPUs, which other runs could use meanwhile.

        `key` begins the numbers that say so, `KEY.gpus` and `KEY.gpus_visible`: how many there were, and which were seen.
        """
        found = []
        for key in [name.removesuffix(SEEN) for name in self.content.numbers if name.endswith(SEEN)]:
            (there,) = self._known(f"{key}.gpus")
            if any(float(there.value) > len(str(seen.value).split(",")) for seen in self._known(key + SEEN)):
                _, host, file = there.file.split("/")
                found.append({"key": key, "experiment": file.split(".")[0], "host": host})
        return found

    def measured(self, experiment: str, host: str = "") -> bool:
        """Whether the host in question or one that stands in, or the one named, has data of an experiment."""
        return self._reason(experiment, host or self.host_of(experiment)) is None

    def host_of(self, experiment: str) -> str:
        """The host whose data of an experiment this edition has: the one in question, or one that stands in."""
        return self.content.elsewhere.get(experiment, self.content.host)

    def why_not(self, experiment: str, host: str = "") -> str:
        """Why a host has no data of an experiment; raises RenderError if it has."""
        reason = self._reason(experiment, host)
        if reason is None:
            raise RenderError(
                f"why_not({experiment!r}): it is measured on host {host or self.content.host}; guard it with measured"
            )
        return reason

    def files(self) -> list[dict[str, str]]:
        """Every data file that numbers of this output come from, for the provenance appendix."""
        files = {value.file: value for value in self._of_output()}
        return [{"name": file, "sha256": value.sha256[:16], "run": value.run} for file, value in sorted(files.items())]

    def ledger(self, file: str) -> list[dict[str, str]]:
        """Every number of this output from a file, for the provenance appendix; does not count as a use.

        `head` is the key where a number with several groups begins, and empty on its other lines; a long text is cut.
        """
        lines, before = [], ""
        for value in (value for value in self._of_output() if value.file == file):
            lines.append(
                {
                    "anchor": Marked(value.anchor),
                    "head": value.key if value.parts and value.key != before else "",
                    "key": value.key,
                    "group": value.group if value.parts else "",
                    "text": self._in_ledger(value),
                    "where": (_without_group(value) or "all rows") if value.rows else "",
                    "what": value.what,
                    "rows": str(value.rows) if value.rows else "",
                }
            )
            before = value.key
        return lines

    def unused(self) -> list[str]:
        """Numbers that this output must print, and that neither it nor a ratio in it uses."""
        parts = {part for key in self.used for part in self.content.ratios.get(key, ())}
        asked = {  # an optional number without a row has nothing to print
            key
            for key, values in self.content.numbers.items()
            if values and self.content.only_in.get(key, "paper") == self.output
        }
        return sorted(asked - self.used - parts)

    def refuse_unused(self, where: object) -> None:
        """Raise RenderError if `unused` finds any; `where` names the template."""
        if unused := self.unused():
            raise RenderError(
                f"{NUMBERS}: defined and never used in {where}: {', '.join(unused)}; use or delete them"
                + ("" if self.output == "article" else ", or mark them `only_in: article` if the article alone prints them")
            )

    def _of_output(self) -> Iterable[Value]:
        """The article may print all numbers; the paper, all but those of the article alone."""
        for key, group in self.content.numbers.items():
            if self.output == "article" or key not in self.content.only_in:
                yield from group

    def _with_unit(self, value: Value) -> str:
        return with_unit(value.texts[self.language], value.unit, self.language)

    def _in_ledger(self, value: Value) -> str:
        text = self._with_unit(value)
        return textwrap.shorten(text, LEDGER_CHARS, placeholder=" ...") if len(text) > LEDGER_CHARS else text

    def _known(self, key: str) -> list[Value]:
        key = self.content.same.get(key, key)
        if key in self.content.left_out:
            host, experiment = self.content.left_out[key]
            named = f", host={host!r}" if host != self.content.host else ""
            raise RenderError(
                f"number {key!r}: experiment {experiment} is not run on host {host}, so it has no value; "
                f"guard it with measured({experiment!r}{named})"
            )
        if key not in self.content.numbers:
            close = difflib.get_close_matches(key, self.content.numbers, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise RenderError(f"undefined number {key!r}: not in {NUMBERS}{hint}")
        if self.content.only_in.get(key, self.output) != self.output:
            raise RenderError(
                f"number {key!r}: {NUMBERS} says only_in: {self.content.only_in[key]}; delete that to print it here"
            )
        self.used.add(key)
        return self.content.numbers[key]

    def _find(self, key: str, parts: tuple[str, ...]) -> Value:
        values = self._known(key)
        for value in values:
            if value.parts == parts:
                return value
        there = ", ".join(value.group or "(none)" for value in values)
        raise RenderError(f"number {key!r} has no group {' | '.join(parts)!r}; it has: {there}")

    def _reason(self, experiment: str, host: str) -> str | None:
        hosts = self.content.experiments
        if (there := hosts.get(host or self.content.host)) is None:
            raise RenderError(
                f"measured({experiment!r}, host={host!r}): no number names that host; there are: {', '.join(hosts)}"
            )
        if experiment not in there:
            close = difflib.get_close_matches(experiment, there, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(there)}"
            raise RenderError(
                f"measured({experiment!r}): no such experiment of host {host or self.content.host} in experiments/{hint}"
            )
        return there[experiment]


def _without_group(value: Value) -> str:
    """The conditions on a number's rows without those on its `by` columns, which come last."""
    last = ", ".join(rf"\w+ = {re.escape(part)}" for part in value.parts)
    return re.sub(rf"(?:^|, ){last}$", "", value.where) if value.parts else value.where
