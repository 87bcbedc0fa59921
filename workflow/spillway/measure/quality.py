"""Experiments that compare answers: launch each system in turn, ask it everything, let it read the texts, then compare.

Without tasks nothing is asked, and there are no tables of answers: the systems read the texts alone.

One server is up at a time, so two launched systems are asked one after the other; remote ones are asked while the first of
these is up, in one shuffled order with it. Replies and readings are on disk in the run's folder as they come: a run that was
interrupted asks only what has no reply yet.
"""

import asyncio
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spillway.engine.processes import process_memory
from spillway.engine.server import Server, serve
from spillway.load.progress import Progress
from spillway.measure.arms import Way, arm_row, launch, proof_columns, proved
from spillway.measure.checkpoint import Ledger, Step
from spillway.measure.errors import MeasureError
from spillway.measure.run import Run
from spillway.quality import ask
from spillway.quality.agreement import Position, Reading
from spillway.quality.ask import Endpoint, Question
from spillway.quality.comparison import Tables, agreement_tables, answer_tables, estimate, load, questions, system_row
from spillway.quality.confined import no_namespaces
from spillway.quality.errors import QualityError
from spillway.quality.items import texts
from spillway.quality.published import published_rows
from spillway.quality.replies import Journal
from spillway.quality.teacher import read_texts
from spillway.record import manifest, parquet
from spillway.spec.experiment import launched
from spillway.spec.quality import Quality, Remote, System

PUBLISHED = "published/figures.csv"
READINGS = "readings"


def measure_quality(run: Run, on: Quality, ways: Sequence[Way], ledger: Ledger) -> None:
    """Ask what has no reply yet and hand all rows to `ledger`; raises MeasureError, ServerError."""
    try:
        _measure(run, on, ways, ledger)
    except QualityError as error:
        raise MeasureError(f"experiments/{run.asked.name}.yaml: {error}") from None


def _measure(run: Run, on: Quality, ways: Sequence[Way], ledger: Ledger) -> None:
    items = load(on.tasks, _data(on))
    if "humaneval" in on.tasks and on.confinement == "namespaces" and (reason := no_namespaces()):
        raise QualityError(reason)  # before hours of asking
    asked = questions(on.tasks, items)
    remotes = {name: _remote(name, system, system.remote) for name, system in on.systems.items() if system.remote}
    for name, endpoint in remotes.items():
        asyncio.run(ask.check(endpoint))
        if (most := estimate(asked, on.systems[name].remote)) is not None:
            run.say(f"{name}: {len(asked)} questions, at most {most:.2f} {_currency(on, name)}")
    endpoints: dict[str, Endpoint] = dict(remotes)
    secrets = [key for endpoint in remotes.values() if (key := endpoint.key())]
    with Journal(run.folder, resume=True, secrets=secrets) as journal:
        for number, way in enumerate(ways):
            together = list(remotes.values()) if number == 0 else []
            endpoints[way.name] = _local(on, way, "")
            if not _finished(run, on, [endpoints[way.name], *together], asked, journal, ledger, way):
                endpoints[way.name] = _serve(run, on, way, together, asked, journal, ledger)
        replies = journal.replies
    tables: Tables = {}
    if on.tasks:
        tables |= answer_tables(on.tasks, items, list(on.systems), on.comparisons, replies, on.confinement, run.say)
        startup = {row["arm"]: row["startup_s"] for row in ledger.tables().get("boots", [])}
        tables["quality_systems"] = [
            system_row(
                endpoints[name],
                [reply for reply in replies.values() if reply.system == name],
                prices=system.remote,
                estimated=estimate(asked, system.remote),
                arguments=json.dumps(system.arguments, sort_keys=True),
                startup_s=startup.get(name),
            )
            for name, system in on.systems.items()
        ]
    if on.agreement is not None:
        tables |= agreement_tables(on.comparisons, {way.name: _read_back(run, way) for way in ways})
    for table, rows in tables.items():
        ledger.add(table, [{"run": run.id} | row for row in rows])
    ledger.add("quality_published", _published(run, ledger))


def _data(on: Quality) -> Path | None:
    """The folder of the public sets; raises QualityError if its variable is not set where it is needed."""
    if on.data is None:
        return None
    folder = os.path.expandvars(on.data)
    if "$" in folder and any(how.tier != "own" for how in on.tasks.values()):
        raise QualityError(
            f"data: found {on.data!r}, and that variable is not set; expected the folder with the public sets in it"
        )
    return Path(folder)


def _remote(name: str, system: System, remote: Remote) -> Endpoint:
    return Endpoint(
        name,
        os.path.expandvars(remote.url),
        remote.model,
        remote.key_variable,
        at_once=system.at_once,
        requests_per_s=remote.requests_per_s,
        options=system.options,
    )


def _local(on: Quality, way: Way, url: str) -> Endpoint:
    system = on.systems[way.name]
    return Endpoint(way.name, url, way.model_name, at_once=system.at_once, options=system.options)


