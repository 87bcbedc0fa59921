"""Codex sessions: `sessions/YYYY/MM/DD/rollout-*.jsonl`.

Each response ends with an event `token_count`, which may be written again without a new response; a forked session begins
with a copy of its parent's events. Both are known by the session's running totals, which a new response always changes.
Time follows the gap rule of Claude Code's transcripts: from the last prompt or tool result to the last item written.
"""

import json
from typing import Any

from spillway.seats.calls import Call, Reading, digest, epoch_s, tokens

KNOWN_TYPES = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
WRITTEN = {"reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call"}
ANSWERED = {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}


def recognises(record: dict[str, Any]) -> bool:
    """Whether a record has the shape of a rollout's."""
    kind = record.get("type")
    return isinstance(kind, str) and kind in KNOWN_TYPES and isinstance(record.get("payload"), dict)


class CodexReader:
    """Reads the records of one rollout in their order. `file`: a name that is unique to the file."""

    def __init__(self, reading: Reading, secret: bytes, file: str) -> None:
        self._reading, self._secret = reading, secret
        self._session = digest(secret, file)
        self._named = False
        self._line = 0
        self._start_s: float | None = None
        self._next_start_s: float | None = None
        self._written_s: float | None = None

    def add(self, record: dict[str, Any]) -> None:
        """Take one record in."""
        self._line += 1
        payload = record["payload"]
        time_s = epoch_s(record.get("timestamp"), self._reading.flags)
        if time_s is not None:
            self._reading.saw(time_s)
        kind = str(payload.get("type"))
        if record["type"] == "session_meta":
            self._add_session(payload)
        elif record["type"] == "event_msg" and kind == "token_count":
            self._add_call(payload.get("info"), time_s)
        elif time_s is None:
            return
        elif _is_output(record["type"], payload):
            self._written_s = time_s
        elif (record["type"] == "response_item" and (kind in ANSWERED or kind == "message")) or kind == "user_message":
            if self._written_s is None:
                self._start_s = time_s
            else:
                self._next_start_s = time_s  # the tool was faster than the count of the response that called it

    def close(self) -> None:
        """Nothing is held back."""

    def _add_session(self, payload: dict[str, Any]) -> None:
        """The first one names this session and its parent; further ones are part of what a fork copied."""
        if self._named or not payload.get("id"):
            return
        self._named = True
        self._session = digest(self._secret, str(payload["id"]))
        source = payload.get("source")
        spawn = source.get("subagent", {}) if isinstance(source, dict) else {}
        spawn = spawn.get("thread_spawn", {}) if isinstance(spawn, dict) else {}
        spawned_by = spawn.get("parent_thread_id") if isinstance(spawn, dict) else None
        parent = payload.get("forked_from_id") or payload.get("parent_thread_id") or spawned_by
        if parent:
            self._reading.forks.append((self._session, digest(self._secret, str(parent))))

    def _add_call(self, info: Any, time_s: float | None) -> None:
        flags = self._reading.flags
        usage = info.get("last_token_usage") if isinstance(info, dict) else None
        if not isinstance(usage, dict):
            return  # rate limits alone
        total = info.get("total_token_usage")
        if isinstance(total, dict):
            key = digest(self._secret, json.dumps([total, usage], sort_keys=True))
        else:
            flags["unkeyed"] += 1
            key = digest(self._secret, "line", self._session.hex(), str(self._line))
        repeated = (self._session, key) in self._reading.calls
        end_s = self._written_s if self._written_s is not None else time_s
        if repeated:
            flags["duplicates"] += 1
            return
        if end_s is None:
            flags["untimed"] += 1
            return
        flags["no_start"] += self._start_s is None
        start_s = end_s if self._start_s is None else self._start_s
        if start_s > end_s:
            flags["negative_duration"] += 1
            start_s = end_s
        context, output = tokens(usage.get("input_tokens"), flags), tokens(usage.get("output_tokens"), flags)
        call = Call(self._session, self._session, start_s, end_s, context, output, lineage=self._session)
        self._reading.add(key, call)
        self._start_s, self._next_start_s, self._written_s = self._next_start_s, None, None


def _is_output(kind: str, payload: dict[str, Any]) -> bool:
    """Whether a record is something that the model wrote."""
    written = str(payload.get("type")) in WRITTEN or (payload.get("type") == "message" and payload.get("role") == "assistant")
    return kind == "response_item" and written
