"""API keys: from the environment by name, and in no record, message, URL or redirect, even where the server repeats them."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spillway.load.client import Endpoint
from spillway.load.load_command import main
from spillway.quality.ask import Endpoint as RemoteEndpoint
from spillway.quality.errors import QualityError
from spillway.spec.secret import secret_of, without_secrets

KEY = "sk-very-secret-0123456789"


class Parrot(BaseHTTPRequestHandler):
    """Lists a model, and answers each request with its own headers, as an error or as a redirect."""

    redirect: ClassVar[str | None] = None
    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self._answer(200, json.dumps({"data": [{"id": "m"}]}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).seen.append(self.headers["authorization"])
        self._answer(302 if self.redirect else 401, f"no such key: {self.headers['authorization']}")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        if status == 302:
            self.send_header("location", self.redirect or "")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def parrot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A class of its own for each test, with the address of its server."""
    monkeypatch.setenv("SPILLWAY_TEST_KEY", KEY)
    servers = []

    def start() -> Any:
        handler = type("Parrot", (Parrot,), {"seen": []})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        handler.url = f"http://127.0.0.1:{server.server_address[1]}"
        return handler

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def load(url: str, out: Path) -> int | str:
    workload = json.dumps({"kind": "prompt_sweep", "prompt_tokens": 5, "output_tokens": 2, "requests": 2, "warmup": 0})
    return main([url, "--model", "m", "--workload", workload, "--out", str(out), "--api-key-variable", "SPILLWAY_TEST_KEY"])


def test_a_key_that_the_server_repeats_is_in_no_record_and_no_message(parrot: Any, tmp_path: Path, capfd: Any) -> None:
    server = parrot()
    ended = load(server.url, tmp_path / "out")
    assert server.seen and set(server.seen) == {f"Bearer {KEY}"}, "the key was not sent at all"
    said = capfd.readouterr()
    assert KEY not in f"{ended}{said.out}{said.err}"
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "load.requests.parquet" for path in written)
    from spillway.record import parquet

    messages = " ".join(str(value) for value in parquet.read(tmp_path / "out" / "load.requests.parquet").to_numpy().ravel())
    assert "no such key: Bearer [key]" in messages
    assert KEY not in messages and not any(KEY.encode() in path.read_bytes() for path in written)


def test_a_redirect_does_not_get_the_key(parrot: Any, tmp_path: Path) -> None:
    server, thief = parrot(), parrot()
    server.redirect = thief.url
    load(server.url, tmp_path / "out")
    assert server.seen and not thief.seen


def test_a_url_with_a_password_is_refused_and_not_repeated() -> None:
    for url in (f"http://user:{KEY}@127.0.0.1:1", f"http://{KEY}@127.0.0.1", f"http://h/v1?key={KEY}", f"file:///{KEY}"):
        said = "expected http://HOST:PORT, and a key in an environment variable"
        with pytest.raises(ValueError, match=said) as caught:
            Endpoint(url, "m", api="chat")
        with pytest.raises(QualityError, match=said) as also:
            RemoteEndpoint("a", url, "m")
        assert KEY not in f"{caught.value}{also.value}"
    with pytest.raises(ValueError, match="expected http://HOST:PORT") as caught:
        Endpoint(f"http://{KEY}\u2100@[", "m", api="chat")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("value", ["", "  ", "a b", "a\nb", "kéy", "a\x00"])
def test_what_is_no_key_is_told_by_the_variables_name_alone(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"SPILLWAY_TEST_KEY": value})
    with pytest.raises(ValueError, match="environment variable SPILLWAY_TEST_KEY") as caught:
        secret_of("SPILLWAY_TEST_KEY")
    assert not value.strip() or value not in str(caught.value)


def test_secrets_are_found_in_json_too() -> None:
    assert without_secrets(json.dumps({"a": 'k"1'}) + ' k"1', ['k"1']) == '{"a": "[key]"} [key]'
