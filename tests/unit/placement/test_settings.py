"""What the environment and the engine's settings may say: refusals, host memory, synthetic routing, switch-over."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.placement.host_memory import (
    VARIABLE,
    HostMemory,
    HostMemoryError,
    available,
    available_bytes,
    require_host_memory,
)
from spillway.placement.plan import ModelIdentity, PlanError
from spillway.placement.refusals import refusals, refuse_method
from spillway.placement.routing import SyntheticRouting, register_strategy, routing_in_force
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


JOB = "system.slice/slurmstepd.scope/job_7"


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  200 kB\nMemAvailable:  100 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"0::/{JOB}/step_0\n")
    return tmp_path


def group(host, folder, limit, use, stat="inactive_file 0\nactive_file 0\n", names=("memory.max", "memory.current")):
    """Make a control group; `folder` is below where they are mounted."""
    made = host / "sys/fs/cgroup" / folder
    made.mkdir(parents=True, exist_ok=True)
    for name, content in zip((*names, "memory.stat"), (f"{limit}\n", f"{use}\n", stat), strict=True):
        (made / name).write_text(content)
    return made


def test_available_memory_is_the_kernels_estimate_where_no_group_leaves_less(host):
    kernel = HostMemory(100 * 1024, f"MemAvailable in {host}/proc/meminfo")
    assert available(host) == kernel, "no control groups are mounted"
    group(host, "", "max", 1200)
    group(host, f"{JOB}/step_0", 999_999, 1200)
    assert available(host) == kernel
    (host / "proc/self/cgroup").unlink()
    group(host, "", 1, 0)
    assert available(host) == kernel, "a kernel without control groups"


@pytest.mark.parametrize("folder", [f"{JOB}/step_0", JOB, "system.slice", ""])
def test_the_process_own_group_and_each_above_it_limits(host, folder):
    for other in (f"{JOB}/step_0", JOB, "system.slice", ""):
        group(host, other, "max", 10)
    limiting = group(host, folder, 51200, 1200)
    assert available(host) == HostMemory(50000, str(limiting / "memory.max"))
    group(host, "another.slice", 7, 0)
    assert available_bytes(host) == 50000, "not a group of this process"


def test_page_cache_of_a_group_can_be_reclaimed(host):
    group(host, JOB, 51200, 51000, "anon 9000\ninactive_file 30000\nactive_file 12000\nslab 5\n")
    assert available_bytes(host) == 51200 - 9000
    group(host, JOB, 51200, 60000)
    assert available_bytes(host) == 0, "a limit that was lowered below the use"
    (group(host, JOB, 51200, 51000) / "memory.stat").unlink()
    assert available_bytes(host) == 200, "how much of it is page cache is not said"


def test_the_first_version_of_control_groups_limits_too(host):
    (host / "proc/self/cgroup").write_text("9:name=systemd:/\n4:cpuset,memory:/docker/1f\n1:cpu:/docker/1f\n0::/\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 300\ntotal_active_file 200\n"
    top = group(host, "memory", 9223372036854771712, 1000, stat, names)
    assert available(host).limit.startswith("MemAvailable")
    # In a container its own group is mounted at the top.
    group(host, "memory", 51200, 1200, stat, names)
    assert available(host) == HostMemory(50500, str(top / "memory.limit_in_bytes"))
    group(host, "memory/docker/1f", 40000, 1500, stat, names)
    assert available_bytes(host) == 39000


def test_too_little_memory_says_how_much_for_all_ranks_and_which_limit_is_the_least(host, monkeypatch):
    require_host_memory(51200, 2, root=host)
    with pytest.raises(HostMemoryError, match=r"2 x .*, MemAvailable in .*/proc/meminfo leaves .* SPILLWAY_HOST_MEMORY_BYTES"):
        require_host_memory(51201, 2, root=host)
    group(host, JOB, 51200, 0)
    with pytest.raises(HostMemoryError, match=r"job_7/memory\.max leaves"):
        require_host_memory(51200, 2, root=host)
    monkeypatch.setenv(VARIABLE, "200000")
    require_host_memory(100000, 2, root=host)
    for wrong in ("plenty", "", "-1", "\u00b2"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(HostMemoryError, match="expected a number of bytes"):
            available_bytes(host)


def test_what_was_placed_before_counts_towards_a_stated_memory_alone(host, monkeypatch):
    """The kernel's estimate has fallen by it already."""
    require_host_memory(51200, 2, placed_bytes=20000, root=host)
    monkeypatch.setenv(VARIABLE, "200000")
    require_host_memory(80000, 2, placed_bytes=20000, root=host)
    with pytest.raises(HostMemoryError, match=r"beside .* placed already\), SPILLWAY_HOST_MEMORY_BYTES leaves"):
        require_host_memory(80001, 2, placed_bytes=20000, root=host)


def test_routing_round_trips_through_its_setting():
    routing = SyntheticRouting(38, 0.05, 3)
    assert SyntheticRouting.parse(routing.setting) == routing
    assert SyntheticRouting.parse("unpopular=4,share=0.5") == SyntheticRouting(4, 0.5, 0)
    exact = SyntheticRouting(38, 0.051234567, shift_every_s=1_234_567.0)
    assert SyntheticRouting.parse(exact.setting) == exact


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


@pytest.mark.parametrize(("strategy", "found"), [(None, "which is not set"), ("uniform_random", "which is 'uniform_random'")])
def test_a_routing_that_the_engine_would_not_use_is_an_error(monkeypatch, strategy, found):
    monkeypatch.delenv("SPILLWAY_ROUTING", raising=False)
    monkeypatch.delenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", raising=False)
    if strategy is not None:
        monkeypatch.setenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", strategy)
    register_strategy()
    monkeypatch.setenv("SPILLWAY_ROUTING", "unpopular=38,share=0.05")
    with pytest.raises(PlanError, match=f"needs VLLM_MOE_ROUTING_SIMULATION_STRATEGY=spillway, {found}"):
        register_strategy()
    monkeypatch.delenv("SPILLWAY_ROUTING")
    monkeypatch.setenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "spillway")
    with pytest.raises(PlanError, match="spillway needs SPILLWAY_ROUTING"):
        register_strategy()


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
