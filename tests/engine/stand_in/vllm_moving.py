"""Real vLLM on the CPU with experts that change places on a stand-in driver: `vllm_moving.py FOLDER CASE [SWAPS]`.

Cases: `plain` (no plan), `fed` (random swaps between steps, as many as asked for), `followed` (the planner's own). Prints
one JSON object.
"""

import json
import os
import random
import sys
from pathlib import Path

folder, case = Path(sys.argv[1]), sys.argv[2]
model = str(folder / "model")
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
if case != "plain":
    os.environ |= {"SPILLWAY_PLAN": str(folder / "plan.json"), "SPILLWAY_PROOF_DIR": str(folder / "proof")}
    rest = "decide_steps=1,swaps_per_step=4,classes=8" if case == "fed" else "certainty=0.5,pays_within_s=1000,decide_steps=4"
    os.environ["SPILLWAY_RESIDENCY"] = f"follow,{rest}"
    os.environ["SPILLWAY_STAGE_ROWS"] = "24"

sys.path.insert(0, str(Path(__file__).parents[2]))
import in_vllm  # noqa: E402
import install  # noqa: E402
import random_swaps  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

driver = install.driver
in_vllm.compute_plainly()

if case != "plain":
    in_vllm.place_on_the_cpu()
    from spillway.placement import choose, routed_experts
    from spillway.placement.plan import identify_model, load_plan, moe_layers, read_json
    from spillway.placement.proof import require_journals, require_proof

    config = read_json(Path(model) / "config.json")
    names = moe_layers(config)
    plan = choose.random_experts(identify_model(config), names, len(names) * 6, 0)
    plan.save(folder / "plan.json")

llm = LLM(
    model=model, dtype="bfloat16", enforce_eager=True, max_model_len=512, skip_tokenizer_init=True,
    kv_cache_memory_bytes=1 << 26, enable_prefix_caching=False, max_num_batched_tokens=64, max_num_seqs=2,
)  # fmt: skip
prompts = [{"prompt_token_ids": list(range(start, start + 30))} for start in (5, 300)]


def answer(tokens):
    """Greedy tokens and log probabilities of two prompts, whose prefill of 60 rows is staged."""
    settings = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0, logprobs=1, detokenize=False)
    outputs = [out.outputs[0] for out in llm.generate(prompts, settings, use_tqdm=False)]
    return [
        [[token, scores[token].logprob] for token, scores in zip(out.token_ids, out.logprobs, strict=True)] for out in outputs
    ]


result = {}
if case == "plain":
    result["answers"] = [answer(40)]
else:
    answers = [answer(4)]
    follower = routed_experts.placement().follower
    if case == "fed":
        random_swaps.feed(follower, random.Random(2), 2)
    slots, memory = follower.spare_slots(), dict(driver.left)
    wanted = int(sys.argv[3])
    while follower.swaps_done < wanted:
        answers.append(answer(40))
    random_swaps.rest(follower)
    answers.append(answer(40))
    proofs = require_proof(load_plan(folder / "plan.json"), folder / "proof", 1)
    residency = require_journals(plan, proofs, folder / "proof")
    reads = routed_experts.counter().reads()
    planned = sum(int(reads[row, list(plan.layers[name])].sum()) for row, name in enumerate(names))
    result = {
        "answers": answers,
        "swaps": [follower.swaps_done, residency.swaps],
        "slots": [slots, follower.spare_slots()],
        "memory": [memory, driver.left],
        "as journal": all(
            {e for e in range(16) if follower.on_host[row][e]} == residency.host[name] for row, name in enumerate(names)
        ),
        "host_reads": [planned, int(reads[follower.on_host].sum())],
        "traffic": sum(record.kind == "traffic" for record in residency.records),
        "reads": int(reads.sum()),
        "staged": routed_experts.placement().staging is not None,
    }
print(json.dumps(result))
