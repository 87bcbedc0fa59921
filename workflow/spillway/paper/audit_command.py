"""`spillway audit`: recompute every number and every hash, and compare them with what is built."""

import argparse
from pathlib import Path

from spillway.paper.audit import audit
from spillway.spec.read import SpecError
from spillway.spec.settings import SETTINGS, chosen_host


def main(argv: list[str]) -> int | str:
    """Audit the build of a host; returns 0, or a message that lists every difference."""
    parser = argparse.ArgumentParser(
        prog="spillway audit",
        description="Recompute every number from the data files and every hash, and compare both with what is built.",
    )
    parser.add_argument("--host", help=f"default: the one in {SETTINGS}")
    options = parser.parse_args(argv)
    root = Path(".")
    try:
        host = chosen_host(root, options.host)
    except SpecError as error:
        return f"spillway: {error}"
    report = audit(root, host)
    print(f"data files    {report.files} listed in data/MANIFEST.csv: hash, size, rows and metadata")
    print(f"numbers       {report.numbers} of host {host}, computed anew from the data")
    for file, places in report.printed.items():
        print(f"printed       {places} in {file}")
    for note in report.notes:
        print(f"not compared  {note}")
    if report.faults:
        count = len(report.faults)
        return f"\nspillway: {count} difference{'s' if count > 1 else ''}:\n" + "\n".join(
            f"  {fault}" for fault in report.faults
        )
    print("no difference")
    return 0
