"""The command `spillway`: one subcommand for each question that a person asks outside the workflow."""

import importlib
import os
import signal
import sys

from spillway.spec.shown import printable

# subcommand -> (module whose main(argv) runs it, what it answers)
COMMANDS = {
    "load": ("spillway.load.load_command", "measure any OpenAI-compatible server with one workload"),
    "fit": ("spillway.fit.command", "what fits on a host, and the smallest plan that does"),
    "plan": ("spillway.placement.plan_command", "choose which experts live in host memory, check and show a choice"),
    "usage": ("spillway.seats.usage_command", "how busy a developer's agents are, from their logs"),
    "seats": ("spillway.seats.seats_command", "how many developers a server holds, and what it costs"),
    "doctor": ("spillway.doctor.doctor_command", "check a host before money is spent on measuring there"),
    "quality": ("spillway.quality.quality_command", "compare the answers of two OpenAI-compatible servers"),
    "publish": ("spillway.record.publish_command", "publish the tables of a run folder into data/"),
    "explain": ("spillway.paper.explain_command", "show where a number of the paper comes from"),
    "audit": ("spillway.paper.audit_command", "recompute every number and hash, and compare them with what is built"),
}


def usage() -> str:
    """The help text: every subcommand with the question that it answers."""
    lines = [f"  {name:<8} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: spillway COMMAND ...", "", *lines, "", "spillway COMMAND --help explains one."])


def main() -> None:
    """Run a subcommand; ends with status 2 and the list of subcommands if there is none of that name."""
    match sys.argv[1:]:
        case [("-h" | "--help"), *_]:
            print(usage())
        case [name, *arguments] if name in COMMANDS:
            try:
                ended = importlib.import_module(COMMANDS[name][0]).main(arguments)
                sys.stdout.flush()
            except BrokenPipeError:  # the reader, `head` for one, has seen enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
                sys.exit(1)
            except KeyboardInterrupt:
                sys.exit(128 + signal.SIGINT)
            sys.exit(printable(ended) if isinstance(ended, str) else ended)
        case [name, *_]:
            sys.exit(f"spillway: no command {name!r}\n\n{usage()}")
        case _:
            sys.exit(usage())
