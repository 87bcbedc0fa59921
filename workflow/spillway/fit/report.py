"""What `spillway fit` found, as text that a person reads and as JSON."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spillway.fit.budget import GIB, MIB, Budget, OnHost, Place
from spillway.fit.placing import Rates, Step

EXPLAINED = {
    "fits": "fits",
    "host memory": "does not fit: the host's part is larger than host memory",
    "weights": "does not fit: weights are larger than the memory, loading would run out of it",
    "no room for KV cache": "does not fit: weights and headroom leave nothing for the KV cache",
    "KV cache of one sequence": "does not fit: the KV cache could not hold one sequence",
    "KV cache of all sequences": "does not fit: the server would start, but sequences would wait for KV cache",
}

SOURCE_WIDTH, TEXT_WIDTH = 48, 120


@dataclass(frozen=True)
class Placed:
    """One placement: its name as a column title, what is on the host, and its budget."""

    name: str
    on_host: OnHost
    budget: Budget


@dataclass(frozen=True)
class Report:
    """The whole answer. `asked` is the placement that decides the exit status; `smallest` fits where `asked` does not."""

    title: str
    notes: tuple[str, ...]
    placements: tuple[Placed, ...]
    asked: Placed
    smallest: Placed | None
    steps: tuple[Step, ...]
    rows: int
    rates: Rates | None
    rates_source: str
    stored: tuple[tuple[str, int, int], ...]

    def text(self) -> str:
        """The table and the verdicts, at most 128 characters wide where sources are short."""
        parts = [self.title, "", self._table()]
        if self.stored:
            parts += ["", self._stored()]
        parts += ["", f"{self.asked.name}: {EXPLAINED[self.asked.budget.stage]}{self._margin(self.asked.budget)}"]
        parts += self._smallest()
        if self.notes:
            parts += ["", *(_wrapped(f"note: {note}") for note in self.notes)]
        return "\n".join(parts)

    def _amount(self, size: float) -> str:
        return f"{size / self._unit[1]:.2f}"

    def _amounts(self, sizes: Iterable[int]) -> list[str]:
        return [self._amount(size) for size in sizes]

    @property
    def _unit(self) -> tuple[str, int]:
        largest = max(placed.budget.total(self.asked.budget.capacity.main) for placed in self.placements)
        return ("GiB", GIB) if largest >= GIB else ("MiB", MIB)

    def _table(self) -> str:
        main: Place = self.asked.budget.capacity.main
        unit = self._unit[0]
        where = f"{unit} on each GPU" if main == "gpu" else f"{unit} of host memory"
        rows = [[where, *(placed.name for placed in self.placements), "from"]]
        for name, sizes, source in self._lines(main):
            rows.append([name, *self._amounts(sizes), source])
        budgets = [placed.budget for placed in self.placements]
        rows.append(["weights", *self._amounts(found.total(main, "weights") for found in budgets), "sum"])
        rows.append(["total", *self._amounts(found.total(main) for found in budgets), "sum"])
        rows.append(["the engine may use", *self._amounts(found.usable_bytes for found in budgets), self._capacity_source()])
        if (limit := self.asked.budget.capacity.cache_limit_bytes) is not None:
            rows.append(["its KV cache may take", *self._amounts([limit] * len(budgets)), "kv-cache-memory-bytes"])
        rows.append(["left", *self._amounts(found.spare_bytes for found in budgets), ""])
        if main == "gpu" and any(found.total("host") for found in budgets):
            rows += [[""], [f"{unit} on the host"]]
            for name, sizes, source in self._lines("host"):
                rows.append([name, *self._amounts(sizes), source])
            rows.append(["total", *self._amounts(found.total("host") for found in budgets), "sum"])
        return _with_footnotes(rows)

    def _lines(self, place: Place) -> list[tuple[str, list[int], str]]:
        """Component, its bytes in each placement, and its source."""
        sources: dict[str, str] = {}
        for placed in self.placements:
            for line in placed.budget.lines:
                if line.place == place:
                    sources.setdefault(line.component, line.source)
        found = [placed.budget.by_component(place) for placed in self.placements]
        return [(name, [sizes.get(name, 0) for sizes in found], source) for name, source in sources.items()]

    def _capacity_source(self) -> str:
        capacity = self.asked.budget.capacity
        if not capacity.gpus:
            return "host memory"
        share, memory = capacity.usable_bytes / capacity.gpu_bytes, self._amount(capacity.gpu_bytes)
        return f"{share:.2f} of {memory} {self._unit[0]}, {capacity.gpus} GPU{'s' if capacity.gpus > 1 else ''}"

    def _stored(self) -> str:
        rows = [["bytes of the checkpoint", "computed", "stored", "difference"]]
        rows += [[name, f"{computed:,}", f"{stored:,}", f"{stored - computed:+,}"] for name, computed, stored in self.stored]
        return _columns(rows)

    def _margin(self, found: Budget) -> str:
        spare, where = found.margin
        return f", {self._amount(abs(spare))} {self._unit[0]} {where} {'to spare' if spare >= 0 else 'missing'}"

    def _smallest(self) -> list[str]:
        if self.asked.budget.fits:
            return []
        if self.smallest is None:
            return [_wrapped(f"no plan makes it fit: {self._why_none()}")]
        plan, found = self.smallest.on_host, self.smallest.budget
        beside = f", beside the {' and '.join(sorted(plan.components))}" if plan.components else ""
        needs = f"{self._amount(found.total('host'))} {self._unit[0]} of host memory"
        first = f"smallest plan that fits: {plan.expert_count:,} routed experts on the host{beside}; {needs}"
        if not found.fits:
            missing, where = found.margin
            first = (
                f"no plan makes it fit: the smallest that fits the GPUs has {plan.expert_count:,} routed experts on the "
                f"host{beside} and needs {needs}; missing: {self._amount(abs(missing))} {self._unit[0]} {where}"
            )
        parts = [_wrapped(first)]
        if found.capacity.host_bytes is None:
            parts.append("whether the host has that much is not known: its file has no host_memory_gib")
        return parts + self._slowdown()

    def _slowdown(self) -> list[str]:
        if self.rates is None:
            return [f"slowdown: not predicted, {self.rates_source}"]
        rows = [["share", "all in GPU memory", "with the plan", "times slower"]]
        for step in self.steps:
            resident, overlapped, summed = (s * 1e3 for s in (step.resident_s, step.overlapped_s, step.summed_s))
            low, high = step.slowdown
            times = f"{overlapped:.2f} to {summed:.2f} ms"
            rows.append([f"{step.cold_share:.1%}", f"{resident:.2f} ms", times, f"{low:.2f} to {high:.2f}"])
        return [
            f"predicted decode step of {self.rows} token(s), weights only, by share of picks on the host;",
            _wrapped(f"  {self.rates_source}"),
            _columns(rows),
        ]

    def _why_none(self) -> str:
        found, everything = self.asked.budget, self.placements[-1]
        if not found.capacity.gpus:
            return "the host has no GPUs, so there is nothing to move from them"
        if found.spare_bytes >= 0:
            return "not memory is lacking, but what kv-cache-memory-bytes grants the KV cache"
        if not everything.on_host.expert_count:
            return "the model has no routed experts"
        names = {line.component for line in everything.budget.lines if line.kind == "weights"}
        left = {name: size for name, size in everything.budget.by_component("gpu").items() if name in names}
        largest = max(left, key=lambda name: left[name])
        return (
            f"with all routed experts on the host {self._amount(-everything.budget.spare_bytes)} {self._unit[0]} are missing "
            f"on each GPU; largest there: {largest}, {self._amount(left[largest])} {self._unit[0]} "
            f"(--on-host '{largest}' keeps it on the host)"
        )

    def json(self) -> dict[str, Any]:
        """The same as plain values; bytes are whole numbers, negative where they are missing."""
        return {
            "title": self.title,
            "fits": self.asked.budget.fits,
            "asked": self.asked.name,
            "placements": {placed.name: _placed(placed) for placed in self.placements},
            "smallest_plan": None if self.smallest is None else _placed(self.smallest),
            "decode_step": {
                "rows": self.rows,
                "rates_from": self.rates_source,
                "at": [asdict(step) | {"times_slower": list(step.slowdown)} for step in self.steps],
            },
            "checkpoint": [dict(zip(("component", "computed", "stored"), row, strict=True)) for row in self.stored],
            "notes": list(self.notes),
        }


def _wrapped(text: str) -> str:
    return textwrap.fill(text, TEXT_WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _placed(placed: Placed) -> dict[str, Any]:
    found = placed.budget
    return {
        "stage": found.stage,
        "host_experts": placed.on_host.expert_count,
        "gpus": found.capacity.gpus,
        "gpu_bytes": found.total("gpu"),
        "usable_bytes": found.usable_bytes,
        "spare_bytes": found.spare_bytes,
        "host_bytes": found.total("host"),
        "host_spare_bytes": found.host_spare_bytes,
        "lines": [asdict(line) for line in found.lines],
    }


def _with_footnotes(rows: list[list[str]]) -> str:
    """The table with long sources of its last column as numbered notes below it."""
    notes: dict[str, int] = {}
    for row in rows:
        if len(row) > 2 and len(row[-1]) > SOURCE_WIDTH:
            row[-1] = f"[{notes.setdefault(row[-1], len(notes) + 1)}]"
    return "\n".join([_columns(rows, last_is_text=True), *(_wrapped(f"[{number}] {note}") for note, number in notes.items())])


def _columns(rows: Sequence[Sequence[str]], last_is_text: bool = False) -> str:
    """Rows as aligned columns: the first to the left, numbers to the right, a last column of text to the left."""
    width = max(len(row) for row in rows)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(width)]
    left = {0, width - 1} if last_is_text else {0}
    lines = (
        "  ".join(cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row)) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
