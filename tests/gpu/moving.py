"""vLLM on the GPU with experts that change places at random: `moving.py REQUEST`, a JSON file; prints one JSON object.

Keys of the request: model (a checkpoint's folder), swaps (0: no plan), residency, tp, proof.
"""

import json
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "workflow")]
request = json.loads(Path(sys.argv[1]).read_text())


def feed_worker(worker, seed):
    """In every rank's worker: swaps drawn with one seed, so alike everywhere; what rank 0 draws counts."""
    import random_swaps

    from spillway.placement.boundary import of_all_ranks
    from spillway.placement.routed_experts import placement
    from spillway.placement.swap import Proposal

    follower, generator = placement().follower, random.Random(seed)

    def agree(proposal):
        swaps = tuple(random_swaps.draw_swaps(follower, generator, 4))
        return of_all_ranks(Proposal(proposal.failure, swaps))

    follower.agree = agree


def state(worker):
    """Swaps done, spare slots, free GPU memory, why following stopped."""
    import torch

    from spillway.placement.routed_experts import placement

    follower = placement().follower
    torch.cuda.synchronize()
    return [follower.swaps_done, follower.spare_slots(), torch.cuda.mem_get_info()[0], follower.stopped]


def rest_worker(worker):
    from spillway.placement.boundary import of_all_ranks
    from spillway.placement.routed_experts import placement
    from spillway.placement.swap import Proposal

    placement().follower.agree = lambda proposal: of_all_ranks(Proposal(proposal.failure, ()))


def main():
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=request["model"], load_format="safetensors", skip_tokenizer_init=True, max_model_len=4096,
        gpu_memory_utilization=0.2, kv_cache_memory_bytes=4 * 2**30, moe_backend="triton", enable_prefix_caching=False,
        max_num_seqs=8, tensor_parallel_size=request["tp"], seed=0,
        compilation_config={"pass_config": {"fuse_allreduce_rms": False}},
    )  # fmt: skip
    rng = random.Random(7)
    prompts = [{"prompt_token_ids": [rng.randrange(1000, 150000) for _ in range(1500)]}]  # one, so that steps are the same

    def answer(tokens):
        settings = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0, logprobs=1, detokenize=False)
        outputs = [out.outputs[0] for out in llm.generate(prompts, settings, use_tqdm=False)]
        return [[[t, scores[t].logprob] for t, scores in zip(o.token_ids, o.logprobs, strict=True)] for o in outputs]

    answers, times = [answer(256)], []
    states = []
    if request["swaps"]:
        llm.collective_rpc(feed_worker, args=(3,))
        states.append(llm.collective_rpc(state))
        while llm.collective_rpc(state)[0][0] < request["swaps"] and llm.collective_rpc(state)[0][3] is None:
            start = time.perf_counter()
            answers.append(answer(256))
            times.append(time.perf_counter() - start)
        llm.collective_rpc(rest_worker)
        answers.append(answer(64))
        states.append(llm.collective_rpc(state))
    print(json.dumps({"answers": answers, "states": states, "generate_s": times}))


if __name__ == "__main__":
    main()
