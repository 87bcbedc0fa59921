"""Looks for input that a reader answers with anything but its own errors, and makes what it finds small."""

import hashlib
import json
import random
import re
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from mutations import mutated
from readers import Reader

HANG_S = 5.0
"""Processor time for one input: what a busy machine adds does not count. Who waits for ever is noticed from outside."""
GROWTH_BYTES = 512 << 20
"""A single input may not make the process grow by more than this."""
MESSAGE_CHARS = 20_000
CORPUS, KEPT_BYTES = 2000, 1 << 15
MINIMISE_S = 20.0


class Hang(BaseException):
    """One input took more than HANG_S; not an Exception, so that no reader takes it for a fault of its input."""


@dataclass(frozen=True)
class Finding:
    """What a reader did that it must not do. `kind` tells findings apart: the exception and where it was raised."""

    kind: str
    trace: str


@dataclass
class Result:
    """How one search went."""

    reader: str
    seed: int
    seconds: float = 0.0
    inputs: int = 0
    answers: int = 0
    refused: int = 0
    findings: dict[str, str] = field(default_factory=dict)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(reader: Reader, content: bytes, scratch: Path, hang_s: float = HANG_S) -> Finding | str:
    """What the reader makes of the content: a finding, else the outcome in a few words (`read`, or its error without data)."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with _limited(hang_s):
            reader.read(content, scratch)
        outcome = "read"
    except reader.errors as error:
        message = str(error)
        if not message or len(message) > MESSAGE_CHARS:
            return Finding(f"message of {type(error).__name__}", f"a message of {len(message)} characters: {message[:300]}")
        outcome = re.sub(r"'[^']*'|\"[^\"]*\"|/\S+|\d+", "_", f"{type(error).__name__}: {message}")[:120]
    except Hang:
        return Finding("hang " + _place(), traceback.format_exc(limit=-8))
    except (Exception, RecursionError) as error:  # noqa: BLE001  any other exception is what is looked for
        return Finding(f"{type(error).__name__} {_place()}", traceback.format_exc(limit=-12)[-4000:])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return Finding("memory", f"grew by {grown >> 20} MiB on {len(content)} bytes") if grown > GROWTH_BYTES else outcome


def _place() -> str:
    """The innermost function of the product in the exception at hand."""
    import sys

    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [frame for frame in frames if "/spillway/" in frame.filename]
    if not ours:
        return "outside"
    return f"{Path(ours[-1].filename).name}.{ours[-1].name}"


def search(
    reader: Reader, seconds: float, seed: int, scratch: Path, current: Path | None, most: int | None = None, kept: bool = True
) -> Result:
    """Mutate and read for so long, or `most` inputs. `current` gets each input before it is read, for whoever watches.

    `kept`: findings are made small and written to CRASHES.

    Some that were read, and those whose error is new, join the samples, so that later ones go deeper.
    """
    samples = reader.samples()
    readable, refused, outcomes, result = list(samples), [*samples, *reader.odd()], set(), Result(reader.name, seed)
    started = time.monotonic()
    chance = random.Random(f"{seed}/{reader.name}")
    for content in samples + reader.odd():
        outcome = attempt(reader, content, scratch)
        if isinstance(outcome, Finding):
            result.findings[outcome.kind] = outcome.trace
            if kept:
                keep(reader, content, outcome)
        elif outcome != "read" and content in samples:
            result.findings[f"sample refused: {outcome}"] = repr(content[:200])
    while time.monotonic() - started < seconds and (most is None or result.inputs < most):
        corpus = readable if chance.random() < 0.75 else refused
        content = mutated(chance, chance.choice(corpus), corpus, reader.form)
        if current is not None:
            current.write_bytes(content)
        outcome = attempt(reader, content, scratch)
        result.inputs += 1
        if isinstance(outcome, Finding):
            if outcome.kind not in result.findings and len(result.findings) < 40:
                result.findings[outcome.kind] = outcome.trace
                if kept:
                    keep(reader, minimised(reader, content, outcome.kind, scratch), outcome)
            continue
        result.answers += outcome == "read"
        result.refused += outcome != "read"
        if len(content) > KEPT_BYTES:
            continue
        if outcome == "read" and len(readable) < CORPUS and chance.random() < 0.02:
            readable.append(content)
        elif outcome not in outcomes and outcome != "read" and len(refused) < CORPUS:
            outcomes.add(outcome)
            refused.append(content)
    result.seconds = time.monotonic() - started
    return result


def minimised(reader: Reader, content: bytes, kind: str, scratch: Path) -> bytes:
    """The content with as many pieces taken out as the finding allows, within MINIMISE_S."""

    def still(candidate: bytes) -> bool:
        outcome = attempt(reader, candidate, scratch)
        return isinstance(outcome, Finding) and outcome.kind == kind

    return _shrunk(content, still, time.monotonic() + MINIMISE_S)


def _shrunk(content: bytes, still: Callable[[bytes], bool], until_s: float) -> bytes:
    size = max(1, len(content) // 2)
    while True:
        at, shorter = 0, False
        while at < len(content):
            if time.monotonic() > until_s:
                return content
            candidate = content[:at] + content[at + size :]
            if still(candidate):
                content, shorter = candidate, True
            else:
                at += size
        if size == 1 and not shorter:
            return content
        size = max(1, size // 2) if not shorter or size > 1 else 1


CRASHES = Path(__file__).parent / "crashes"


def keep(reader: Reader, content: bytes, finding: Finding) -> Path:
    """Write a finding's input where the tests replay it for ever."""
    folder = CRASHES / reader.name
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^A-Za-z0-9]+", "-", finding.kind).strip("-").lower()[:60]
    path = folder / f"{slug}-{hashlib.sha256(content).hexdigest()[:8]}"
    path.write_bytes(content)
    return path


def written(result: Result) -> str:
    return json.dumps(asdict(result))
