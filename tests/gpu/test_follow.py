"""Experts that change places on a real GPU: right bytes under a captured graph, nothing leaked, the same tokens in vLLM.

PYTHONPATH=workflow python3 -m pytest -q -s tests/gpu/test_follow.py
"""

import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXPERTS, HIDDEN, WIDTH = 32, 2048, 768
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the engine's packages are not on the path")


class Told:
    """A journal in memory."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)


def make(host_copy, classes=1, layers=2):
    """A follower over layers of the 30B shape's experts with random weights, and a copy of these in plain tensors."""
    import numpy as np

    from spillway.placement.checksum import checksum
    from spillway.placement.exchange import ExchangeTensor, Spares
    from spillway.placement.follow import Following, SwapCost
    from spillway.placement.layout import placed_layout
    from spillway.placement.pages import Pages
    from spillway.placement.staging import Staging
    from spillway.placement.swap import ExchangeLayer, Follower

    torch.zeros(1, device="cuda")
    pages, staging = Pages(0), Staging()
    following = Following(decide_steps=1, swaps_per_step=2, classes=classes, host_copy=int(host_copy))
    shapes = {"w13_weight": (EXPERTS, 2 * WIDTH, HIDDEN), "w2_weight": (EXPERTS, HIDDEN, WIDTH)}
    host = [1, 2, 5, 8, 13, 21, 26, 31]
    on_host = np.zeros((layers, EXPERTS), dtype=bool)
    on_host[:, host] = True
    spares, units, plain, made = {}, {}, [], []
    for row in range(layers):
        tensors, weights = {}, {}
        for key, shape in shapes.items():
            like = torch.randn(shape, device="cuda", dtype=torch.bfloat16) / 30
            layout = placed_layout(EXPERTS, like[0].numel() * 2, host, classes)
            if key not in spares:
                spares[key] = Spares(pages, layout, following.swaps_per_step * (1 if host_copy else 2))
                units[key] = [pages.allocate("gpu", layout.unit_bytes, layout.host_units) for _ in (0, 1)]
            tensors[key] = ExchangeTensor(pages, layout, like, units[key][row % 2], host_copy)
            tensors[key].tensor.copy_(like)
            tensors[key].fill_copies(torch.cuda.current_stream())
            weights[key] = like
        staging.layers.append(list(tensors.values()))
        plain.append(weights)

        def read_back(key, expert, tensors=tensors):
            found = tensors[key].tensor[expert]
            return pages.memory_at(found.data_ptr()), checksum(found)

        sums = {(key, e): checksum(t.tensor[e]) for key, t in tensors.items() for e in range(EXPERTS)}
        made.append(ExchangeLayer(f"layer{row}", row, row, tensors, sums, read_back))
    reads = np.zeros_like(on_host, dtype=np.int64)
    follower = Follower(
        following, made, spares, pages, staging, on_host, lambda: reads, SwapCost(9 << 20, 50e9, 55e9, 2, 0.0), Told(), 0,
        lambda proposal: [proposal], lambda rows: rows > 512,
    )  # fmt: skip
    return follower, made, plain, staging


@pytest.fixture
def swaps():
    sys.path.insert(0, str(ROOT / "tests"))
    import random_swaps

    return random_swaps


@pytest.mark.parametrize(("host_copy", "classes"), [(False, 1), (False, 2), (True, 1)])
def test_a_captured_graph_reads_the_right_bytes_through_a_thousand_swaps(host_copy, classes, swaps, capsys):
    follower, layers, plain, staging = make(host_copy, classes)
    x = torch.randn(HIDDEN, 1, device="cuda", dtype=torch.bfloat16)

    def step(tensors):
        hidden = torch.matmul(tensors["w13_weight"], x)
        return torch.matmul(tensors["w2_weight"], hidden[:, :WIDTH] * hidden[:, WIDTH:])

    views = [{key: tensor.tensor for key, tensor in layer.tensors.items()} for layer in layers]
    for view in views:
        step(view)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = [step(view) for view in views]
    swaps.feed(follower, random.Random(1), 2)
    graph.replay()
    torch.cuda.synchronize()
    # Before anything moved; bytes are compared with what was loaded below.
    due = [each.clone() for each in out]
    assert all(torch.allclose(a, step(b), rtol=0.1, atol=0.1) for a, b in zip(due, plain, strict=True))
    torch.cuda.empty_cache()
    slots, free = follower.spare_slots(), torch.cuda.mem_get_info()[0]
    boundaries = []
    while follower.swaps_done < 1000:
        start = time.perf_counter()
        follower.before_step(1)
        boundaries.append(time.perf_counter() - start)
        # Twice, so that the copies of the next swaps run beside kernels that read the same experts.
        graph.replay()
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(out, due, strict=True)), f"step {follower.step}"
        if follower.step % 50 == 0:
            for row, layer in enumerate(layers):
                staging.begin(row)
                for key, tensor in layer.tensors.items():
                    assert torch.equal(tensor.staged, plain[row][key]), f"{key} staged at step {follower.step}"
                staging.end(row)
    swaps.rest(follower)
    for _ in range(5):
        follower.before_step(1)
    assert follower.spare_slots() == slots
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == free, "a swap kept memory"
    records = follower._journal.records
    done = [record for record in records if record.kind == "swap"]
    assert len(done) == follower.swaps_done and all(record.outcome == "done" for record in done)
    audits = [record for record in records if record.kind == "audit"]
    assert len(audits) >= 15 * 4 and all(record.loaded == record.in_place for record in audits)
    for row, layer in enumerate(layers):
        for key, tensor in layer.tensors.items():
            assert torch.equal(tensor.tensor, plain[row][key])
            for e in range(EXPERTS):
                assert (layer.read_back(key, e)[0] == "host") == bool(follower.on_host[row, e])
    maps, copies = (sorted(getattr(record, key) * 1e6 for record in done) for key in ("map_s", "copy_s"))
    with capsys.disabled():
        print(f"\nhost copy {host_copy}, classes {classes}: {len(done)} swaps; mapping {statistics.median(maps):.0f} us "
              f"(p99 {maps[int(0.99 * len(maps))]:.0f}), copies {statistics.median(copies):.0f} us, "
              f"boundary p99 {1e6 * sorted(boundaries)[int(0.99 * len(boundaries))]:.0f} us")  # fmt: skip


