"""`spillway publish RUN_FOLDER`: publish the tables of a run again, or of one brought from another machine."""

import argparse
from pathlib import Path

from spillway.record.manifest import DATA, publish
from spillway.record.parquet import RecordError


def main(argv: list[str]) -> int | str:
    """Publish a run folder; returns 0, or a message that says what is wrong with it."""
    parser = argparse.ArgumentParser(prog="spillway publish", description="Publish the tables of a run folder into data/.")
    parser.add_argument("run", type=Path, help="folder that holds <experiment>.<table>.parquet")
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args(argv)
    try:
        published = publish(options.run, options.data)
    except RecordError as error:
        return f"spillway: {error}"
    print(f"published {len(published)} tables in {published[0].parent}")
    return 0
