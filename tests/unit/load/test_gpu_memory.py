"""Memory of the GPUs that a server sees; NVML is made up, since CI has no GPU."""

from types import SimpleNamespace

import pynvml
import pytest

from spillway.load.telemetry import gpu_memory_bytes


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
