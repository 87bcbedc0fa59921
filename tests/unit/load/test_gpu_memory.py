"""Memory of the GPUs that a server sees, and GPUs that fail; NVML is made up, since CI has no GPU."""

import asyncio
import contextlib
import threading
import time
from types import SimpleNamespace

import pynvml
import pytest

from spillway.load.telemetry import _READINGS, GpuSampler, gpu_memory_bytes, sample_gpus


@pytest.mark.parametrize(("visible", "due"), [(None, [10, 11, 12]), ("2", [12]), ("2,0", [12, 10]), ("", [])])
def test_only_visible_gpus_count(monkeypatch: pytest.MonkeyPatch, visible: str | None, due: list[int]) -> None:
    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=10 + gpu),
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_memory_bytes() == due


def fail(code: int) -> None:
    raise pynvml.NVMLError(code)


def test_a_gpu_that_is_lost_leaves_empty_readings_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda gpu: SimpleNamespace(used=10))
    for name in ("PcieThroughput", "ClockInfo", "PowerUsage", "UtilizationRates", "Temperature"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda *_: fail(pynvml.NVML_ERROR_GPU_IS_LOST))
    [row] = sample_gpus([0], 0.0)
    assert {name: row[name] for name in _READINGS} == dict.fromkeys(_READINGS) | {"memory_used_bytes": 10}


def test_a_driver_that_does_not_answer_ends_no_cell_but_is_no_host_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: fail(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))
    sampler = GpuSampler(0.0)
    asyncio.run(sampler.run())
    assert sampler.rows == []
    with pytest.raises(pynvml.NVMLError):
        gpu_memory_bytes()


def test_nvml_is_shut_down_only_when_no_thread_asks_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading in flight when a cell ended met an NVML that was gone, which ended the process with a segmentation fault."""
    events = []
    asked = threading.Event()

    def slow(gpu: int) -> SimpleNamespace:
        asked.set()
        time.sleep(0.2)
        events.append("answered")
        return SimpleNamespace(used=10)

    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: events.append("shut down"),
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": slow,
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    for name in ("PcieThroughput", "ClockInfo", "PowerUsage", "UtilizationRates", "Temperature"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda *_: fail(pynvml.NVML_ERROR_NOT_SUPPORTED))

    async def cancel_while_asked() -> None:
        sampling = asyncio.create_task(GpuSampler(0.0).run())
        await asyncio.to_thread(asked.wait)
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling

    asyncio.run(cancel_while_asked())
    assert events == ["answered", "shut down"]
