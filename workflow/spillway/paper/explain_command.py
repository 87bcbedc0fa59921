"""`spillway explain KEY`: from a printed number down to the rows that it was made of."""

import argparse
import difflib
from pathlib import Path

from spillway.paper.chain import Chain, Origin, chains, origins
from spillway.paper.content import Content
from spillway.paper.format import LANGUAGES, with_unit
from spillway.paper.numbers import NumberError, evaluate
from spillway.record import manifest
from spillway.record.parquet import RecordError
from spillway.spec.number import NUMBERS, read_numbers
from spillway.spec.read import SpecError
from spillway.spec.settings import SETTINGS, chosen_host

RUN_SHOWN = [
    "experiment",
    "run",
    "measured_at",
    "commit",
    "dirty",
    "computed_by",
    "engine",
    "environment_hash",
    "model",
    "weights",
    "spec_hash",
]


def main(argv: list[str]) -> int | str:
    """Explain numbers; returns 0, or a message naming an unknown key or what is wrong with the data."""
    parser = argparse.ArgumentParser(prog="spillway explain", description="Show where a number of the paper comes from.")
    parser.add_argument("key", nargs="+", help=f"key in {NUMBERS}, or one group of it as the audit names it: 'KEY [GROUP]'")
    parser.add_argument("--host", help=f"default: the one in {SETTINGS}")
    options = parser.parse_args(argv)
    root = Path(".")
    try:
        host = chosen_host(root, options.host)
        definitions = read_numbers(root, host)
        asked = [_key_and_group(text) for text in options.key]
        for key, _ in asked:
            if key not in definitions:
                close = difflib.get_close_matches(key, definitions, n=3) or sorted(definitions)[:12]
                return f"spillway: no number {key!r} in {NUMBERS}; there are, for example: {', '.join(close)}"
        content = evaluate(root, host)
        made_of = list(chains(root, content))
        files = origins(root, content)
        for key, group in ((content.same.get(key, key), group) for key, group in asked):
            of_key = [chain for chain in made_of if chain.value.key == key]
            shown = [chain for chain in of_key if group in ("", chain.value.group)]
            if of_key and not shown:
                return f"spillway: {key}: no group {group!r}; there are: {', '.join(chain.value.group for chain in of_key)}"
            print(explain(key, content, shown, files))
    except (NumberError, RecordError, SpecError) as error:
        return f"spillway: {error}"
    return 0


def explain(key: str, content: Content, made_of: list[Chain], files: dict[str, Origin]) -> str:
    """The chain of one number as text: printed, computed, rows, file, run."""
    if key in content.left_out:
        host, experiment = content.left_out[key]
        return f"{key}: has no value: {experiment} is not run on host {host}: {content.experiments[host][experiment]}\n"
    if not made_of:
        return f"{key}: has no value: it is optional, and no row fits it\n"
    lines = []
    for chain in made_of:
        value = chain.value
        printed = " / ".join(dict.fromkeys(with_unit(value.texts[language], value.unit, language) for language in LANGUAGES))
        rows = f" over {value.rows} row{'s' if value.rows > 1 else ''} where {value.where or 'all'}" if value.rows else ""
        lines += [f"{value.name}: {printed}", f"  exactly   {value.value!r}", f"  computed  {value.what}{rows}"]
        lines += [f"  row {position:<6}{_cells(chain.columns, cells)}" for position, cells in chain.shown]
        if value.rows > len(chain.shown) > 0:
            more = value.rows - len(chain.shown)
            lines.append(f"  ... and {more} more row{'s' if more > 1 else ''}")
    origin = files[made_of[0].value.file]
    lines += [f"  file      {origin.file}  sha256 {origin.listed['sha256']}"]
    lines += [f"  {name:<17}{origin.run[name]}" for name in RUN_SHOWN if name in origin.run]
    lines += [f"  {'routing':<17}{origin.routing}"] if origin.routing else []
    if made_of[0].definition.ratio:
        lines.append(f"  a ratio: `spillway explain {' '.join(made_of[0].definition.ratio)}` shows its parts")
    lines.append(f"  defined in {NUMBERS}; the file's hash is listed in {manifest.DATA / manifest.MANIFEST}")
    return "\n".join(lines) + "\n"


def _key_and_group(text: str) -> tuple[str, str]:
    key, _, group = text.partition(" [")
    return key, group.removesuffix("]")


def _cells(columns: list[str], cells: list[str]) -> str:
    return "  ".join(f"{column}={cell}" for column, cell in zip(columns, cells, strict=True))