@needs_vllm
def test_reads_and_picks_are_counted_inside_a_graph_and_cheaply(tmp_path, capsys):
    from types import SimpleNamespace

    from spillway.placement.counter import ExpertCounter
    from spillway.placement.timing import seconds

    sys.path.insert(0, str(ROOT / "benchmarks"))
    import placement

    (tmp_path / "config.json").write_text(json.dumps(placement.SHAPES["qwen3-30b-a3b"]))
    config = SimpleNamespace(model_config=SimpleNamespace(model=str(tmp_path), revision=None), speculative_config=None)
    counter = ExpertCounter(config)
    layers = [counter.add(f"layer{i}", 128, 8) for i in range(48)]
    picks = torch.stack([torch.randperm(128, device="cuda")[:32].view(4, 8) for _ in range(48)]).to(torch.int32)
    picks[:, 1] = picks[:, 0]

    def step():
        # Each layer's picks are a tensor of the layer's own, as a router's are.
        for count, each in zip(layers, picks, strict=True):
            count(each.clone())

    step()
    torch.cuda.synchronize()
    before = counter.reads().copy()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    due = torch.zeros((48, 128), dtype=torch.int64)
    due.scatter_(1, picks.view(48, 32).cpu().long(), 1)
    assert (counter.reads() - before == 10 * due.numpy()).all()
    bare = torch.cuda.CUDAGraph()
    with torch.cuda.graph(bare):
        kept = [each.clone() for each in picks]
    taken, without = seconds(graph.replay), seconds(bare.replay)
    assert kept[0].shape == (4, 8)
    with capsys.disabled():
        print(f"\ncounting 48 layers: {1e6 * (taken - without):.0f} us a step")
    assert taken - without < 42e-6, "more than 1 % of a step of 4.2 ms"


def run(folder, checkpoint, name, swaps, tp=1, residency="follow,decide_steps=1,swaps_per_step=4"):
    from spillway.placement.discovery import write_discovery

    paths = [*write_discovery(folder / "discovery"), ROOT / "workflow", ROOT / "tests"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    }
    if tp == 1:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if swaps:
        environment |= {
            "SPILLWAY_PLAN": str(folder / "plan.json"),
            "SPILLWAY_PROOF_DIR": str(folder / f"proof-{name}"),
            "SPILLWAY_RESIDENCY": residency,
        }
    request = folder / f"{name}.json"
    request.write_text(json.dumps({"model": str(checkpoint), "swaps": swaps, "tp": tp}))
    done = subprocess.run(
        [sys.executable, str(HERE / "moving.py"), str(request)], env=environment, capture_output=True, text=True, timeout=480
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from spillway.placement import choose
    from spillway.placement.plan import identify_model, moe_layers, read_json

    sys.path.insert(0, str(HERE))
    from test_outputs import write_checkpoint

    folder = tmp_path_factory.mktemp("follow")
    made = write_checkpoint(folder / "checkpoint", "bf16")
    config = read_json(made / "config.json")
    names = moe_layers(config)
    choose.random_experts(identify_model(config), names, len(names) * 9, 0).save(folder / "plan.json")
    return folder, made


def check(folder, name, moved, plain, ranks, wanted):
    from spillway.placement.plan import load_plan
    from spillway.placement.proof import require_journals, require_proof

    (before, after) = moved["states"]
    assert all(state[3] is None for state in after), after
    assert after[0][0] >= wanted and [s[1] for s in before] == [s[1] for s in after], "a spare slot was leaked"
    for answer in moved["answers"]:
        for found, due in zip(answer, plain["answers"][0], strict=True):
            length = min(len(found), len(due))
            assert found[:length] == due[:length], "tokens or log probabilities differ from those without a plan"
    plan = load_plan(folder / "plan.json")
    proofs = require_proof(plan, folder / f"proof-{name}", ranks)
    assert require_journals(plan, proofs, folder / f"proof-{name}").swaps >= wanted


@needs_vllm
@pytest.mark.parametrize("residency", ["follow,decide_steps=1,swaps_per_step=4", "follow,decide_steps=1,host_copy=1"])
def test_a_thousand_swaps_in_vllm_change_no_token(checkpoint, residency):
    folder, made = checkpoint
    plain = run(folder, made, "plain", 0)
    moved = run(folder, made, "moving", 1000, residency=residency)
    check(folder, "moving", moved, plain, 1, 1000)


@needs_vllm
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_ranks_swap_the_same_experts_before_the_same_steps(checkpoint):
    folder, made = checkpoint
    plain = run(folder, made, "plain2", 0, tp=2)
    moved = run(folder, made, "moving2", 300, tp=2)
    check(folder, "moving2", moved, plain, 2, 300)
