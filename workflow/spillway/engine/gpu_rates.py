"""How fast each GPU copies from and to host memory, reads it in place, and copies to another GPU: one JSON object.

    python -m spillway.engine.gpu_rates --buffer-mib 1024 --repeats 7 --nodes 0,1

Runs with the engine's interpreter, whose torch it uses. Host memory is mapped page by page from a chosen NUMA node, in the
way in which placement keeps experts there (placement/pages.py), so what is measured is what a placed expert gets. While one
GPU copies, nvidia-smi is asked for the link: an idle card lowers its generation.
"""

import argparse
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from spillway.engine.ask import ask
from spillway.engine.topology import QUERY_GPUS, read_list
from spillway.placement import pages as memory
from spillway.placement.layout import Memory
from spillway.placement.timing import times

UNIT_BYTES = 64 << 20
"""Host and GPU memory come in units; a buffer is a whole number of them."""
QUERY_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Buffer:
    """Mapped memory of one kind, for one GPU."""

    address: int
    size: int
    device: int

    def words(self) -> torch.Tensor:
        """The buffer as float32 values of the GPU, wherever it lies."""
        return memory.bytes_at(self.address, self.size, self.device).view(torch.float32)


def buffer(pages: memory.Pages, kind: Memory, size: int) -> Buffer:
    """Allocate and map a buffer, which stays until the process ends; raises PageError if there is no room."""
    handles = pages.allocate(kind, UNIT_BYTES, size // UNIT_BYTES)
    address = pages.map(size, UNIT_BYTES, [(number * UNIT_BYTES, handle) for number, handle in enumerate(handles)])
    pages.release(handles)
    if (found := pages.memory_at(address)) != kind:
        raise memory.PageError(f"a buffer that was to be {kind} memory is {found} memory")
    return Buffer(address, size, pages.device)


def copy(target: Buffer, source: Buffer) -> Callable[[], object]:
    """The work of copying a buffer on the current stream, by the copy engine."""
    return lambda: memory.copy_on(torch.cuda.current_stream(), target.address, source.address, source.size)


def measured(link: str, source: str, target: str | None, by: str, size: int, seconds: list[float], at_once: int = 1) -> Any:
    """One entry of `rates`."""
    rates = [size / taken for taken in seconds]
    return {"link": link, "source": source, "target": target, "by": by, "at_once": at_once, "rates": rates}


def under_load(work: Callable[[], object], device: int) -> str:
    """What nvidia-smi says of all GPUs while this one copies without a pause."""
    stop = threading.Event()

    def keep_copying() -> None:
        torch.cuda.set_device(device)
        while not stop.is_set():
            work()
            torch.cuda.synchronize()

    thread = threading.Thread(target=keep_copying)
    thread.start()
    try:
        return ask(QUERY_GPUS, QUERY_TIMEOUT_S).out
    finally:
        stop.set()
        thread.join()


def at_once(works: dict[int, Callable[[], object]], repeats: int) -> dict[int, list[float]]:
    """Times of each GPU's work while all of them work: a thread each, started together."""
    found: dict[int, list[float]] = {}
    together = threading.Barrier(len(works))

    def measure(device: int, work: Callable[[], object]) -> None:
        torch.cuda.set_device(device)
        together.wait()
        found[device] = times(work, repeats)

    threads = [threading.Thread(target=measure, args=item) for item in works.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main(argv: list[str]) -> None:
    """Print the JSON object: `gpus` with uuid, near node and nvidia-smi's text under load, and `rates` in bytes/s."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--buffer-mib", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--nodes", default="", help="NUMA nodes of host memory, such as 0-1; left out: each GPU's nearest")
    options = parser.parse_args(argv)
    size = max(1, options.buffer_mib * 2**20 // UNIT_BYTES) * UNIT_BYTES
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU that it can use")
    gpus: list[Any] = []
    rates: list[Any] = []
    upload: dict[int, Callable[[], object]] = {}
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_device(device)
        torch.zeros(1, device="cuda")  # makes the context that the driver's calls need
        name = f"gpu{device}"
        pages = memory.Pages(device)
        nearest = pages.node
        here = buffer(pages, "gpu", size)
        rates.append(measured("gpu memory", name, None, name, size, times(here.words().sum, options.repeats)))
        for node in sorted(read_list(options.nodes)) or [nearest]:
            pages.node = node
            host, there = buffer(pages, "host", size), f"node{node}"
            host.words().zero_()
            up, down = copy(here, host), copy(host, here)
            rates += [
                measured("host to gpu", there, name, name, size, times(up, options.repeats)),
                measured("gpu to host", name, there, name, size, times(down, options.repeats)),
                measured("in place", there, None, name, size, times(host.words().sum, options.repeats)),
            ]
            if node == nearest:
                upload[device] = up
        link = under_load(upload[device], device) if device in upload else ""
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        gpus.append({"index": device, "uuid": uuid, "node": nearest, "under_load": link})
    if len(upload) > 1:
        for device, seconds in at_once(upload, options.repeats).items():
            there = f"node{gpus[device]['node']}"
            rates.append(measured("host to gpu", there, f"gpu{device}", f"gpu{device}", size, seconds, len(upload)))
    rates += between_gpus(size, options.repeats)
    print(json.dumps({"gpus": gpus, "rates": rates, "buffer_bytes": size}))


def between_gpus(size: int, repeats: int) -> list[Any]:
    """Copies from each GPU to each other one; torch takes the direct way where the two can see each other's memory."""
    rates = []
    count = torch.cuda.device_count()
    tensors = [torch.zeros(size, dtype=torch.uint8, device=f"cuda:{device}") for device in range(count if count > 1 else 0)]
    for source, read_from in enumerate(tensors):
        for target, write_to in enumerate(tensors):
            if source != target:
                torch.cuda.set_device(source)
                taken = times(lambda to=write_to, of=read_from: to.copy_(of, non_blocking=True), repeats)  # type: ignore[misc]
                rates.append(measured("gpu to gpu", f"gpu{source}", f"gpu{target}", f"gpu{source}", size, taken))
    return rates


if __name__ == "__main__":
    main(sys.argv[1:])
