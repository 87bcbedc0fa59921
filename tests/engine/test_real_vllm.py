"""Real vLLM on the CPU with the tiny model: boots, answers, says what it is, and is gone afterwards."""

import os
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from spillway.engine.processes import RUN_VARIABLE, marked_processes, process_memory
from spillway.engine.server import Launch, serve
from spillway.engine.tinymodel import SHAPE, SPECIAL_TOKENS, vocabulary, write_model
from spillway.measure.arms import forget_prefixes

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SPILLWAY_ENGINE_PYTHON", ROOT / ".envs" / "engine-cpu" / "bin" / "python"))
KV_CACHE_BYTES = 128 * 1024 * 1024
# Keys and values of one token: 2, 4 layers, 2 heads of 64, 2 bytes each.
KV_BYTES_PER_TOKEN = 2 * 4 * 2 * 64 * 2


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    if not PYTHON.exists():
        pytest.fail(f"no engine at {PYTHON}: make it with `make demo`, or set SPILLWAY_ENGINE_PYTHON")
    monkeypatch.setenv("SPILLWAY_LOCK", str(tmp_path / "lock"))
    model = tmp_path / "model"
    write_model(model, SHAPE)
    command = [str(PYTHON), "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(model)]
    command += ["--served-model-name", "tiny", "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "4096"]
    command += ["--max-num-seqs", "4", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES)]
    return Launch(
        command=[*command, "--enable-prompt-tokens-details"],
        environment={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        model="tiny",
        vocabulary=range(len(SPECIAL_TOKENS), len(vocabulary())),
        full_batch=4,
        long_prefill_tokens=2000,
    )


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_real_server_proves_ready_answers_reports_itself_and_is_gone(launch: Launch, tmp_path: Path) -> None:
    with serve(launch, tmp_path / "run", ready_timeout_s=200) as server:
        processes = marked_processes(RUN_VARIABLE, server.run)
        names = " ".join(" ".join(process.cmdline()) for process in processes)
        assert "EngineCore" in names and "Worker" in names, "a process of vLLM lost our mark"
        ports = [each.laddr for process in processes for each in process.net_connections() if each.status == "LISTEN"]
        assert len(ports) > 1 and {ip for ip, _ in ports} == {"127.0.0.1"}, "others on the network reach the server"

        request = {"model": "tiny", "prompt": list(range(100, 164)), "max_tokens": 24, "temperature": 0}
        first = complete(server.base_url, request)
        assert first["usage"]["completion_tokens"] == 24, "the random model ended its text by itself"
        assert len(set(first["choices"][0]["token_ids"])) > 12, "greedy decoding fell into a loop"
        again = complete(server.base_url, request)
        assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]

        installed = httpx.get(f"{server.base_url}/version", trust_env=False).json()["version"]
        assert server.engine_version == installed
        assert server.kv_cache_tokens == KV_CACHE_BYTES // KV_BYTES_PER_TOKEN
        assert server.weights_bytes is None, "vLLM's CPU worker now reports its weights: record them"
        assert server.health_s is not None and server.startup_s is not None and server.health_s < server.startup_s
        memory = process_memory(server.pid)
        assert KV_CACHE_BYTES < memory.uss_bytes <= memory.pss_bytes
        assert server.alive() is None
    assert [process.pid for process in processes if psutil.pid_exists(process.pid)] == []
    assert marked_processes(RUN_VARIABLE, server.run) == []


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_measured_prompt_is_not_answered_from_what_readiness_left_in_the_cache(launch: Launch, tmp_path: Path) -> None:
    """The very prompt of the proof, without its salt, must find nothing; asked twice, it must find itself, until forgotten."""
    from spillway.engine.readiness import _prompt

    launch = replace(launch, environment=launch.environment | {"VLLM_SERVER_DEV_MODE": "1"})
    prompt = _prompt("prefill", 0, launch.vocabulary, launch.long_prefill_tokens)
    with serve(launch, tmp_path / "run", ready_timeout_s=200) as server:
        request = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0}
        cached = [complete(server.base_url, request)["usage"]["prompt_tokens_details"] for _ in range(2)]
        forget_prefixes(server)
        cached.append(complete(server.base_url, request)["usage"]["prompt_tokens_details"])
    assert (cached[0] or {}).get("cached_tokens", 0) == 0
    assert cached[1]["cached_tokens"] > 1800
    assert (cached[2] or {}).get("cached_tokens", 0) == 0


def complete(base_url: str, request: dict[str, object]) -> dict:
    answer = httpx.post(f"{base_url}/v1/completions", json=request | {"return_token_ids": True}, timeout=60, trust_env=False)
    answer.raise_for_status()
    return answer.json()
