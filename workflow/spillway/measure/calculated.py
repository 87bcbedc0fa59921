"""Experiments that start no server: how busy a developer's stream is, and how many developers that lets a server hold."""

import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from spillway.engine import host as machine
from spillway.measure.run import Run, Tables
from spillway.record import manifest, parquet
from spillway.seats.case import assumed_q_draws, published_case, published_values
from spillway.seats.experiments import activity_tables, seat_tables
from spillway.seats.trace import read_trace
from spillway.spec.experiment import Calculated

PUBLISHED = "published/figures.csv"


def calculate(run: Run, on: Calculated, tables: Tables, origin: dict[str, Any]) -> None:
    """Fill `tables` from the published figures, which the manifest must vouch for, and from a trace if there is one.

    Raises RecordError for the published figures, SeatsError for a trace that is not one.
    """
    data = run.root / manifest.DATA
    figures = parquet.read(manifest.verify(data, PUBLISHED, manifest.read_manifest(data)))
    q = float(published_values(figures)["usage.q"]) / 100
    case = published_case(figures, *assumed_q_draws(q, on.q_days, on.q_day_cv))
    trace = _trace(run, on)
    origin |= {
        "model": "none",
        "engine": "none",
        "environment_hash": machine.environment_hash(sys.executable, os.environ),
        "published_sha256": parquet.sha256(data / PUBLISHED),
    }
    if run.asked.experiment.measures == "activity":
        tables.update(activity_tables(case, figures, trace, None, on.seed))
    else:
        tables.update(seat_tables(case, figures, trace, on.seed))


def _trace(run: Run, on: Calculated) -> pd.DataFrame | None:
    path = os.path.expandvars(on.trace or "$")
    if "$" in path:
        run.say("no trace of recorded sessions: calculated from the published profile alone")
        return None
    return read_trace(Path(path))
