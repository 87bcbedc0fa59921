"""Runs under the engine's Python: boots vLLM on a folder with config.json alone and dummy weights, and ends.

boot.py FOLDER        with SPILLWAY_WEIGHTS_RECORD naming the file that recorder.py writes
"""

import sys

from vllm import LLM

if __name__ == "__main__":
    LLM(
        sys.argv[1],
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=1,
        kv_cache_memory_bytes=64 << 20,
        worker_extension_cls="recorder.Recorder",
    )
