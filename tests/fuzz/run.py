"""Fuzz the readers: `python tests/fuzz/run.py [--seconds 600] [--seed N] [--jobs N] [READER ...]`.

Every reader of a file, a stream or a reply gets input made out of real samples (mutations.py) for so many seconds. It may
answer with a value or with its own error. Anything else (another exception, more than 5 s, half a gigabyte, a crash of the
process) is a finding: it is made small and written to tests/fuzz/crashes/, whose files test_fuzz.py replays for ever.
Ends with status 1 if there are findings.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "workflow"))

from readers import READERS, Reader
from search import HANG_S, Finding, Result, keep, search, written

MEMORY_BYTES = 6 << 30
"""Address space of a searching process; a reader that wants more gets a MemoryError, which is a finding."""
SILENCE_S = 4 * HANG_S + 40
"""A process that starts no new input for so long hangs outside Python, where no alarm reaches it."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the readers; findings are kept in tests/fuzz/crashes/.")
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"all if none is named; there are: {', '.join(READERS)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each reader")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed makes the same inputs")
    parser.add_argument("--jobs", type=int, default=1, help="readers at the same time")
    options = parser.parse_args()
    if unknown := sorted(set(options.readers) - set(READERS)):
        parser.error(f"no reader {unknown[0]!r}; there are: {', '.join(READERS)}")
    chosen = [READERS[name] for name in options.readers or READERS]
    print(f"seed {options.seed}, {options.seconds:g} s each")
    print(f"{'reader':<20} {'seconds':>8} {'inputs':>9} {'read':>9} {'refused':>9}  findings")
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda reader: fuzz(reader, options.seconds, options.seed), chosen))
    for result in results:
        for kind, trace in result.findings.items():
            print(f"\n{result.reader}: {kind}\n{trace}")
    return 1 if any(result.findings for result in results) else 0


def fuzz(reader: Reader, seconds: float, seed: int) -> Result:
    """Search in a process of its own, started again after each input that ends it."""
    total = Result(reader.name, seed)
    until_s = time.monotonic() + seconds
    round_ = 0
    while (left_s := until_s - time.monotonic()) > 0 and round_ < 20:
        scratch = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        try:
            _add(total, _round(reader, left_s, seed + round_, scratch))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        round_ += 1
    print(
        f"{total.reader:<20} {total.seconds:8.0f} {total.inputs:9} {total.answers:9} {total.refused:9}  "
        f"{', '.join(total.findings) or 'none'}",
        flush=True,
    )
    return total


def _add(total: Result, part: Result) -> None:
    total.seconds += part.seconds
    total.inputs += part.inputs
    total.answers += part.answers
    total.refused += part.refused
    total.findings |= part.findings


def _round(reader: Reader, seconds: float, seed: int, scratch: Path) -> Result:
    current, report, failed = scratch / "current", scratch / "report", scratch / "failed"
    (scratch / "files").mkdir()
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(reader, seconds, seed, scratch / "files", current, report, failed)
    )
    started = time.monotonic()
    process.start()
    how = _watched(process, current)
    if failed.exists():
        raise RuntimeError(f"the search itself failed on {reader.name}:\n{failed.read_text()}")
    if report.exists():
        return Result(**json.loads(report.read_text()))
    content = current.read_bytes() if current.exists() else b""
    finding = Finding(how, f"{len(content)} bytes, kept as they were")
    keep(reader, content, finding)
    return Result(reader.name, seed, seconds=time.monotonic() - started, findings={how: finding.trace})


def _watched(process: BaseProcess, current: Path) -> str:
    """Wait for the process; returns how it ended."""
    last_s = time.time()
    while process.exitcode is None:
        process.join(0.5)
        if current.exists():
            last_s = max(last_s, current.stat().st_mtime)
        if time.time() - last_s > SILENCE_S:
            process.kill()
            process.join()
            return "hang outside Python"
    return f"process ended with {process.exitcode}"


def _child(reader: Reader, seconds: float, seed: int, scratch: Path, current: Path, report: Path, failed: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    try:
        report.write_text(written(search(reader, seconds, seed, scratch, current)))
    except Exception:  # noqa: BLE001  of the search itself: no finding, so it must not look like one
        failed.write_text(traceback.format_exc())


if __name__ == "__main__":
    sys.exit(main())
