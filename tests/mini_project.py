"""A small project with data made up here: an experiment that host `cpu` runs, and one that only `h200` does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spillway.record.manifest import publish
from spillway.spec.experiment import Resolved, resolve
from tests.conftest import ROOT

REASON = "Its GPUs are what the experiment is about, and this host has none."
EXPERIMENT = """question: Does {name} work?
measures: seats
hosts:
  {here}: {{seed: 1, q_days: 5, q_day_cv: 0.3}}
  {elsewhere}: {{not_run: "{reason}"}}
"""
NUMBERS = """
rate: {file: e1_here.cells, where: {outcome: ok}, column: rate_tok_per_s, statistic: median, unit: token/s, decimals: 1}
rate.by: {file: e1_here.cells, where: {outcome: ok}, by: [arm, streams], column: rate_tok_per_s, statistic: mean, unit: token/s}
rate.least: {file: e1_here.cells, where: {outcome: ok, streams: "@min"}, column: ttft_s, statistic: max, unit: ms, decimals: 1}
requests: {file: e1_here.cells, statistic: count, only_in: article}
ok_share: {ratio: [ok, requests], unit: "%", decimals: 1}
ok: {file: e1_here.cells, where: {outcome: ok}, statistic: count}
outcomes: {file: e1_here.cells, column: outcome, statistic: distinct, text: true}
engine: {file: e1_here.cells, provenance: engine, text: true}
gone: {file: e2_gpu.cells, column: rate_tok_per_s, statistic: median, unit: token/s}
gone.share: {ratio: [gone, gone.least], unit: x}
gone.least: {file: e2_gpu.cells, column: rate_tok_per_s, statistic: min, unit: token/s}
there: {file: e2_gpu.cells, host: h200, column: rate_tok_per_s, statistic: max, unit: token/s}
"""
TEMPLATE = r"""\section{Speed}
\caption{Medians, and the 5th percentile.}
\VAR{ u('rate') }: \BLOCK{ for streams in parts('rate.by', 1) }\VAR{ n('rate.by', '', streams) } \BLOCK{ endfor }
\VAR{ u('rate.least') } \VAR{ u('ok_share') } \VAR{ n('outcomes') } \VAR{ n('engine') }
\BLOCK{ if measured('e2_gpu') }\VAR{ u('gone') } \VAR{ n('gone.share') }\BLOCK{ else }\VAR{ why_not('e2_gpu') }\BLOCK{ endif }
\BLOCK{ if measured('e2_gpu', host='h200') }\VAR{ u('there') }\BLOCK{ endif } \VAR{ commit }
"""
FIGURE = """def draw_rates(axes, rows):
    axes.plot(rows["streams"], rows["rate_tok_per_s"], "o-")
    axes.set_xlabel("streams at work")
"""


def cells() -> pd.DataFrame:
    """Two boots, two levels of streams, four cells each; one failed."""
    rows = [
        {"boot": boot, "streams": streams, "outcome": "ok", "rate_tok_per_s": 100.0 / streams + 2 * boot + request,
         "ttft_s": 0.01 * streams + 0.001 * request}
        for boot in range(2) for streams in (1, 4) for request in range(4)
    ]  # fmt: skip
    rows[5]["outcome"] = "timeout"
    return pd.DataFrame(rows)


def make(root: Path) -> None:
    """Write the project: experiments, hosts, numbers, a paper, the code of a figure, and recorded data of host cpu."""
    (root / "paper").mkdir(parents=True)
    (root / "workflow/spillway/paper").mkdir(parents=True)
    (root / "workflow/config.yaml").write_text("host: cpu\n")
    (root / "paper/paper.en.tex.j2").write_text(TEMPLATE)
    (root / "paper/allowed.yaml").write_text("5th percentile: name of the statistic\n")
    (root / "workflow/spillway/paper/figures.py").write_text(FIGURE)
    shutil.copytree(ROOT / "experiments/hosts", root / "experiments/hosts")
    for name, here, elsewhere in (("e1_here", "cpu", "h200"), ("e2_gpu", "h200", "cpu")):
        text = EXPERIMENT.format(name=name, here=here, elsewhere=elsewhere, reason=REASON)
        (root / f"experiments/{name}.yaml").write_text(text)
    (root / "paper/numbers.yaml").write_text(NUMBERS)
    (root / "paper/figures.yaml").write_text("rates: {files: [e1_here.cells]}\nlinks: {files: [e2_gpu.cells]}\n")
    record(root, "e1_here", "cpu", cells=cells())


def record(root: Path, experiment: str, host: str, **tables: pd.DataFrame) -> None:
    """Publish tables as a run of an experiment would."""
    asked = resolve(root, experiment, host)
    assert isinstance(asked, Resolved)
    origin: dict[str, Any] = {
        "experiment": experiment, "host": host, "run": f"20260101T000000Z-{experiment}", "model": "tiny",
        "spec_hash": asked.hash, "engine": "vLLM 0.32.0", "environment_hash": "e" * 64, "commit": "c" * 40, "dirty": False,
        "measured_at": "2026-01-01T00:00:00+00:00", "weights": "random", "host_title": "a machine",
    }  # fmt: skip
    run = root / "runs" / experiment / host
    run.mkdir(parents=True, exist_ok=True)
    for table, rows in tables.items():
        content = pa.Table.from_pandas(rows, preserve_index=False)
        metadata = {b"spillway": json.dumps(origin, sort_keys=True).encode()}
        pq.write_table(content.replace_schema_metadata(metadata), run / f"{experiment}.{table}.parquet")
    publish(run, root / "data")


def redefine(root: Path, key: str, definition: str) -> None:
    """Add a number, or give it another definition."""
    lines = [line for line in (root / "paper/numbers.yaml").read_text().splitlines() if not line.startswith(f"{key}:")]
    (root / "paper/numbers.yaml").write_text("\n".join([*lines, f"{key}: {definition}", ""]))