def _currency(on: Quality, name: str) -> str:
    remote = on.systems[name].remote
    return remote.currency if remote is not None else ""


def _finished(
    run: Run, on: Quality, endpoints: Sequence[Endpoint], asked: Sequence[Question], journal: Journal, ledger: Ledger, way: Way
) -> bool:
    """Whether nothing is left to get from a system, and from those that are asked with it."""
    answered = all(
        journal.answered(endpoint.system, question.item.task, question.item.name, question.request(endpoint, on.seed))
        for endpoint in endpoints
        for question in asked
    )
    read = on.agreement is None or _reading_file(run, way).is_file()
    return answered and read and ledger.finished(Step("start", 0, way.name))


def _serve(
    run: Run, on: Quality, way: Way, together: Sequence[Endpoint], asked: Sequence[Question], journal: Journal, ledger: Ledger
) -> Endpoint:
    """One start of one system: ready, asked, texts read."""
    step = Step("start", 0, way.name)
    ledger.begin(step)
    folder = run.new_folder(f"boot0 {way.name}")
    lengths = [len(question.item.prompt) // 2 + question.max_tokens for question in asked]
    if on.agreement is not None:
        lengths += [len(text) // 2 + on.agreement.greedy_tokens for text in texts().values()]
    start = dataclasses.replace(
        launch(run, launched(on), way, folder),
        full_batch=on.systems[way.name].at_once,
        long_prefill_tokens=min(max(256, *lengths), way.model.max_model_len - 1),
    )
    with serve(start, folder, ready_timeout_s=run.asked.host.engine.ready_timeout_s) as server:
        run.say(f"{way.name}: ready after {server.startup_s:.1f} s")
        proofs = proved(run, way, folder)
        if not ledger.finished(step):
            ledger.add("boots", [_boot_row(run, way, server, ledger)])
            if on.placed:
                served = {"outcome": "served", "startup_s": server.startup_s}
                ledger.add("arms", [arm_row(run, way, boot=0) | proof_columns(proofs) | served])
            ledger.finish(step)
        endpoint = _local(on, way, server.base_url)
        try:
            if asked:
                _ask(way.name, [endpoint, *together], asked, journal, on.seed, server)
            if on.agreement is not None and not _reading_file(run, way).is_file():
                of = on.agreement
                found = asyncio.run(read_texts(endpoint, texts(), top=of.top, greedy_tokens=of.greedy_tokens))
                _write(_reading_file(run, way), found)
                run.say(f"{way.name}: {len(found)} texts read")
        except QualityError:
            server.check_alive()  # a server that died is the reason, and its log says why
            raise
        server.check_alive()
    return endpoint


def _ask(
    name: str, endpoints: Sequence[Endpoint], asked: Sequence[Question], journal: Journal, seed: int, server: Server
) -> None:
    progress = Progress(name)
    try:
        asyncio.run(ask.ask(endpoints, asked, journal, seed=seed, alive=server.alive, progress=progress.update))
    finally:
        progress.close()


def _boot_row(run: Run, way: Way, server: Server, ledger: Ledger) -> dict[str, Any]:
    engine = f"vLLM {server.engine_version}" if server.engine_version else "vLLM, version not reported"
    if ledger.origin.setdefault("engine", engine) != engine:
        raise MeasureError(f"{way.name} is served by {engine}, others by {ledger.origin['engine']}: expected one engine")
    return {
        "run": run.id,
        "boot": 0,
        "arm": way.name,
        "startup_s": server.startup_s,
        "health_s": server.health_s,
        "process_memory_bytes": process_memory(server.pid).pss_bytes,
        "weights_bytes": server.weights_bytes,
        "kv_cache_tokens": server.kv_cache_tokens,
    }


def _reading_file(run: Run, way: Way) -> Path:
    return run.folder / READINGS / f"{way.name}.json"


def _write(path: Path, readings: dict[str, Reading]) -> None:
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({name: dataclasses.asdict(reading) for name, reading in readings.items()}))
    partial.replace(path)


def _read_back(run: Run, way: Way) -> dict[str, Reading]:
    told = json.loads(_reading_file(run, way).read_text())
    return {
        name: Reading(
            [
                Position(at["token"], at["logprob"], {int(token): logprob for token, logprob in at["top"].items()}, at["first"])
                for at in reading["positions"]
            ],
            reading["written"],
        )
        for name, reading in told.items()
    }


def _published(run: Run, ledger: Ledger) -> list[dict[str, Any]]:
    """The article's figures recomputed, from the file that the manifest vouches for."""
    data = run.root / manifest.DATA
    figures = parquet.read(manifest.verify(data, PUBLISHED, manifest.read_manifest(data)))
    ledger.origin["published_sha256"] = parquet.sha256(data / PUBLISHED)
    known = figures[figures["group"] == "quality"].set_index("id")[["value", "low", "high"]].astype(float)
    return published_rows({str(figure): dict(known.loc[figure]) for figure in known.index})
