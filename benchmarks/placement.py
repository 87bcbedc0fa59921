"""Benchmark of expert placement on one GPU host: all in VRAM, a plan, and vLLM's own offloaders, on dummy weights.

    python benchmarks/placement.py --out rows --shape qwen3-30b-a3b --arms base,ours,uva,prefetch --boots 3

Every arm is a process of its own with the same kernels and, where it offloads, the same bytes on the host. Rows go to
OUT/rows.jsonl after each cell, so a run that is cut short loses only what it had not measured. Needs the engine's
packages on the interpreter's path. Routing is synthetic (see spillway.placement.routing) and every row says so.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from spillway.placement import choose, routing  # noqa: E402
from spillway.placement.discovery import write_discovery  # noqa: E402
from spillway.placement.plan import Plan, identify_model, moe_layers  # noqa: E402

_COMMON = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b": _COMMON
    | {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_window_layers": 48,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_hidden_layers": 48,
    },
    "qwen3-235b-a22b-fp8": _COMMON
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "max_window_layers": 94,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 64,
        "num_hidden_layers": 94,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
    },
}
DECODE_PROMPT_TOKENS = 512
STREAM_TOKENS = {1: 128, 4: 64, 8: 48}
PREFETCH_TOKENS = {1: 16, 4: 12, 8: 12}  # an arm that reads all its host bytes in every step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", help="run one arm from this JSON file (used by the benchmark itself)")
    parser.add_argument("--summary", action="store_true", help="print the table of the rows in OUT and measure nothing")
    parser.add_argument("--out", type=Path, default=Path("placement-rows"))
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--arms", default="base,ours,uva,prefetch", help="base, ours, uva, prefetch, picks")
    parser.add_argument("--boots", type=int, default=1)
    parser.add_argument("--host-experts", type=int, default=38, help="host experts per layer")
    parser.add_argument("--shares", default="0.296875,0.05", help="cold shares; 38/128 is uniform routing")
    parser.add_argument("--own-routing", action="store_true", help="no synthetic routing")
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--prompts", default="8000,32000")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--memory", type=float, default=0.85, help="vLLM's gpu_memory_utilization")
    parser.add_argument("--kv-cache-bytes", type=int, help="take so much for the KV cache of each GPU, instead of what is left")
    parser.add_argument("--stage-rows", help="value of SPILLWAY_STAGE_ROWS; default: measured")
    parser.add_argument("--load-format", default="dummy")
    parser.add_argument("--model", type=Path, help="a folder with weights, instead of dummy weights; outputs are compared")
    parser.add_argument("--arm-limit", type=float, default=240.0, help="seconds per arm and boot")
    parser.add_argument("--deadline", type=float, default=560.0, help="seconds for everything; later arms are skipped")
    options = parser.parse_args()
    if options.child:
        run_arm(json.loads(Path(options.child).read_text()))
        return
    if options.summary:
        print(summary(options.out))
        return
    run_all(options)


def run_all(options: argparse.Namespace) -> None:
    """Start every arm of every boot in turn, and compare the arms' outputs at the end."""
    end = time.monotonic() + options.deadline
    options.out.mkdir(parents=True, exist_ok=True)
    model = options.model or write_shape(options)
    shares = [float(share) for share in options.shares.split(",")]
    plan_path, plan = write_plan(options, model, shares[-1])
    paths = write_discovery(options.out / "discovery")
    print(choose.describe(plan), flush=True)
    for boot in range(options.boots):
        for arm in options.arms.split(","):
            left = end - time.monotonic()
            spec = {
                "arm": arm,
                "boot": boot,
                "shape": options.shape,
                "model": str(model),
                "load_format": options.load_format,
                "tp": options.tp,
                "memory": options.memory,
                "kv_cache_bytes": options.kv_cache_bytes,
                "plan": str(plan_path),
                "host_experts": options.host_experts,
                "shares": [None] if options.own_routing else shares,
                "batches": [int(b) for b in options.batches.split(",") if b],
                "prompts": [int(p) for p in options.prompts.split(",") if p],
                # Dummy weights are so small that the experts' sums vanish beside what they are added to.
                "outputs": options.model is not None and boot == 0,
                "stage_rows": options.stage_rows,
                "out": str(options.out),
            }
            row = {key: spec[key] for key in ("arm", "boot", "shape", "tp")}
            if left < 30:
                write_row(options.out, row | {"cell": "arm", "outcome": "skipped", "reason": "deadline"})
                continue
            reason = start_arm(spec, options.out, paths, min(left, options.arm_limit))
            if reason:
                write_row(options.out, row | {"cell": "arm", "outcome": "failed", "reason": reason})
    compare_outputs(options.out)


