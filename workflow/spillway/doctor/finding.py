"""What one check found: a status, what was seen, and what to do about it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warning", "failure", "not applicable"]
JSON_VERSION = 1


@dataclass(frozen=True)
class Finding:
    """One line of the doctor. `remedy` is empty exactly where there is nothing to do: `ok` and `not applicable`."""

    check: str
    status: Status
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if bool(self.remedy) != (self.status in ("warning", "failure")):
            raise ValueError(f"{self.check}: a remedy belongs to warnings and failures, and to nothing else")


def ok(check: str, found: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(check, "ok", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """A check whose finding can spoil a measurement without stopping it."""
    return Finding(check, "warning", found, remedy)


def failure(check: str, found: str, remedy: str) -> Finding:
    """A check whose finding stops a measurement or makes it worthless."""
    return Finding(check, "failure", found, remedy)


def not_applicable(check: str, why: str) -> Finding:
    """A check that this host has no use for, or that cannot be made here."""
    return Finding(check, "not applicable", why)


def healthy(findings: Sequence[Finding]) -> bool:
    """Whether no check failed; warnings do not count."""
    return all(finding.status != "failure" for finding in findings)


def as_json(host: str | None, findings: Sequence[Finding]) -> str:
    """The findings for programs; docs/doctor.md has the keys."""
    content = {
        "version": JSON_VERSION,
        "host": host,
        "healthy": healthy(findings),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def as_text(findings: Sequence[Finding]) -> str:
    """The findings for people: a line each, the remedy below it, and a count at the end."""
    marks = {"ok": "ok      ", "warning": "warning ", "failure": "FAILURE ", "not applicable": "n/a     "}
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{marks[finding.status]} {finding.check:<{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"{'':9} {'':<{width}}  -> {finding.remedy}")
    counts = {status: sum(finding.status == status for finding in findings) for status in marks}
    lines += ["", ", ".join(f"{count} {status}" for status, count in counts.items())]
    return "\n".join(lines)
