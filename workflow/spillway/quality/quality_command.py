"""`spillway quality`: the same questions to two OpenAI-compatible endpoints A and B, and how far their answers differ.

Keys are read from environment variables, whose names are given, and written nowhere. Every raw reply is on disk when it
counts as answered: after a crash, the same command with --resume asks only what has no reply yet.
"""

import argparse
import asyncio
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pydantic

import spillway
from spillway.load.progress import Progress
from spillway.quality import ask
from spillway.quality.answers import FLAGS
from spillway.quality.ask import Endpoint
from spillway.quality.compare import GATE
from spillway.quality.comparison import agreement_tables, answer_tables, estimate, load, questions, system_row
from spillway.quality.confined import no_namespaces
from spillway.quality.errors import QualityError
from spillway.quality.items import download, texts
from spillway.quality.replies import Journal
from spillway.quality.teacher import read_texts
from spillway.record import parquet
from spillway.record.provenance import new_run
from spillway.spec.quality import FIXED_FIELDS, AskedTask, Comparison, Confinement, Remote, TaskName, Tier
from spillway.spec.read import SpecError
from spillway.spec.workload import seed_option

NAME = "quality"
GREEDY_TOKENS = 64
TOP = 20


def compare(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Ask both endpoints, write the tables into the folder, and return them.

    Raises QualityError for endpoints, keys, models and data that do not do, SpecError for options that do not.
    """
    tasks = _tasks(options)
    if options.download and options.tier != "own":
        for task in tasks:
            download(task, options.data)
    items = load(tasks, options.data)
    if "humaneval" in tasks and options.confinement == "namespaces" and (reason := no_namespaces()):
        raise QualityError(reason)
    asked = questions(tasks, items)
    prices = {side: _prices(options, side) for side in "ab"}
    endpoints = {side: _endpoint(options, side, prices[side]) for side in "ab"}
    for endpoint in endpoints.values():
        asyncio.run(ask.check(endpoint))
    for side, endpoint in endpoints.items():
        most = estimate(asked, prices[side])
        print(
            f"{endpoint.system}: {len(asked)} questions" + ("" if most is None else f", at most {most:.2f} {options.currency}")
        )
    secrets = [key for endpoint in endpoints.values() if (key := endpoint.key())]
    progress = Progress(NAME)
    with Journal(options.out, resume=options.resume, secrets=secrets) as journal:
        try:
            asyncio.run(ask.ask(list(endpoints.values()), asked, journal, seed=options.seed, progress=progress.update))
        finally:
            progress.close()
        replies = dict(journal.replies)
    comparison = {NAME: Comparison(a="a", b="b", same=options.same)}
    tables = answer_tables(tasks, items, ["a", "b"], comparison, replies, options.confinement, print)
    if options.agreement:
        readings = {
            side: asyncio.run(read_texts(endpoint, texts(), top=TOP, greedy_tokens=GREEDY_TOKENS))
            for side, endpoint in endpoints.items()
        }
        tables |= agreement_tables(comparison, readings)
    tables["quality_systems"] = [
        system_row(
            endpoint,
            [reply for reply in replies.values() if reply.system == endpoint.system],
            prices=prices[side],
            estimated=estimate(asked, prices[side]),
            arguments="{}",
            startup_s=None,
        )
        for side, endpoint in endpoints.items()
    ]
    _write(options, endpoints, tables)
    return tables


def _write(options: argparse.Namespace, endpoints: dict[str, Endpoint], tables: dict[str, list[dict[str, Any]]]) -> None:
    run = new_run()
    origin = {
        "run": run,
        "experiment": NAME,
        "a": f"{endpoints['a'].model} at {endpoints['a'].url}",
        "b": f"{endpoints['b'].model} at {endpoints['b'].url}",
        "seed": options.seed,
        "spillway": spillway.__version__,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    for table, rows in tables.items():
        parquet.write(options.out / f"{NAME}.{table}.parquet", table, [{"run": run} | row for row in rows], origin)


def _tasks(options: argparse.Namespace) -> dict[TaskName, AskedTask]:
    try:
        how = AskedTask(tier=options.tier, items=options.items, max_tokens=options.max_tokens, margin_fraction=options.margin)
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        raise SpecError(f"{fault['loc'][0]}: found {fault['input']!r}; expected: {fault['msg']}") from None
    return dict.fromkeys(options.tasks, how)


def _prices(options: argparse.Namespace, side: str) -> Remote:
    of = vars(options)
    try:
        return Remote(
            url=of[f"{side}_url"],
            model=of[f"{side}_model"],
            key_variable=of[f"{side}_key_variable"],
            requests_per_s=of[f"{side}_requests_per_s"],
            input_price_per_million=of[f"{side}_input_price"],
            output_price_per_million=of[f"{side}_output_price"],
            currency=options.currency,
        )
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        where = f"--{side}-{str(fault['loc'][0]).replace('_', '-')}: " if fault["loc"] else f"--{side}: "
        raise SpecError(where + fault["msg"].removeprefix("Value error, ")) from None


def _endpoint(options: argparse.Namespace, side: str, remote: Remote) -> Endpoint:
    at_once = vars(options)[f"{side}_at_once"]
    if at_once < 1:
        raise SpecError(f"--{side}-at-once: found {at_once}; expected 1 or more")
    return Endpoint(
        side,
        remote.url,
        remote.model,
        remote.key_variable,
        at_once=at_once,
        requests_per_s=remote.requests_per_s,
        options=_options(side, vars(options)[f"{side}_option"]),
    )


def _options(side: str, given: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in given:
        name, _, value = option.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            raise SpecError(
                f"--{side}-option: found {option!r}; expected NAME=JSON, such as reasoning_effort='\"low\"'"
            ) from None
        if name in FIXED_FIELDS:
            raise SpecError(f"--{side}-option: found {name!r}, which is the same for both sides; expected another field")
    return found


def summary(tables: dict[str, list[dict[str, Any]]]) -> str:
    """What a person wants to see at once: each task's difference with its interval and verdict, gates, agreement, price."""
    lines = [f"{'task':<10} {'items':>5} {'a':>6} {'b':>6}  difference [95 % interval]    only a, only b  verdict"]
    for row in tables["quality_paired"]:
        if row["holm_p"] is None or row["reading"] == "without known bad":
            continue
        reading = "" if row["reading"] == "all items" else f"   ({row['reading']})"
        lines.append(
            f"{row['task']:<10} {row['items']:>5} {row['a_fraction']:>6.3f} {row['b_fraction']:>6.3f}  "
            f"{row['difference_fraction']:+.3f} [{row['low_fraction']:+.3f}, {row['high_fraction']:+.3f}]   "
            f"{row['wins']:>6}, {row['losses']:<6}  {row['verdict']}{reading}"
        )
        if row["flagged_fraction"] > GATE:
            lines.append(
                f"{'':<10} {row['flagged_fraction']:.0%} of the pairs carry a flag; if all of them counted for one side, the "
                f"difference would be {row['worst_fraction']:+.3f} or {row['best_fraction']:+.3f}"
            )
    for row in tables["quality_tasks"]:
        if not row["gate_open"] and row["measure"] != "instructions":
            flags = [f"{flag.replace('_', ' ')} {row[f'{flag}_fraction']:.0%}" for flag in FLAGS if row[f"{flag}_fraction"]]
            lines.append(
                f"{row['system']}: {row['task']}: flags on {row['flagged_fraction']:.0%} of the answers: {', '.join(flags)}"
            )
    for row in tables.get("quality_agreement", []):
        lines.append(
            f"agreement: {row['tokens']} tokens, {row['same_first_fraction']:.1%} with the same likeliest one, divergence "
            f"{row['divergence_nats']:.2g} nats, {'bit-identical' if row['identical'] else 'not bit-identical'}"
        )
    for row in tables["quality_systems"]:
        if row["price"] is not None:
            lines.append(f"{row['system']}: spent {row['price']:.2f} {row['currency']} of at most {row['estimated_price']:.2f}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spillway quality", description=__doc__)
    for side, what in (("a", "the system in question"), ("b", "the reference")):
        group = parser.add_argument_group(f"endpoint {side.upper()}, {what}")
        group.add_argument(f"--{side}-url", required=True, help="up to and with /v1, or without it")
        group.add_argument(f"--{side}-model", required=True)
        group.add_argument(f"--{side}-key-variable", metavar="NAME", help="environment variable with the key")
        group.add_argument(f"--{side}-at-once", type=int, default=1, help="requests at once (default 1)")
        group.add_argument(f"--{side}-requests-per-s", type=float, help="at most so many")
        group.add_argument(f"--{side}-option", action="append", default=[], metavar="NAME=JSON", help="field of every request")
        group.add_argument(f"--{side}-input-price", type=float, help="of a million prompt tokens")
        group.add_argument(f"--{side}-output-price", type=float, help="of a million tokens of answers")
    parser.add_argument("--tasks", nargs="+", choices=get_args(TaskName), default=list(get_args(TaskName)))
    parser.add_argument("--tier", choices=get_args(Tier), default="own", help="own: a dozen items each; fast: 150; full: all")
    parser.add_argument("--items", type=int, help="only the first so many of each task")
    parser.add_argument("--max-tokens", type=int, default=1024, help="budget of an answer (default 1024)")
    parser.add_argument("--margin", type=float, default=0.05, help="loss that would matter, fixed beforehand (default 0.05)")
    parser.add_argument("--data", type=Path, default=Path("build/quality-data"), help="folder with the public sets")
    parser.add_argument("--download", action="store_true", help="bring sets that are not there from their public origin")
    parser.add_argument("--out", type=Path, required=True, help="folder for replies and tables")
    parser.add_argument("--resume", action="store_true", help="go on with the replies in the folder")
    parser.add_argument("--seed", type=seed_option, default=0, help="of the order; also sent to the servers")
    parser.add_argument("--same", action="store_true", help="A and B are the same system: what differs is noise")
    parser.add_argument("--agreement", action="store_true", help="compare token by token, too: two vLLM servers of one model")
    parser.add_argument("--currency", default="USD")
    parser.add_argument("--confinement", choices=get_args(Confinement), default="namespaces", help="of programs in answers")
    return parser


def main(argv: Sequence[str]) -> int | str:
    """Compare two endpoints; returns 0, or a message that says why it could not be done."""
    options = _parser().parse_args(argv)
    try:
        tables = compare(options)
    except (QualityError, SpecError, OSError) as error:
        return f"spillway: {error}"
    except KeyboardInterrupt:
        return f"spillway: stopped; the replies are in {options.out}, and --resume asks what has none yet"
    print(summary(tables))
    return 0
