"""Claude Code transcripts: `projects/<folder>/<session>.jsonl` and `<session>/subagents/agent-*.jsonl`.

A transcript has no request times. The gap rule: a response lasts from the record before it in the same stream (a prompt,
a tool's result, or the response before) to the last of its own blocks. Waiting for a tool or a permission lies between a
response and the next result, so it does not count.
"""

import json
from typing import Any

from spillway.seats.calls import CHARACTERS_PER_TOKEN, Call, Reading, digest, epoch_s, tokens

KNOWN_TYPES = {
    "user", "assistant", "system", "summary", "progress", "attachment", "queue-operation", "file-history-snapshot",
    "permission-mode",
}  # fmt: skip
BACKWARD_TOLERANCE_S = 2.0
"""Records of parallel tools are written slightly out of order; more than this is a clock that was set."""


def recognises(record: dict[str, Any]) -> bool:
    """Whether a record has the shape of a transcript's."""
    kind = record.get("type")
    return isinstance(kind, str) and kind in KNOWN_TYPES and not isinstance(record.get("payload"), dict)


class ClaudeReader:
    """Reads the records of one transcript in their order. `file`: a name that is unique to the file."""

    def __init__(self, reading: Reading, secret: bytes, file: str) -> None:
        self._reading, self._secret, self._file = reading, secret, file
        self._line = 0
        self._last_s: dict[bytes, float] = {}
        self._latest: dict[bytes, bytes] = {}
        self._calls: dict[bytes, Call] = {}
        self._blocks: dict[bytes, dict[bytes, int]] = {}
        self._roots: dict[bytes, bytes] = {}

    def add(self, record: dict[str, Any], rank: int = 0) -> None:
        """Take one record in."""
        self._line += 1
        kind = record.get("type")
        if kind == "progress":
            self._add_progress(record)
            return
        flags = self._reading.flags
        time_s = epoch_s(record.get("timestamp"), flags)
        if time_s is not None:
            self._reading.saw(time_s)
        if kind not in ("user", "assistant"):
            return
        stream = self._stream(record)
        message: Any = record.get("message")
        is_call = kind == "assistant" and isinstance(message, dict)
        if is_call and (record.get("isApiErrorMessage") or message.get("model") == "<synthetic>"):
            flags["synthetic"] += 1
            is_call = False
        elif is_call and not isinstance(message.get("usage"), dict):
            is_call = False
        if time_s is None:
            flags["untimed"] += is_call
            return
        last_s = self._last_s.get(stream)
        if last_s is not None and time_s < last_s - BACKWARD_TOLERANCE_S:
            flags["clock_back"] += 1
        if is_call:
            sidechain = bool(record.get("isSidechain"))
            self._add_block(record, message, stream, time_s, last_s, rank or int(sidechain))
        else:
            self._last_s[stream] = time_s

    def close(self) -> None:
        """Hand the calls over; call once, after the last record."""
        for key, call in self._calls.items():
            call.estimated_output_tokens = sum(self._blocks[key].values()) // CHARACTERS_PER_TOKEN
            self._reading.add(key, call)

    def _add_progress(self, record: dict[str, Any]) -> None:
        """A progress record may carry a subagent's message, which that agent's own log has too."""
        data: Any = record.get("data")
        inner = data.get("message") if isinstance(data, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("message"), dict) and inner.get("type") in ("user", "assistant"):
            inherited = {"sessionId": record.get("sessionId"), "timestamp": record.get("timestamp")}
            place = {"agentId": data.get("agentId") or inner.get("agentId") or "progress", "isSidechain": True}
            self.add(inherited | inner | place, rank=2)

    def _stream(self, record: dict[str, Any]) -> bytes:
        """One stream for the main conversation, one for each subagent, known by its id or by where its chain begins."""
        session = str(record.get("sessionId") or self._file)
        if not record.get("isSidechain"):
            return digest(self._secret, session, "main")
        if record.get("agentId"):
            return digest(self._secret, session, "agent", str(record["agentId"]))
        own = digest(self._secret, str(record.get("uuid") or self._line))
        parent = digest(self._secret, str(record.get("parentUuid")))
        self._roots[own] = self._roots.get(parent, own)
        return self._roots[own]

    def _add_block(
        self, record: dict[str, Any], message: dict[str, Any], stream: bytes, time_s: float, last_s: float | None, rank: int
    ) -> None:
        flags = self._reading.flags
        key = self._key(record, message)
        call = self._calls.get(key)
        usage = message["usage"]
        context = sum(
            tokens(usage.get(name, 0), flags)
            for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        )  # the nested cache_creation holds the same tokens by lifetime
        output = tokens(usage.get("output_tokens", 0), flags)
        if call is None:
            flags["no_start"] += last_s is None
            start_s = time_s if last_s is None else last_s
            if start_s > time_s:
                flags["negative_duration"] += 1
                start_s = time_s
            session = digest(self._secret, str(record.get("sessionId") or self._file))
            self._calls[key] = Call(session, stream, start_s, time_s, context, output, rank=rank)
            self._blocks[key] = {}
        else:
            if self._latest.get(stream) == key and call.stream == stream:
                call.end_s = max(call.end_s, time_s)
            else:
                flags["duplicates"] += 1  # a copy of an earlier response: a fork, or a replay in another stream
                if rank < call.rank:
                    start_s = time_s if last_s is None else min(last_s, time_s)
                    call.stream, call.rank, call.start_s, call.end_s = stream, rank, start_s, time_s
            if output > call.output_tokens:
                call.context_tokens, call.output_tokens = context, output
        self._latest[stream] = key
        self._last_s[stream] = time_s
        self._measure(key, message.get("content"))

    def _key(self, record: dict[str, Any], message: dict[str, Any]) -> bytes:
        for name, value in (("message", message.get("id")), ("request", record.get("requestId"))):
            if isinstance(value, str) and value:
                return digest(self._secret, name, value)
        self._reading.flags["unkeyed"] += 1
        return digest(self._secret, "line", str(record.get("uuid") or f"{self._file}:{self._line}"))

    def _measure(self, key: bytes, content: Any) -> None:
        """Length of each different block; snapshots of one block while it grows begin alike and count once."""
        for block in content if isinstance(content, list) else []:
            if not isinstance(block, dict):
                continue
            kind = str(block.get("type"))
            if kind == "tool_use":
                text = json.dumps(block.get("input"), ensure_ascii=False)
                start = str(block.get("id"))
            else:
                text = str(block.get("text") or block.get("thinking") or "")
                start = text[:64]
            name = digest(self._secret, kind, start)
            lengths = self._blocks[key]
            lengths[name] = max(lengths.get(name, 0), len(text))
