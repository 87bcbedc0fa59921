"""Runs under the engine's Python: boots vLLM on a folder with config.json alone and dummy weights, and ends.

boot.py FOLDER        with SPILLWAY_WEIGHTS_RECORD naming the file that recorder.py writes

Engine and worker stay in this process, with VLLM_ENABLE_V1_MULTIPROCESSING=0: as processes of their own they have the same
parameters, and each would import vLLM first, which takes most of the time.
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
        distributed_executor_backend="uni",
        worker_extension_cls="recorder.Recorder",
    )
