"""What a request's body says."""

import json

import pytest

from spillway.load.client import Endpoint, Reply


def test_only_a_seeded_endpoint_gives_seeds_and_equal_prompts_get_equal_ones() -> None:
    plain = Endpoint("http://127.0.0.1:1", "m", vocabulary=range(4, 300))
    seeded = Endpoint("http://127.0.0.1:1", "m", vocabulary=range(4, 300), seeded=True, options={"temperature": 1.0})
    assert "seed" not in json.loads(plain.body(b"[5, 6]", 7))
    bodies = [json.loads(seeded.body(prompt, 7)) for prompt in (b"[5, 6]", b"[5, 6]", b"[6, 5]")]
    assert bodies[0] == bodies[1] and bodies[0]["seed"] != bodies[2]["seed"]
    assert all(0 <= body["seed"] < 2**63 and body["temperature"] == 1.0 for body in bodies)


def test_a_key_that_a_cut_goes_through_is_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOAD_TEST_KEY", "sk-1234567890abcdef")
    endpoint = Endpoint("http://127.0.0.1:1", "m", api="chat", api_key_variable="LOAD_TEST_KEY")
    for before in range(480, 500):  # of MESSAGE_CHARS
        reply = Reply()
        reply.fail("http_status", "x" * before + "sk-1234567890abcdef")
        assert reply.message is not None
        assert "sk-1" not in endpoint.hidden(reply.message)
    assert endpoint.hidden("no key at all") == "no key at all"


@pytest.mark.parametrize("url", ["http://127.0.0.1:65616", "http://127.0.0.1:eighty", "http://127.0.0.\x7f"])
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"url: found .* expected http://HOST:PORT"):
        Endpoint(url, "m", api="chat")


def test_no_request_in_flight_is_refused() -> None:
    with pytest.raises(ValueError, match="max_concurrent: found 0"):
        Endpoint("http://127.0.0.1:1", "m", api="chat", max_concurrent=0)
