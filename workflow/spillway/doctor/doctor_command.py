"""`spillway doctor`: check a host before money is spent on measuring there."""

import argparse
from pathlib import Path

from spillway.doctor.engine_checks import engine_checks
from spillway.doctor.facts import gather
from spillway.doctor.finding import as_json, as_text, healthy
from spillway.doctor.gpu_checks import gpu_checks
from spillway.doctor.host_checks import host_checks
from spillway.spec.host import Host
from spillway.spec.read import SpecError, read


def main(argv: list[str]) -> int | str:
    """Check and print; returns 0, or 1 if a check failed, or a message if the host file is wrong."""
    parser = argparse.ArgumentParser(
        prog="spillway doctor",
        description="Check this machine before measuring on it. Each line is ok, a warning (it can spoil a measurement) or a "
        "failure (it stops one), with a remedy; docs/doctor.md explains them. Exit status 1 if a check failed.",
    )
    parser.add_argument("--host", help="name of a file in experiments/hosts/, without .yaml: what the machine should be")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--no-load", action="store_true", help="do not copy to the GPUs to see their links under load")
    parser.add_argument("--root", type=Path, default=Path("."), help="the project")
    options = parser.parse_args(argv)
    try:
        host = read(Host, options.root / "experiments" / "hosts" / f"{options.host}.yaml") if options.host else None
    except SpecError as error:
        return f"spillway: {error}"
    facts = gather(options.root, host, links=not options.no_load)
    findings = [*gpu_checks(facts, host), *engine_checks(facts), *host_checks(facts, host)]
    print(as_json(options.host, findings) if options.json else as_text(findings))
    return 0 if healthy(findings) else 1
