"""Where reads of experts went during a cell, and what moved meanwhile, from the journals of a server that follows traffic."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from spillway.placement.journal import Record, SwapRecord, TrafficRecord
from spillway.placement.plan import Plan
from spillway.placement.proof import RankProof, require_journals


def residency(
    plan: Plan | None, proofs: Sequence[RankProof], folder: Path, started_at: str
) -> tuple[list[dict[str, Any]], str | None]:
    """Rows of the table `residency` since a cell's `started_at`, none where experts do not move; and the cell's mark if they
    should have moved and stopped, on any rank, be it before the cell.

    Raises ProofError unless the journals of all ranks agree with the plan, with what was read back, and with each other.
    """
    if plan is None or not proofs or proofs[0].following is None:
        return [], None
    journals = require_journals(plan, proofs, folder)
    found = rows(journals.records, datetime.fromisoformat(started_at).timestamp())
    return found, None if journals.stopped is None else f"following_stopped: {journals.stopped}"


def rows(records: Sequence[Record], start_unix_s: float) -> list[dict[str, Any]]:
    """One row for each record of traffic after the start, with the swaps that ended since the one before."""
    found: list[dict[str, Any]] = []
    swaps: list[SwapRecord] = []
    for record in records:
        if record.t_s < start_unix_s:
            continue
        if isinstance(record, SwapRecord):
            swaps.append(record)
        elif isinstance(record, TrafficRecord):
            found.append(
                {
                    "t_s": record.t_s - start_unix_s,
                    "reads": record.reads,
                    "host_share_fraction": record.host_reads / record.reads if record.reads else None,
                    "swaps": sum(swap.outcome == "done" for swap in swaps),
                    "failed_swaps": sum(swap.outcome != "done" for swap in swaps),
                    "moved_bytes": sum(swap.bytes for swap in swaps),
                    "paused_s": sum(swap.map_s for swap in swaps),
                }
            )
            swaps = []
    return found