def write_shape(options: argparse.Namespace) -> Path:
    folder = options.out / "model"
    folder.mkdir(exist_ok=True)
    config = dict(SHAPES[options.shape])
    if options.layers:
        config["num_hidden_layers"] = options.layers
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_plan(options: argparse.Namespace, model: Path, share: float) -> tuple[Path, Plan]:
    """The plan that puts exactly the unpopular experts of the synthetic routing on the host."""
    config = json.loads((model / "config.json").read_text())
    identity, layers = identify_model(config), moe_layers(config)
    unpopular = routing.SyntheticRouting(options.host_experts, share)
    plan = choose.coldest_per_layer(unpopular.counts(identity, layers), options.host_experts)
    if options.own_routing:
        plan = choose.given(identity, dict(plan.layers))
    path = options.out / "plan.json"
    plan.save(path)
    return path, plan


def start_arm(spec: dict[str, Any], out: Path, paths: tuple[Path, Path], limit_s: float) -> str | None:
    """Run one arm in its own process; why it failed, or None."""
    name = f"{spec['arm']}{spec['boot']}"
    request = out / f"{name}.json"
    request.write_text(json.dumps(spec))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*map(str, map(Path.resolve, paths)), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_DEEP_GEMM": "0",
        # Compiled at first use (the sampler took 100 s), which would count as boot time.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": "0",
    }
    environment["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    if spec["tp"] == 1:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if spec["shares"] != [None]:
        synthetic = routing.SyntheticRouting(spec["host_experts"], spec["shares"][0])
        environment[routing.STRATEGY_VARIABLE] = routing.STRATEGY
        environment[routing.ROUTING_VARIABLE] = synthetic.setting
    if spec["arm"] == "ours":
        environment["SPILLWAY_PLAN"] = str(Path(spec["plan"]).resolve())
        environment["SPILLWAY_PROOF_DIR"] = str((out / f"proof-{name}").resolve())
        if spec["stage_rows"]:
            environment["SPILLWAY_STAGE_ROWS"] = spec["stage_rows"]
    with open(out / f"{name}.log", "w") as log:
        command = [sys.executable, __file__, "--child", str(request)]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            # The arm's own process group: the engine's workers belong to it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"no end within {limit_s:.0f} s"
    return None if code == 0 else f"exit status {code}; see {name}.log: {last_error(out / f'{name}.log')}"


def last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if "Error" in line or "Refused" in line]
    return lines[-1][-300:] if lines else "no error line"


