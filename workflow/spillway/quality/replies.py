"""The journal of a comparison: every raw reply, on disk before the next question is counted as asked.

One JSON object a line. A reply that was written is never asked for again; a line that a kill cut short is dropped and its
question asked anew. No key is in it: what is written passes through `without_secrets`, in case a server repeats its key.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import TypeAdapter

from spillway.quality.errors import QualityError
from spillway.spec.secret import without_secrets

Id = tuple[str, str, str]


@dataclass(frozen=True)
class Reply:
    """What an endpoint said to one question, with how it was asked.

    `response` is the body as it came, parsed; None if no attempt succeeded, and then `failures` says why. `order` is the
    place in the shuffled order of all questions of the run.
    """

    system: str
    task: str
    item: str
    order: int
    request: dict[str, Any]
    response: dict[str, Any] | None
    headers: dict[str, str]
    failures: list[str]
    sent_at: str
    wall_s: float

    @property
    def id(self) -> Id:
        return self.system, self.task, self.item

    @property
    def retries(self) -> int:
        """Attempts after the first one."""
        return len(self.failures) if self.response is not None else max(0, len(self.failures) - 1)


_REPLY = TypeAdapter(Reply)


def request_hash(request: Mapping[str, Any]) -> str:
    """SHA-256 of a request's body."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Journal:
    """replies.jsonl of a folder, open for one process; `with Journal(folder) as journal`."""

    def __init__(self, folder: Path, *, resume: bool = False, secrets: Sequence[str] = ()) -> None:
        """Raises QualityError if there are replies and `resume` is not set, or another process writes them."""
        self.path = folder / "replies.jsonl"
        self.secrets = [secret for secret in secrets if secret]
        folder.mkdir(parents=True, exist_ok=True)
        if not resume and self.path.exists() and self.path.stat().st_size:
            raise QualityError(f"{self.path}: holds replies already; give another folder, or --resume to go on with them")
        self._file = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise QualityError(f"{self.path}: another process is writing it; wait until it ends") from None
        self.replies: dict[Id, Reply] = {}
        self._load()

    def _load(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                reply = _REPLY.validate_python(json.loads(line))
            except (ValueError, RecursionError) as error:
                said = str(error)[:300]
                raise QualityError(f"{self.path}: line {number}: not a reply: {said}; move the file away") from None
            self.replies[reply.id] = reply
        if whole < len(content):
            os.ftruncate(self._file.fileno(), whole)

    def answered(self, system: str, task: str, item: str, request: Mapping[str, Any]) -> bool:
        """Whether there is a reply to this very request; raises QualityError if there is one to another request."""
        found = self.replies.get((system, task, item))
        if found is None or found.response is None:
            return False
        if request_hash(found.request) != request_hash(request):
            raise QualityError(
                f"{self.path}: the reply of {system!r} to {task} {item} was asked for with another model, prompt, budget or "
                "temperature; give another folder"
            )
        return True

    def add(self, reply: Reply) -> None:
        """Write a reply; returns when it is on the disk."""
        line = without_secrets(json.dumps(asdict(reply), ensure_ascii=False, separators=(",", ":")), self.secrets)
        # Half of a surrogate pair, which JSON can name and UTF-8 cannot write, is written as JSON names it.
        self._file.write(line.encode("utf-8", "backslashreplace") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.replies[reply.id] = Reply(**json.loads(line))

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
