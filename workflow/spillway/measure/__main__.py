"""Run one experiment on one host, or all of them. The only command that starts a server.

    python -m spillway.measure e13_agents --host cpu

A run that was interrupted goes on at its next cell; with --new, or SPILLWAY_RESUME=never, it is measured anew.
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from spillway.engine.errors import ServerError
from spillway.engine.host import EnvironmentNotRead
from spillway.fit.weights import FitError
from spillway.measure.campaign import measure_all
from spillway.measure.dry_run import commands
from spillway.measure.errors import MeasureError
from spillway.measure.experiment import measure
from spillway.measure.remedy import explained
from spillway.placement.proof import ProofError
from spillway.record.parquet import RecordError
from spillway.seats.errors import SeatsError
from spillway.spec.experiment import names
from spillway.spec.read import SpecError


def _stop_with(parent: int) -> None:
    """End this process as SIGTERM does once its parent is gone: Snakemake, when killed, takes nobody along."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _log(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        with open(os.devnull, "w") as file:
            yield file
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            yield file


FAULTS = (SpecError, MeasureError, ServerError, ProofError, RecordError, FitError, SeatsError, EnvironmentNotRead, OSError)


def _dry_run(options: argparse.Namespace) -> None:
    try:
        for name in names(options.root) if options.all else [options.experiment]:
            print(commands(options.root, name, options.host, options.model))
    except FAULTS as error:
        sys.exit(f"spillway: {explained(error)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("experiment", nargs="?", help="name of a file in experiments/, without .yaml")
    parser.add_argument("--all", action="store_true", help="every experiment, one after the other")
    parser.add_argument("--host", required=True, help="name of a file in experiments/hosts/, without .yaml")
    parser.add_argument("--root", type=Path, default=Path("."))
    parser.add_argument("--stop-with-parent", action="store_true", help="stop when the process that started this one ends")
    parser.add_argument("--new", action="store_true", help="measure anew where an interrupted run could go on")
    parser.add_argument("--dry-run", action="store_true", help="print the launch commands, on any host, and start nothing")
    parser.add_argument("--model", help="with --dry-run: file in experiments/models/ to serve, without .yaml")
    parser.add_argument("--log", type=Path, help="file for the progress lines")
    options = parser.parse_args()
    if bool(options.experiment) == options.all:
        parser.error("give one experiment, or --all")
    if options.model and not options.dry_run:
        parser.error("--model goes with --dry-run; what is measured stands in the experiment's file")
    if options.dry_run:
        _dry_run(options)
        return
    if options.stop_with_parent:
        threading.Thread(target=_stop_with, args=(os.getppid(),), daemon=True).start()
    try:
        with _log(options.log) as log:
            try:
                if options.all:
                    measure_all(options.root, options.host, log, anew=options.new)
                else:
                    measure(options.root, options.experiment, options.host, log, anew=options.new)
            except FAULTS as error:
                with contextlib.suppress(OSError):  # the log may lie on the disk that is full
                    print(explained(error), file=log, flush=True)
                raise
    except FAULTS as error:
        sys.exit(f"spillway: {explained(error)}")


if __name__ == "__main__":
    main()
