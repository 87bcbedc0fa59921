"""OpenTelemetry log events `claude_code.api_request`: one for each request, with its duration; the clean source of time.

Read as the collector's file exporter writes them (one JSON object a line with `resourceLogs`), or as one flat object a
line. An event is written when its request ends.
"""

from collections.abc import Iterator
from typing import Any

from spillway.seats.calls import Call, Reading, digest, epoch_s, tokens

REQUEST, ERROR = "api_request", "api_error"


def recognises(record: dict[str, Any]) -> bool:
    """Whether a record holds OpenTelemetry log records, or is one of a coding agent."""
    return "resourceLogs" in record or _event(record, _attributes(record)) is not None


class OtelReader:
    """Reads exported log records. `file`: a name that is unique to the file."""

    def __init__(self, reading: Reading, secret: bytes, file: str) -> None:
        self._reading, self._secret, self._file = reading, secret, file
        self._line = 0

    def add(self, record: dict[str, Any]) -> None:
        """Take one line in, which may hold many log records."""
        for entry in _entries(record) if "resourceLogs" in record else [record]:
            self._line += 1
            attributes = _attributes(entry)
            event = _event(entry, attributes)
            end_s = _time_s(entry, attributes, self._reading)
            if end_s is not None:
                self._reading.saw(end_s)
            if event == REQUEST:
                self._add_request(attributes, end_s)
            elif event == ERROR:
                self._reading.flags["api_errors"] += 1

    def close(self) -> None:
        """Nothing is held back."""

    def _add_request(self, attributes: dict[str, Any], end_s: float | None) -> None:
        flags = self._reading.flags
        duration_s = _number(attributes.get("duration_ms"))
        if end_s is None or duration_s is None:
            flags["untimed"] += 1
            return
        duration_s /= 1000
        if duration_s < 0:
            flags["negative_duration"] += 1
            duration_s = 0.0
        context = sum(
            tokens(attributes.get(name, 0), flags) for name in ("input_tokens", "cache_read_tokens", "cache_creation_tokens")
        )
        session = str(attributes.get("session.id") or self._file)
        if attributes.get("request_id"):
            key = digest(self._secret, "request", str(attributes["request_id"]))
        elif attributes.get("event.sequence") is not None:
            key = digest(self._secret, "sequence", session, str(attributes["event.sequence"]), str(end_s))
        else:
            flags["unkeyed"] += 1
            key = digest(self._secret, "line", self._file, str(self._line))
        name = digest(self._secret, session)
        self._reading.add(
            key, Call(name, name, end_s - duration_s, end_s, context, tokens(attributes.get("output_tokens"), flags))
        )


def _entries(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in _dicts(record.get("resourceLogs")):
        for scope in _dicts(resource.get("scopeLogs")):
            yield from _dicts(scope.get("logRecords"))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _attributes(entry: dict[str, Any]) -> dict[str, Any]:
    """Attributes as a plain mapping, whether they stand as a list of typed values, as a mapping, or in the entry itself."""
    attributes = entry.get("attributes")
    if isinstance(attributes, list):
        typed = {str(item.get("key")): item.get("value") for item in _dicts(attributes)}
        return {key: next(iter(value.values()), None) if isinstance(value, dict) else value for key, value in typed.items()}
    return attributes if isinstance(attributes, dict) else entry


def _event(entry: dict[str, Any], attributes: dict[str, Any]) -> str | None:
    """The event's name without the tool's prefix, if it is one of a coding agent."""
    body = entry.get("body")
    text = body.get("stringValue") if isinstance(body, dict) else body
    for name in (attributes.get("event.name"), text, entry.get("eventName")):
        if isinstance(name, str) and (name.startswith("claude_code.") or name in (REQUEST, ERROR)):
            return name.removeprefix("claude_code.")
    return None


def _time_s(entry: dict[str, Any], attributes: dict[str, Any], reading: Reading) -> float | None:
    for value in (attributes.get("event.timestamp"), entry.get("timestamp")):
        time_s = epoch_s(value, reading.flags)
        if time_s is not None:
            return time_s
    nanoseconds = _number(entry.get("timeUnixNano"))
    return nanoseconds / 1e9 if nanoseconds else None


def _number(value: Any) -> float | None:
    """A number that may stand as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if -1e20 < number < 1e20 else None
