"""How long reading logs and replaying developers take on this machine, and how the replay agrees with the closed form.

    python benchmarks/seats.py logs                                    200 MB of transcripts
    python benchmarks/seats.py replay TRACE --developers 100000        ... over a year of working hours, pooled

TRACE: a Parquet table of requests, see spillway.seats.trace. A run stops after --limit seconds and says how far it came.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from spillway.seats import demand
from spillway.seats.logs import read_logs
from spillway.seats.overload import clock_overload, experienced_overload
from spillway.seats.replay import ring
from spillway.seats.routing import ROUTINGS
from spillway.seats.simulation import Setting, simulate
from spillway.seats.trace import read_trace

Q, STREAMS = 0.071, 4


def bench_logs(megabytes: int, workers: int) -> None:
    """Transcripts of 4 kB prompts and answers, in files of 10 MB."""
    filler = "x" * 4000
    with tempfile.TemporaryDirectory() as folder:
        for file in range(megabytes // 10):
            with (Path(folder) / f"{file}.jsonl").open("w") as log:
                for turn in range(1220):
                    at = f"2026-03-02T{turn // 60 % 24:02d}:{turn % 60:02d}"
                    place = {"sessionId": str(file)}
                    prompt = {"type": "user", "timestamp": f"{at}:00Z", "message": {"content": filler}}
                    usage = {"input_tokens": 1000, "output_tokens": 1000}
                    answer = {"id": f"{file}-{turn}", "usage": usage, "content": [{"type": "text", "text": filler}]}
                    reply = {"type": "assistant", "timestamp": f"{at}:09Z", "message": answer}
                    log.write("".join(json.dumps(record | place) + "\n" for record in (prompt, reply)))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        start = time.perf_counter()
        reading = read_logs(Path(folder), workers=workers)
        wall_s = time.perf_counter() - start
    print(
        f"{size / 1e6:.0f} MB, {len(reading.calls):,} responses, {workers} workers: "
        f"{wall_s:.1f} s, {size / 1e6 / wall_s:.0f} MB/s"
    )
    print(f"largest memory of a process: {_peak_mib():.0f} MiB")


def bench_replay(options: argparse.Namespace) -> None:
    """Teams of --team developers over --hours each, until all --developers are done or the limit is reached."""
    source = ring(read_trace(options.trace), Q, 1)
    setting = Setting(options.team, options.servers, STREAMS, options.routing, options.window * 3600)
    windows = round(options.developers / options.team * options.hours / options.window)
    step = max(1, windows // 50)
    total, done = None, 0
    start = time.perf_counter()
    while done < windows and time.perf_counter() - start < options.limit:
        count = min(step, windows - done)
        outcome = simulate(source, setting, count, done + 1, options.workers)
        total = outcome if total is None else total + outcome
        done += count
    wall_s = time.perf_counter() - start
    assert total is not None
    hours = total.developer_s / 3600
    print(f"{options.routing}, teams of {options.team} on {options.servers} servers, windows of {options.window:g} h:")
    print(f"  {hours:,.0f} of {options.developers * options.hours:,.0f} developer-hours, {total.turns:,} turns, "
          f"{options.workers} workers: {wall_s:.0f} s, {total.turns / wall_s / 1e6:.1f} million turns/s")  # fmt: skip
    exact = demand.independent(options.team, Q)
    for name, criterion in (("clock", clock_overload), ("experienced", experienced_overload)):
        text = f"  {name} overload {criterion(total.busy, setting.limit):.6f}"
        print(text + (f", closed form {criterion(exact, setting.limit):.6f}" if options.routing == "pooled" else ""))
    print(f"  {int(total.episodes.sum()):,} episodes; largest memory of a process: {_peak_mib():.0f} MiB")


def _peak_mib() -> float:
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    commands = parser.add_subparsers(dest="what", required=True)
    logs = commands.add_parser("logs")
    logs.add_argument("--megabytes", type=int, default=200)
    replay = commands.add_parser("replay")
    replay.add_argument("trace", type=Path)
    replay.add_argument("--developers", type=int, default=100_000)
    replay.add_argument("--hours", type=float, default=2000.0, help="a year: 250 days of 8 h")
    replay.add_argument("--window", type=float, default=8.0)
    replay.add_argument("--team", type=int, default=250)
    replay.add_argument("--servers", type=int, default=7)
    replay.add_argument("--routing", choices=list(ROUTINGS), default="pooled")
    replay.add_argument("--limit", type=float, default=600.0)
    options = parser.parse_args()
    bench_logs(options.megabytes, options.workers) if options.what == "logs" else bench_replay(options)


if __name__ == "__main__":
    main()
