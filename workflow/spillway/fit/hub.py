"""A model's files behind a URL, read by range request: never more than the bytes asked for."""

import re
from urllib.parse import urlsplit

import httpx

from spillway.fit.weights import FitError
from spillway.spec.shown import shown

TIMEOUT_S = 30.0


class HubFiles:
    """Files below a base URL such as https://huggingface.co/ORG/NAME/resolve/main; a model's page URL does as well.

    Use as a context manager. Every failure is a FitError that names the URL.
    """

    def __init__(self, url: str) -> None:
        self.base = resolve_url(url)
        self._client = httpx.Client(timeout=TIMEOUT_S, follow_redirects=True)
        self._sizes: dict[str, int] = {}

    def __enter__(self) -> "HubFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def where(self, name: str) -> str:
        return f"{self.base}/{name}"

    def exists(self, name: str) -> bool:
        """Whether the server has the file; asks for its first byte, since not every server answers HEAD."""
        return self._range(name, 0, 1) is not None

    def size(self, name: str) -> int:
        if name not in self._sizes and self._range(name, 0, 1) is None:
            raise FitError(f"{self.where(name)}: the server has no such file")
        return self._sizes[name]

    def read(self, name: str, start: int, length: int) -> bytes:
        found = self._range(name, start, length)
        if found is None:
            raise FitError(f"{self.where(name)}: the server has no such file")
        return found

    def _range(self, name: str, start: int, length: int) -> bytes | None:
        """The bytes, or None if there is no such file; a server that would send all of it is refused before it does."""
        url = self.where(name)
        wanted = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        try:
            with self._client.stream("GET", url, headers=wanted) as answer:
                if answer.status_code == 404:
                    return None
                if answer.status_code in (401, 403):
                    raise FitError(
                        f"{url}: the server refused with {answer.status_code}; copy config.json here and name its folder"
                    )
                if answer.status_code == 200:
                    raise FitError(
                        f"{url}: the server ignores range requests and would send the whole file; "
                        "copy config.json here and name its folder"
                    )
                if answer.status_code != 206:
                    raise FitError(f"{url}: the server answered {answer.status_code}; expected 206, a part of the file")
                total = re.fullmatch(r"bytes \d+-\d+/([0-9]{1,18})", answer.headers.get("Content-Range", ""))
                if total is None:
                    raise FitError(
                        f"{url}: Content-Range is {shown(answer.headers.get('Content-Range'))}; expected bytes A-B/SIZE"
                    )
                self._sizes[name] = int(total[1])
                content = b""
                for chunk in answer.iter_bytes():
                    content += chunk
                    if len(content) > length:
                        raise FitError(f"{url}: the server sent more than the {length} bytes asked for")
                return content
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise FitError(f"{url}: {str(error)[:300] or type(error).__name__}") from None


def resolve_url(url: str) -> str:
    """The base URL of a model's files: that of a Hugging Face page (with /tree/REVISION or without), others as given."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise FitError(f"{shown(url)}: {str(error)[:200]}; expected a URL") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise FitError(f"{shown(url)}: expected a URL that starts with http:// or https://")
    path = [part for part in parts.path.split("/") if part]
    if parts.netloc == "huggingface.co" and (len(path) == 2 or path[2:3] == ["tree"]):
        revision = path[3] if len(path) > 3 else "main"
        path = [*path[:2], "resolve", revision]
    return f"{parts.scheme}://{parts.netloc}/{'/'.join(path)}".rstrip("/")
