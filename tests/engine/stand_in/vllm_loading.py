"""One start of real vLLM on the CPU with a plan on the stand-in driver: `vllm_loading.py FOLDER RANKS ENGINE_ARGUMENTS`.

The engine and its workers are processes of their own, as in a server; each gets the stand-ins from the plugin that
`vllm_plugin.py` is.
"""

import json
import sys
from pathlib import Path

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, ranks, arguments = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    llm = LLM(
        model=str(folder / "model"), dtype="bfloat16", enforce_eager=True, max_model_len=512, skip_tokenizer_init=True,
        kv_cache_memory_bytes=1 << 26, max_num_batched_tokens=64, max_num_seqs=2, tensor_parallel_size=ranks, **arguments,
    )  # fmt: skip
    settings = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0, detokenize=False)
    out = llm.generate([{"prompt_token_ids": list(range(5, 45))}], settings, use_tqdm=False)
    assert len(out[0].outputs[0].token_ids) == 8
