"""What the environment and the engine's settings may say: refusals, host memory, synthetic routing, switch-over."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.placement.host_memory import VARIABLE, HostMemoryError, available_bytes, require_host_memory
from spillway.placement.plan import ModelIdentity, PlanError
from spillway.placement.refusals import refusals, refuse_method
from spillway.placement.routing import SyntheticRouting, routing_in_force
from spillway.placement.switch_over import crossing, rows_to_time


def config(**changes):
    """The settings of a server that may have a plan, with dotted changes."""
    settings = {
        "parallel_config.enable_expert_parallel": False,
        "parallel_config.enable_eplb": False,
        "parallel_config.pipeline_parallel_size": 1,
        "parallel_config.data_parallel_size": 1,
        "parallel_config.use_ubatching": False,
        "model_config.enable_sleep_mode": False,
        "offload_config.uva": SimpleNamespace(cpu_offload_gb=0),
        "offload_config.prefetch": SimpleNamespace(offload_group_size=0),
        "lora_config": None,
        "weight_transfer_config": None,
    } | {key.replace("__", "."): value for key, value in changes.items()}
    made = SimpleNamespace(parallel_config=SimpleNamespace(), model_config=SimpleNamespace(), offload_config=SimpleNamespace())
    for key, value in settings.items():
        *path, last = key.split(".")
        setattr(getattr(made, path[0]) if path else made, last, value)
    return made


def test_a_plain_cuda_server_may_have_a_plan():
    assert refusals(config(), is_cuda=True) == []


def test_a_host_without_cuda_is_told_that_it_needs_a_gpu():
    assert any("needs a CUDA GPU" in reason for reason in refusals(config(), is_cuda=False))


@pytest.mark.parametrize(
    ("setting", "value", "flag"),
    [
        ("parallel_config__enable_expert_parallel", True, "--enable-expert-parallel"),
        ("parallel_config__enable_eplb", True, "--enable-eplb"),
        ("parallel_config__pipeline_parallel_size", 2, "--pipeline-parallel-size"),
        ("parallel_config__data_parallel_size", 2, "--data-parallel-size"),
        ("parallel_config__use_ubatching", True, "--enable-dbo"),
        ("lora_config", object(), "--enable-lora"),
        ("weight_transfer_config", object(), "weight transfer"),
        ("model_config__enable_sleep_mode", True, "--enable-sleep-mode"),
        ("offload_config__uva", SimpleNamespace(cpu_offload_gb=1.0), "--cpu-offload-gb"),
        ("offload_config__prefetch", SimpleNamespace(offload_group_size=8), "--offload-"),
    ],
)
def test_each_setting_that_rules_a_plan_out_is_named(setting, value, flag):
    (reason,) = refusals(config(**{setting: value}), is_cuda=True)
    assert flag in reason


def method(kind, **fields):
    made = type(kind, (), {})()
    for name, value in fields.items():
        setattr(made, name, SimpleNamespace(value=value) if name.endswith("backend") else value)
    return made


def test_only_backends_that_were_tried_are_let_pass():
    assert refuse_method(method("UnquantizedFusedMoEMethod", unquantized_backend="TRITON")) is None
    assert refuse_method(method("Fp8MoEMethod", fp8_backend="TRITON", block_quant=True)) is None
    reason = refuse_method(method("UnquantizedFusedMoEMethod", unquantized_backend="FlashInfer CUTLASS"))
    assert reason is not None and "FlashInfer CUTLASS" in reason and "--moe-backend triton" in reason
    assert "DEEPGEMM" in (refuse_method(method("Fp8MoEMethod", fp8_backend="DEEPGEMM", block_quant=True)) or "")
    assert "block" in (refuse_method(method("Fp8MoEMethod", fp8_backend="TRITON", block_quant=False)) or "")
    assert "AWQMoEMethod" in (refuse_method(method("AWQMoEMethod")) or "")


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  200 kB\nMemAvailable:  100 kB\n")
    return tmp_path


def test_available_memory_is_the_kernels_estimate_or_the_groups_limit(host):
    assert available_bytes(host) == 100 * 1024
    (host / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert available_bytes(host) == 100 * 1024
    (host / "sys/fs/cgroup/memory.max").write_text("51200\n")
    (host / "sys/fs/cgroup/memory.current").write_text("1200\n")
    assert available_bytes(host) == 50000


def test_too_little_memory_says_how_much_for_all_ranks(host, monkeypatch):
    require_host_memory(51200, 2, host)
    with pytest.raises(HostMemoryError, match=r"2 x .* SPILLWAY_HOST_MEMORY_BYTES"):
        require_host_memory(51201, 2, host)
    monkeypatch.setenv(VARIABLE, "200000")
    require_host_memory(100000, 2, host)
    monkeypatch.setenv(VARIABLE, "plenty")
    with pytest.raises(HostMemoryError, match="plenty"):
        available_bytes(host)


def test_routing_round_trips_through_its_setting():
    routing = SyntheticRouting(38, 0.05, 3)
    assert SyntheticRouting.parse(routing.setting) == routing
    assert SyntheticRouting.parse("unpopular=4,share=0.5") == SyntheticRouting(4, 0.5, 0)


@pytest.mark.parametrize(
    "setting",
    [
        "",
        "share=0.5",
        "unpopular=4",
        "unpopular=4,share=2",
        "unpopular=0,share=0.1",
        "unpopular=4,share=0.1,x=1",
        "unpopular=4,share=0.1,shift_every_s=0",
        "unpopular=4,share=0.1,shift_every_s=60,sets=1",
    ],
)
def test_a_routing_that_does_not_parse_is_an_error(setting):
    with pytest.raises(PlanError, match="SPILLWAY_ROUTING"):
        SyntheticRouting.parse(setting)


def test_routing_is_labelled_wherever_it_is_in_force(monkeypatch):
    monkeypatch.delenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", raising=False)
    assert routing_in_force() is None
    monkeypatch.setenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "uniform_random")
    assert routing_in_force() == "synthetic: vLLM's strategy uniform_random"
    monkeypatch.setenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "spillway")
    monkeypatch.setenv("SPILLWAY_ROUTING", "unpopular=38,share=0.05")
    assert routing_in_force() == "synthetic: 38 experts (seed 0) get 0.05 of picks"


def test_unpopular_experts_can_take_turns_by_the_clock():
    routing = SyntheticRouting(38, 0.05, 3, shift_every_s=60.0, sets=3)
    assert SyntheticRouting.parse(routing.setting) == routing
    assert [routing.turn(t) for t in (0.0, 59.9, 60.0, 120.0, 179.0, 180.0)] == [0, 0, 1, 2, 2, 0]
    sets = [routing.experts(128, turn) for turn in range(3)]
    assert sets[0] == SyntheticRouting(38, 0.05, 3).experts(128), "plans are made for the first set"
    assert len({frozenset(each) for each in sets}) == 3 and all(len(each) == 38 for each in sets)
    assert SyntheticRouting(38, 0.05).turn(1e9) == 0
    assert routing.label.endswith("get 0.05 of picks, 3 sets of them in turn, 60 s each")


def test_synthetic_counts_give_the_unpopular_their_share():
    model = ModelIdentity(config_sha256="0" * 64, experts=128, top_k=8, expert_bytes=1)
    routing = SyntheticRouting(38, 0.05)
    (layer,) = routing.counts(model, ("a",)).layers.values()
    unpopular = routing.experts(128)
    assert len(unpopular) == 38 and list(unpopular) != list(range(90, 128))
    assert sum(layer.decode[e] for e in unpopular) / sum(layer.decode) == pytest.approx(0.05, abs=1e-6)


def test_some_expert_must_stay_popular():
    with pytest.raises(ValueError, match="some must stay popular"):
        SyntheticRouting(8, 0.5).experts(8)


def test_the_switch_over_is_where_staging_stops_losing():
    rows = (64, 128, 256, 512)
    assert crossing(rows, (1, 2, 4, 8), (3, 3, 3, 3)) == 256
    assert crossing(rows, (9, 9, 9, 9), (3, 3, 3, 3)) == 64
    assert crossing(rows, (1, 1, 1, 1), (3, 3, 3, 3)) is None
    assert crossing(rows, (9, 1, 9, 9), (3, 3, 3, 3)) == 256, "a lucky small step does not count"


@given(st.integers(1, 100_000))
def test_the_largest_step_is_always_timed(limit):
    rows = rows_to_time(limit)
    assert rows[-1] == limit and rows == sorted(set(rows))
