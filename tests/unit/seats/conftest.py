"""Logs made on the spot, and recorded sessions where there are some."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from spillway.seats.trace import read_trace

ROOT = Path(__file__).parents[3]
FIGURES = ROOT / "data" / "published" / "figures.csv"


@pytest.fixture(scope="session")
def trace():
    """Recorded agent sessions from the folder that SPILLWAY_TRIAL_DATA names."""
    folder = os.environ.get("SPILLWAY_TRIAL_DATA")
    if not folder:
        pytest.skip("SPILLWAY_TRIAL_DATA is not set: no recorded sessions (agent_sessions.parquet)")
    return read_trace(Path(folder) / "agent_sessions.parquet")


@pytest.fixture
def figures():
    return pd.read_csv(FIGURES)


class Transcript:
    """Writes a Claude Code transcript record by record; times are HH:MM:SS[.mmm] on 2 March 2026, UTC."""

    def __init__(self, path, session="s1", day="2026-03-02"):
        self.path, self.session, self.day, self.count = path, session, day, 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def line(self, record):
        with self.path.open("a", encoding="utf-8") as file:
            file.write((record if isinstance(record, str) else json.dumps(record)) + "\n")

    def record(self, kind, at, **more):
        self.count += 1
        uuid = f"{self.path.stem}-{self.count}"
        self.line({"type": kind, "timestamp": f"{self.day}T{at}Z", "sessionId": self.session, "uuid": uuid} | more)
        return uuid

    def user(self, at, **more):
        return self.record("user", at, message={"role": "user", "content": "what the user said"}, **more)

    def assistant(self, at, id="m1", output=50, request="r1", content=(), usage=None, model="model-1", **more):
        message = {
            "id": id, "role": "assistant", "model": model, "content": list(content),
            "usage": usage if usage is not None else
            {"input_tokens": 4, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 100, "output_tokens": output},
        }  # fmt: skip
        if id is None:
            del message["id"]
        return self.record("assistant", at, message=message, **({"requestId": request} if request else {}), **more)


@pytest.fixture
def transcript(tmp_path):
    """A function that starts a transcript below the test's log folder."""
    return lambda name="projects/p/s1.jsonl", **options: Transcript(tmp_path / "logs" / name, **options)


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"
