"""The architecture of the 671B model, small, in stock vLLM on the CPU: it is served, and its KV cache is what `fit` says.

Latent attention, the first layers dense, then experts in groups with a correction bias and a shared one. Without block fp8,
which the CPU is not asked for; its sizes are small, but for those of the latent attention, for which vLLM's CPU kernel is
compiled.
"""

import os
from pathlib import Path

import httpx
import pytest

from spillway.engine.dummymodel import write_shape
from spillway.engine.server import Launch, serve
from spillway.fit.architectures import describe
from spillway.spec.host import Model
from spillway.spec.read import read
from tests.conftest import ROOT

PYTHON = Path(os.environ.get("SPILLWAY_ENGINE_PYTHON", ROOT / ".envs" / "engine-cpu" / "bin" / "python"))
KV_CACHE_BYTES = 64 << 20
SMALL = {
    "num_hidden_layers": 5,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "num_nextn_predict_layers": 0,
    "vocab_size": 2048,
}


def small_shape() -> dict[str, object]:
    """config.json of experiments/models/deepseek-v3.yaml with fewer and smaller layers, in bfloat16."""
    config = read(Model, ROOT / "experiments/models/deepseek-v3.yaml").source.model_dump()["config"]
    return {key: value for key, value in config.items() if key != "quantization_config"} | SMALL


@pytest.mark.engine
@pytest.mark.timeout(400)
def test_it_is_served_and_its_cache_holds_what_fit_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not PYTHON.exists():
        pytest.fail(f"no engine at {PYTHON}: make it with `make demo`, or set SPILLWAY_ENGINE_PYTHON")
    monkeypatch.setenv("SPILLWAY_LOCK", str(tmp_path / "lock"))
    config = small_shape()
    write_shape(tmp_path / "model", config)
    command = [str(PYTHON), "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(tmp_path / "model")]
    command += ["--served-model-name", "small", "--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"]
    command += ["--max-model-len", "2048", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES)]
    launch = Launch(
        command=[*command, "--enable-prompt-tokens-details"],
        environment={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        model="small",
        vocabulary=range(100, 2000),
        full_batch=4,
        long_prefill_tokens=1000,
    )
    with serve(launch, tmp_path / "run", ready_timeout_s=300) as server:
        asked = {"model": "small", "prompt": list(range(100, 164)), "max_tokens": 24, "temperature": 1, "seed": 1}
        answer = httpx.post(f"{server.base_url}/v1/completions", json=asked, timeout=60, trust_env=False).json()
        found_tokens = server.kv_cache_tokens
    assert answer["usage"]["completion_tokens"] == 24
    log = "".join(path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*.log"))
    assert "DeepseekV3ForCausalLM" in log and "MLA backend" in log
    token_bytes = describe(config).cache("bf16", 1).token_bytes
    assert found_tokens == KV_CACHE_BYTES // 16 // token_bytes * 16  # vLLM's blocks of 16 tokens
