"""What runs beside the requests: the client's own processor, memory and event loop, and the GPUs through NVML."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pynvml

TICK_S = 0.02  # how often the event loop is asked whether it is late
SAMPLE_S = 1.0

Rows = list[dict[str, Any]]


class ClientSampler:
    """How busy this process is: one row a second, and how late its event loop came to each tick."""

    def __init__(self, process: int, start_s: float) -> None:
        self.process, self.start_s = process, start_s
        self.rows: Rows = []
        self.delays_s: list[float] = []

    async def run(self) -> None:
        """Sample until cancelled."""
        me = psutil.Process()
        loop = asyncio.get_running_loop()
        ended = False
        while not ended:
            since_s, cpu_s, fresh = time.monotonic(), _cpu_s(me), len(self.delays_s)
            try:
                while time.monotonic() - since_s < SAMPLE_S:
                    due_s = loop.time() + TICK_S
                    await asyncio.sleep(TICK_S)
                    # The selector sleeps in whole milliseconds, so up to one of these is not the loop's fault.
                    self.delays_s.append(max(0.0, loop.time() - due_s))
            except asyncio.CancelledError:
                ended = True  # the last row is for what is left of a second
            now_s = time.monotonic()
            if len(self.delays_s) > fresh:
                self.rows.append(
                    {
                        "at_s": now_s - self.start_s,
                        "process": self.process,
                        "cpu_fraction": (_cpu_s(me) - cpu_s) / (now_s - since_s),
                        "memory_bytes": me.memory_info().rss,
                        "loop_delay_s": max(self.delays_s[fresh:]),
                    }
                )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def gpus() -> Iterator[list[Any]]:
    """NVML's handles of this host's GPUs; none where there is no driver."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield []
        return
    try:
        yield [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def gpu_memory_bytes() -> list[int]:
    """Memory in use, by all processes, on each GPU that a server of this process would see; empty where there is no driver.

    CUDA_VISIBLE_DEVICES may name some of the host's GPUs by their numbers, which are then NVML's (see engine/server.py).
    """
    with gpus() as handles:
        asked = os.environ.get("CUDA_VISIBLE_DEVICES")
        numbers = range(len(handles)) if asked is None else map(int, filter(str.isdigit, asked.split(",")))
        return [int(pynvml.nvmlDeviceGetMemoryInfo(handles[number]).used) for number in numbers]


def sample_gpus(handles: list[Any], start_s: float) -> Rows:
    """One row for each GPU. Takes 40 ms a GPU, over which NVML counts PCIe bytes: call it in a thread."""
    rows = []
    for index, handle in enumerate(handles):
        row: dict[str, Any] = {"at_s": time.monotonic() - start_s, "gpu": index}
        for column, read in _READINGS.items():
            try:
                row[column] = read(handle)
            except pynvml.NVMLError:  # not supported, not permitted, or the GPU is lost: the cell keeps its other rows
                row[column] = None
        rows.append(row)
    return rows


# NVML counts PCIe in KB/s and power in mW.
_READINGS: dict[str, Callable[[Any], Any]] = {
    "memory_used_bytes": lambda gpu: int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used),
    "pcie_received_bytes_per_s": lambda gpu: (
        1000 * int(pynvml.nvmlDeviceGetPcieThroughput(gpu, pynvml.NVML_PCIE_UTIL_RX_BYTES))
    ),
    "pcie_sent_bytes_per_s": lambda gpu: 1000 * int(pynvml.nvmlDeviceGetPcieThroughput(gpu, pynvml.NVML_PCIE_UTIL_TX_BYTES)),
    "sm_clock_mhz": lambda gpu: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
    "memory_clock_mhz": lambda gpu: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM)),
    "power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "busy_fraction": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "temperature_c": lambda gpu: int(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)),
}


class GpuSampler:
    """One row a second for each GPU of this host."""

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.rows: Rows = []

    async def run(self) -> None:
        """Sample until cancelled; returns at once where there is no GPU, or where NVML does not work."""
        with contextlib.suppress(pynvml.NVMLError), gpus() as handles:
            while handles:
                sample = asyncio.create_task(asyncio.to_thread(sample_gpus, handles, self.start_s))
                try:
                    self.rows += await asyncio.shield(sample)
                finally:
                    await asyncio.wait([sample])  # a cancelled wait leaves its thread running: NVML must outlive that
                await asyncio.sleep(SAMPLE_S)
