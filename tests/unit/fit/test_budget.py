"""What lies where, at which stage a server fails, the smallest plan, and the time of a decode step."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.fit.architectures import describe
from spillway.fit.budget import (
    GIB,
    Capacity,
    Demand,
    OnHost,
    budget,
    capacity_of,
    dense_bytes,
    expert_value_bytes,
    page_rounding,
    stage_of_log,
)
from spillway.fit.placing import Rates, all_on_host, decode_step, smallest_plan, spread
from spillway.fit.shapes import Model
from spillway.fit.weights import FitError
from spillway.placement.layout import plan_layout
from spillway.spec.host import Host

ONE = Demand(context_tokens=4096, sequences=1, cache="bf16")
ROOMY = Capacity(gpus=1, gpu_bytes=140 * GIB, usable_bytes=130 * GIB, host_bytes=256 * GIB)


@pytest.fixture
def model(qwen3_30b: dict[str, Any]) -> Model:
    return describe(qwen3_30b)


def host(**changes: Any) -> Host:
    engine = {"environment": "engine-cuda", "module": "m", "ready_timeout_s": 60.0, "arguments": changes.pop("arguments", {})}
    gpus = {"name": "NVIDIA H200", "count": 2, "memory_gib": 139.8}
    return Host.model_validate({"title": "a host", "measured": False, "gpus": gpus, "engine": engine} | changes)


def test_moved_experts_leave_the_gpu_and_reach_the_host(model: Model) -> None:
    without, plan = budget(model, ROOMY, ONE, OnHost()), budget(model, ROOMY, ONE, OnHost(spread(model, 1000)))
    moved = 1000 * 3 * 2048 * 768 * 2
    assert without.total("gpu") - plan.total("gpu") == moved == plan.total("host")


def test_scales_stay_on_the_gpu(qwen3_30b: dict[str, Any]) -> None:
    quantised = qwen3_30b | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    model = describe(quantised)
    found = budget(model, ROOMY, ONE, all_on_host(model, OnHost()))
    assert found.by_component("gpu")["routed experts"] == 48 * 128 * 3 * (2048 // 128) * (768 // 128) * 4


def test_each_gpu_has_its_share_and_the_host_has_all(model: Model) -> None:
    two = Capacity(2, ROOMY.gpu_bytes, ROOMY.usable_bytes, ROOMY.host_bytes)
    found = budget(model, two, ONE, OnHost(spread(model, 1000)))
    assert found.total("host") == 1000 * 3 * 2048 * 768 * 2
    assert expert_value_bytes(model, 2) * 2 == expert_value_bytes(model, 1)


def test_pages_round_up_as_the_layout_says(model: Model) -> None:
    ids = tuple(range(5))
    gate_up, down = 2 * 2048 * 768 * 2, 2048 * 768 * 2
    layouts = [plan_layout(128, size, ids) for size in (gate_up, down)]
    gpu, on_host = page_rounding(model, 1, OnHost({3: ids}, paged=True))
    assert gpu == sum(layout.gpu_rounding_bytes for layout in layouts)
    assert on_host == sum(layout.host_rounding_bytes for layout in layouts)
    found = budget(model, ROOMY, ONE, OnHost({3: ids}, paged=True))
    expected = {"routed experts": 5 * (gate_up + down), "page rounding": on_host}
    assert found.by_component("host") == {name: size for name, size in expected.items() if size}
    assert gpu + on_host > 0


@pytest.mark.parametrize(
    ("usable_gib", "gpu_gib", "host_gib", "stage"),
    [
        (130, 140, 256, "fits"),
        (50, 55, 256, "weights"),
        (57, 60, 256, "no room for KV cache"),
        (58.5, 60, 256, "KV cache of one sequence"),
        (62, 70, 256, "KV cache of all sequences"),
        (130, 140, 1, "host memory"),
    ],
)
def test_stages_in_the_order_of_a_start(model: Model, usable_gib: float, gpu_gib: float, host_gib: float, stage: str) -> None:
    # 56.9 GiB of weights, 0.5 of headroom, 3 of KV cache for each of 2 sequences
    capacity = Capacity(1, round(gpu_gib * GIB), round(usable_gib * GIB), round(host_gib * GIB))
    on_host = OnHost(spread(model, 500)) if stage == "host memory" else OnHost()
    demand = Demand(context_tokens=32768, sequences=2, cache="bf16")
    assert budget(model, capacity, demand, on_host, [("headroom", GIB // 2, "stated")]).stage == stage


@pytest.mark.parametrize(
    ("log", "stage"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB", "weights"),
        ("ValueError: No available memory for the cache blocks. Try increasing", "no room for KV cache"),
        (
            "To serve at least one request with the model's max seq len (8192), (0.02 GiB KV cache is needed, which is "
            "larger than the available KV cache memory (0.01 GiB).",  # vLLM 0.32 on the CPU, 8 MiB for a cache of 16
            "KV cache of one sequence",
        ),
        ("everything is well", None),
    ],
)
def test_what_a_log_says_is_lacking(log: str, stage: str | None) -> None:
    assert stage_of_log(log) == stage


def test_capacity_of_a_host_with_gpus() -> None:
    found = capacity_of(host(host_memory_gib=256.0, arguments={"tensor-parallel-size": 1, "gpu-memory-utilization": 0.8}))
    assert found == Capacity(1, round(139.8 * GIB), round(0.8 * round(139.8 * GIB)), 256 * GIB)
    assert capacity_of(host()).gpus == 2


def test_a_stated_size_of_the_cache_bounds_it(model: Model) -> None:
    one = model.cache("bf16", 1).bytes(4096, 1)
    for limit, stage in ((one - 1, "KV cache of one sequence"), (one, "fits")):
        capacity = capacity_of(host(gpus=None, host_memory_gib=64.0, arguments={"kv-cache-memory-bytes": limit}))
        assert budget(model, capacity, ONE, OnHost()).stage == stage
    with pytest.raises(FitError, match="kv-cache-memory-bytes: found '1G'"):
        capacity_of(host(arguments={"kv-cache-memory-bytes": "1G"}))


def test_a_host_without_gpus_is_its_memory(model: Model) -> None:
    capacity = capacity_of(host(gpus=None, host_memory_gib=64.0))
    found = budget(model, capacity, ONE, OnHost())
    assert (found.capacity.main, found.total("gpu"), found.stage) == ("host", 0, "fits")
    with pytest.raises(FitError, match="this host has no GPUs"):
        budget(model, capacity, ONE, OnHost(spread(model, 1)))


@pytest.mark.parametrize("arguments", [{"gpu-memory-utilization": 1.5}, {"tensor-parallel-size": 4}])
def test_arguments_that_no_host_has(arguments: dict[str, Any]) -> None:
    with pytest.raises(FitError, match=next(iter(arguments))):
        capacity_of(host(arguments=arguments))


@pytest.mark.parametrize(
    ("on_host", "message"),
    [
        (OnHost({48: (0,)}), r"layers \[48\] hold no routed experts"),
        (OnHost({0: (128,)}), r"ids \[128\] are outside 0\.\.127"),
        (OnHost({0: (1, 1)}), "repeated"),
        (OnHost(components=frozenset({"engram tables"})), "the model has no engram tables"),
    ],
)
def test_plans_for_another_model(model: Model, on_host: OnHost, message: str) -> None:
    with pytest.raises(FitError, match=message):
        budget(model, ROOMY, ONE, on_host)


@settings(max_examples=40, deadline=None)
@given(gib=st.floats(1, 70), paged=st.booleans(), gpus=st.sampled_from([1, 2]))
def test_the_smallest_plan_is_the_smallest(gib: float, paged: bool, gpus: int) -> None:
    model = describe({
        "architectures": ["Qwen3MoeForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 151936, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "num_key_value_heads": 4, "hidden_size": 2048,
        "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
    })  # fmt: skip
    capacity = Capacity(gpus, round(gib * GIB), round(gib * GIB), 256 * GIB)
    start = OnHost(paged=paged)
    found = smallest_plan(model, capacity, ONE, start, ())
    everything = budget(model, capacity, ONE, all_on_host(model, start))
    if found is None:
        assert everything.spare_bytes < 0 or budget(model, capacity, ONE, start).spare_bytes >= 0
        return
    plan, placed = found
    assert placed.fits
    fewer = OnHost(spread(model, plan.expert_count - 1), paged=paged)
    assert budget(model, capacity, ONE, fewer).spare_bytes < 0


def test_a_host_without_room_for_the_smallest_plan(model: Model) -> None:
    found = smallest_plan(model, Capacity(1, 20 * GIB, 20 * GIB, 10 * GIB), ONE, OnHost(), ())
    assert found is not None
    assert found[1].stage == "host memory"
    assert found[1].margin == (10 * GIB - found[1].total("host"), "of host memory")


def test_no_plan_where_none_is_needed(model: Model) -> None:
    assert smallest_plan(model, ROOMY, ONE, OnHost(), ()) is None


@given(experts=st.integers(0, 6144))
@settings(max_examples=50, deadline=None)
def test_spread_moves_as_many_as_asked_and_evenly(experts: int) -> None:
    layers = describe({
        "architectures": ["MixtralForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 32, "hidden_size": 16,
        "intermediate_size": 16, "num_hidden_layers": 48, "num_attention_heads": 1, "num_key_value_heads": 1,
        "num_local_experts": 128, "num_experts_per_tok": 2,
    })  # fmt: skip
    counts = [len(ids) for ids in spread(layers, experts).values()]
    assert sum(counts) == experts
    assert max(counts) - min(counts) <= 1


def test_more_experts_than_there_are(model: Model) -> None:
    with pytest.raises(FitError, match="6145 experts to move: the model has 6144"):
        spread(model, 6145)


def test_decode_step_of_one_token_by_hand(deepseek_v41: dict[str, Any]) -> None:
    # 40 layers x 6 experts x 18,800,640 / 2 bytes of FP4 values, 6.4 % of them on the host, two GPUs
    model = describe(deepseek_v41)
    expert = 3 * 5120 * 2304 / 2 / 2
    assert expert_value_bytes(model, 2) == expert
    step = decode_step(model, 2, rows=1, cold_share=0.064, rates=Rates(memory=1.5e12, host=25e9))
    host_s = 40 * 6 * 0.064 * expert / 25e9
    memory_s = (40 * 6 * 0.936 * expert + dense_bytes(model, 2)) / 1.5e12
    assert step.summed_s == pytest.approx(host_s + memory_s)
    assert step.overlapped_s == pytest.approx(max(host_s, memory_s))


def test_cold_experts_are_never_more_than_the_distinct_ones(model: Model) -> None:
    rates = Rates(memory=4.5e12, host=50e9)
    everything = decode_step(model, 1, rows=64, cold_share=1.0, rates=rates)
    distinct = 128 * (1 - (1 - 8 / 128) ** 64)
    host_s = 48 * distinct * expert_value_bytes(model, 1) / rates.host
    assert everything.summed_s == pytest.approx(host_s + dense_bytes(model, 1) / rates.memory)


def test_a_share_is_from_0_to_1(model: Model) -> None:
    with pytest.raises(FitError, match="from 0 to 1"):
        decode_step(model, 1, 1, 1.5, Rates(1.0, 1.0))


def test_decode_step_agrees_with_a_measured_one(qwen3_30b: dict[str, Any]) -> None:
    # One H200, 24 layers of this shape, bf16, dummy weights, about 5 % of picks on the host: 2.74 ms all in GPU memory,
    # 4.49 ms placed by pages. The difference is the link's time for the cold experts.
    model = describe(qwen3_30b | {"num_hidden_layers": 24})
    step = decode_step(model, 1, rows=1, cold_share=0.05, rates=Rates(memory=4.5e12, host=51e9))
    assert step.summed_s - step.resident_s == pytest.approx(4.49e-3 - 2.74e-3, rel=0.05)


def test_decode_step_bound_by_the_link_agrees_with_a_measured_one(qwen3_235b: dict[str, Any]) -> None:
    # One H200, this shape in block FP8, dummy weights (routing near uniform), 44.5 % of experts on the host: 125 ms.
    model = describe(qwen3_235b | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    assert expert_value_bytes(model, 1) * model.routed_experts / GIB == pytest.approx(211, abs=0.6)
    step = decode_step(model, 1, rows=1, cold_share=0.445, rates=Rates(memory=4.5e12, host=51e9))
    assert step.overlapped_s == pytest.approx(0.125, rel=0.02)
