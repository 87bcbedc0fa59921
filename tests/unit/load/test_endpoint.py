"""What a request's body says."""

import json

from spillway.load.client import Endpoint


def test_only_a_seeded_endpoint_gives_seeds_and_equal_prompts_get_equal_ones() -> None:
    plain = Endpoint("http://127.0.0.1:1", "m", vocabulary=range(4, 300))
    seeded = Endpoint("http://127.0.0.1:1", "m", vocabulary=range(4, 300), seeded=True, options={"temperature": 1.0})
    assert "seed" not in json.loads(plain.body(b"[5, 6]", 7))
    bodies = [json.loads(seeded.body(prompt, 7)) for prompt in (b"[5, 6]", b"[5, 6]", b"[6, 5]")]
    assert bodies[0] == bodies[1] and bodies[0]["seed"] != bodies[2]["seed"]
    assert all(0 <= body["seed"] < 2**63 and body["temperature"] == 1.0 for body in bodies)