def write_row(out: Path, row: dict[str, Any]) -> None:
    with open(out / "rows.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def run_arm(spec: dict[str, Any]) -> None:
    """One boot: start the engine, measure every cell, write a row after each."""
    import torch
    from vllm import LLM

    out, keys = Path(spec["out"]), {key: spec[key] for key in ("arm", "boot", "shape", "tp")}
    start = time.perf_counter()
    llm = LLM(
        model=spec["model"],
        load_format=spec["load_format"],
        skip_tokenizer_init=True,
        max_model_len=min(40960, max([4096, *(p + 512 for p in spec["prompts"])])),
        gpu_memory_utilization=spec["memory"],
        kv_cache_memory_bytes=spec["kv_cache_bytes"],
        moe_backend="triton",
        enable_prefix_caching=False,
        max_num_seqs=16,
        max_num_batched_tokens=8192,
        tensor_parallel_size=spec["tp"],
        seed=0,
        # Also compiled at first use, and only used by several ranks.
        compilation_config={"pass_config": {"fuse_allreduce_rms": False}},
        **arm_settings(spec),
    )
    boot_s = time.perf_counter() - start
    free, total = torch.cuda.mem_get_info()
    cache = llm.llm_engine.vllm_config.cache_config
    write_row(
        out,
        keys
        | {
            "cell": "boot",
            "outcome": "measured",
            "boot_s": round(boot_s, 2),
            "gpu_used_bytes": total - free,
            "kv_cache_tokens": cache.num_gpu_blocks * cache.block_size,
            "largest_graph_rows": max(llm.llm_engine.vllm_config.compilation_config.cudagraph_capture_sizes or [0]),
        },
    )
    warm_up(llm)
    for share in spec["shares"]:
        label = set_share(spec, share)
        for batch in spec["batches"]:
            for row in decode_cell(llm, spec, batch):
                write_row(out, keys | {"routing": label, "share": share} | row)
        for prompt in spec["prompts"] if spec["arm"] != "picks" else []:
            write_row(out, keys | {"routing": label, "share": share} | prefill_cell(llm, prompt))
    if spec["outputs"] and spec["arm"] in ("base", "ours"):
        write_outputs(llm, spec, out)


def arm_settings(spec: dict[str, Any]) -> dict[str, Any]:
    """The arm's own settings; offloaders move as many bytes of experts as the plan."""
    if spec["arm"] == "uva":
        plan = Plan.model_validate_json(Path(spec["plan"]).read_text())
        return {
            "offload_backend": "uva",
            "cpu_offload_gb": plan.host_bytes / spec["tp"] / 2**30,
            "cpu_offload_params": {"experts"},
        }
    if spec["arm"] == "prefetch":
        # 7 of every 24 layers: 29.2 % of the experts, the nearest to 38 of 128 that whole layers allow.
        return {
            "offload_backend": "prefetch",
            "offload_group_size": 24,
            "offload_num_in_group": 7,
            "offload_prefetch_step": 1,
            "offload_params": {"w13_weight", "w2_weight"},
        }
    if spec["arm"] == "picks":
        return {"enable_return_routed_experts": True}
    return {}


def set_share(spec: dict[str, Any], share: float | None) -> str | None:
    """Make the routing in force have this cold share; returns its label."""
    if share is None:
        return routing.routing_in_force()
    if share != spec["shares"][0] or len(spec["shares"]) > 1:
        if spec["tp"] != 1:
            raise ValueError("the share can change between cells only where the engine is in this process")
        from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator

        RoutingSimulator._routing_strategies[routing.STRATEGY].set_share(share)  # type: ignore[attr-defined]
    return routing.SyntheticRouting(spec["host_experts"], share).label


def prompt_of(tokens: int, seed: int) -> dict[str, list[int]]:
    draw = random.Random(seed)
    return {"prompt_token_ids": [draw.randrange(100, 150000) for _ in range(tokens)]}


_requests = iter(range(10**9))


def stream(llm: Any, prompts: list[dict[str, list[int]]], tokens: int, **sampling: Any) -> dict[str, Any]:
    """Send prompts together, step the engine until all are answered; times of first and last output per stream."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    names = [f"r{next(_requests)}" for _ in prompts]
    start = time.perf_counter()
    for i, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        settings = {"temperature": 1.0, "seed": i} | sampling
        engine.add_request(name, prompt, SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, **settings))
    marks: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
    final: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            marks[output.request_id].append((time.perf_counter() - start, len(output.outputs[0].token_ids)))
            final[output.request_id] = output
    return {"marks": [marks[name] for name in names], "outputs": [final[name] for name in names]}


def warm_up(llm: Any) -> None:
    """The first prefill after a boot compiles kernels; every batch size and a long prompt go through once, unmeasured."""
    for batch in (1, 4, 8):
        stream(llm, [prompt_of(DECODE_PROMPT_TOKENS, 900 + i) for i in range(batch)], 4)
    stream(llm, [prompt_of(3000, 950)], 2)


def decode_cell(llm: Any, spec: dict[str, Any], batch: int) -> list[dict[str, Any]]:
    """TPOT of `batch` streams after 512 tokens each: (last - first) / (tokens - tokens at first), per stream."""
    prompts = [prompt_of(DECODE_PROMPT_TOKENS, 1000 * batch + i) for i in range(batch)]
    tokens = (PREFETCH_TOKENS if spec["arm"] == "prefetch" else STREAM_TOKENS)[batch]
    result = stream(llm, prompts, tokens)
    tpot = [(m[-1][0] - m[0][0]) / (m[-1][1] - m[0][1]) for m in result["marks"]]
    gaps = [b[0] - a[0] for m in result["marks"] for a, b in pairwise(m[4:])]
    text = [list(o.outputs[0].token_ids) for o in result["outputs"]]
    row = {
        "cell": f"decode-{batch}",
        "batch": batch,
        "prompt_tokens": DECODE_PROMPT_TOKENS,
        "output_tokens": tokens,
        "tpot_s": statistics.median(tpot),
        "median_gap_s": statistics.median(gaps),
        "tokens_sha256": hashlib.sha256(json.dumps(text).encode()).hexdigest(),
    }
    if spec["arm"] == "picks":
        row |= touched(spec, result["outputs"])
    return [row]


def touched(spec: dict[str, Any], outputs: list[Any]) -> dict[str, Any]:
    """Host experts and all experts read per decode step, distinct within a layer and step, from the returned picks."""
    import numpy

    plan = Plan.model_validate_json(Path(spec["plan"]).read_text())
    hosts = [set(ids) for ids in plan.layers.values()]
    steps = min(o.outputs[0].routed_experts.shape[0] for o in outputs) - DECODE_PROMPT_TOKENS
    host, distinct, picks, cold_picks = [], [], 0, 0
    for step in range(1, steps):
        rows = [o.outputs[0].routed_experts[DECODE_PROMPT_TOKENS + step] for o in outputs]
        layers = [set(numpy.concatenate([row[i] for row in rows]).tolist()) for i in range(len(hosts))]
        host.append(sum(len(ids & hosts[i]) for i, ids in enumerate(layers)))
        distinct.append(sum(map(len, layers)))
        picks += sum(row.size for row in rows)
        cold_picks += sum(int(e) in hosts[i] for row in rows for i in range(len(hosts)) for e in row[i])
    return {
        "host_experts_per_step": statistics.mean(host),
        "experts_per_step": statistics.mean(distinct),
        "host_bytes_per_step": statistics.mean(host) * plan.model.expert_bytes,
        "host_share_of_picks": cold_picks / picks,
    }


def prefill_cell(llm: Any, tokens: int) -> dict[str, Any]:
    """TTFT of one prompt, three times with different text."""
    times = [stream(llm, [prompt_of(tokens, 7000 + i)], 1)["marks"][0][0][0] for i in range(3)]
    return {"cell": f"prefill-{tokens}", "prompt_tokens": tokens, "ttft_s": statistics.median(times), "ttft_all_s": times}


def write_outputs(llm: Any, spec: dict[str, Any], out: Path) -> None:
    """Greedy tokens and log probabilities, exactly; with a plan once per way of reading host experts.

    The last way, "zeroed", first overwrites the host experts: a comparison that cannot tell it from the others is void.
    """
    modes: dict[str, int | None] = {"measured": -1}
    if spec["arm"] == "ours" and spec["tp"] == 1:
        modes = {"in_place": None, "staged": 1, "zeroed": None}
    for mode, rows in modes.items():
        if rows != -1:
            from spillway.placement.routed_experts import placement

            owner = placement()
            assert owner.switch_over is not None
            owner.switch_over = owner.switch_over.model_copy(update={"rows": rows})
            if mode == "zeroed":
                zero_host_experts(owner)
        answers = []
        for tokens in (40, 700, 3500):
            result = stream(llm, [prompt_of(tokens, 40 + tokens)], 24, temperature=0.0, seed=None, logprobs=5)
            answer = result["outputs"][0].outputs[0]
            steps = [sorted((t, p.logprob.hex()) for t, p in step.items()) for step in answer.logprobs]
            answers.append({"tokens": list(answer.token_ids), "logprobs": steps})
        (out / f"outputs-{spec['arm']}-{mode}.json").write_text(json.dumps(answers))


def zero_host_experts(owner: Any) -> None:
    import torch

    with torch.inference_mode():
        for layer in owner.layers.values():
            for expert in layer.host:
                layer.tensors["w2_weight"].tensor[expert].view(torch.uint8).zero_()


def compare_outputs(out: Path) -> None:
    """A row per way of reading host experts: whether tokens and log probabilities equal those of all in VRAM."""
    reference = out / "outputs-base-measured.json"
    if not reference.exists():
        return
    expected = json.loads(reference.read_text())
    for path in sorted(out.glob("outputs-ours-*.json")):
        found = json.loads(path.read_text())
        write_row(
            out,
            {
                "arm": "ours",
                "cell": path.stem,
                "prompts": len(found),
                "distinct_tokens": len({t for a in found for t in a["tokens"]}),
                "same_tokens": [a["tokens"] == b["tokens"] for a, b in zip(found, expected, strict=True)],
                "same_logprobs": [a["logprobs"] == b["logprobs"] for a, b in zip(found, expected, strict=True)],
            },
        )


def summary(out: Path) -> str:
    """The table of OUT/rows.jsonl, milliseconds, medians over boots.

    `line` is what the link allows. Decode: all in VRAM + host bytes touched / rate at which kernels read the host; the
    bytes are what the arm `picks` counted, or (marked ~) expected of independent picks, n (1 - (1 - k s / n)^batch) of
    a layer's n host experts. Prefill: the larger of all in VRAM and one copy of all host bytes per 8,192 tokens.
    """
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    plan = Plan.model_validate_json((out / "plan.json").read_text())
    proof = json.loads(next(out.glob("proof-*/rank0.json")).read_text())
    cells: dict[tuple[str, float], dict[str, list[float]]] = {}
    counted: dict[tuple[str, float], float] = {}
    for row in rows:
        if row["cell"].startswith(("decode", "prefill")) and row["share"] is not None:
            key = (row["cell"], row["share"])
            if row["arm"] == "picks":
                counted[key] = row["host_bytes_per_step"]
            else:
                cells.setdefault(key, {}).setdefault(row["arm"], []).append(row.get("tpot_s", row.get("ttft_s")))
    lines = ["| cell | share | base | ours | boots | line | ours/line | ours/base | uva | prefetch |", "|---" * 10 + "|"]
    for (cell, share), arms in sorted(cells.items()):
        ms = {arm: 1e3 * statistics.median(values) for arm, values in arms.items()}
        if "base" not in ms or "ours" not in ms:
            continue
        mark, size = "", int(cell.split("-")[1])
        if cell.startswith("decode"):
            touched_bytes = counted.get((cell, share))
            if touched_bytes is None:
                mark, touched_bytes = "~", expected_bytes(plan, share, size)
            line = ms["base"] + 1e3 * touched_bytes / proof["host_read_bytes_per_s"]
        else:
            line = max(ms["base"], 1e3 * -(-size // 8192) * plan.host_bytes / proof["host_copy_bytes_per_s"])
        others = " | ".join(f"{ms[arm]:.2f}" if arm in ms else "" for arm in ("uva", "prefetch"))
        lines.append(
            f"| {cell} | {share:g} | {ms['base']:.2f} | {ms['ours']:.2f} | {len(arms['ours'])} | {mark}{line:.2f} | "
            f"{ms['ours'] / line:.3f} | {ms['ours'] / ms['base']:.2f} | {others} |"
        )
    return "\n".join(lines)


def expected_bytes(plan: Plan, share: float, batch: int) -> float:
    """Host bytes touched by a decode step of independent rows whose picks fall on host experts with this share."""
    hosts = [len(ids) for ids in plan.layers.values() if ids]
    return plan.model.expert_bytes * sum(n * (1 - (1 - plan.model.top_k * share / n) ** batch) for n in hosts)


if __name__ == "__main__":
    main()
