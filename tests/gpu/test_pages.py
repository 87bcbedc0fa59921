"""Pages on a real GPU: contents, memories, rates, errors, and that nothing outlives the process.

PYTHONPATH=workflow python3 -m pytest -q -s tests/gpu/test_pages.py
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
MIB = 1 << 20
WORKFLOW = Path(__file__).resolve().parents[2] / "workflow"


@pytest.fixture(scope="module")
def pages():
    from spillway.placement.pages import Pages

    torch.zeros(1, device="cuda")
    return Pages(0)


def placed(pages, shape, dtype, host):
    from spillway.placement.layout import plan_layout
    from spillway.placement.pages import PlacedTensor

    like = torch.empty(shape, dtype=dtype, device="cuda")
    layout = plan_layout(shape[0], like[0].numel() * like.element_size(), host)
    staging = pages.allocate("gpu", layout.unit_bytes, layout.host_units)
    return PlacedTensor(pages, layout, like, staging)


@pytest.mark.parametrize("host", [[1, 4, 6], [0, 7], list(range(8))], ids=["some", "first and last", "all"])
@pytest.mark.parametrize(("inner", "dtype"), [((1536, 2048), torch.bfloat16), ((2048, 768), torch.bfloat16),
                                             ((640, 1000), torch.bfloat16)], ids=["6MiB", "3MiB", "ragged"])  # fmt: skip
def test_every_view_reads_what_was_loaded(pages, inner, dtype, host):
    tensor = placed(pages, (8, *inner), dtype, host)
    assert tensor.tensor.data_ptr() == tensor.address, "torch copied the range instead of viewing it"
    values = torch.randn((8, *inner)).to(dtype)
    for e in range(8):
        # As the checkpoint loader does it: from pageable memory, expert by expert, into both memories.
        tensor.tensor[e].copy_(values[e])
    torch.cuda.synchronize()
    assert torch.equal(tensor.tensor.cpu(), values)
    tensor.copy(torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert torch.equal(tensor.staged.cpu(), values)
    layout = tensor.layout
    assert tensor.bytes_found(tensor.tensor) == {"gpu": layout.gpu_bytes, "host": layout.host_bytes}
    for e in range(8):
        assert pages.memory_at(tensor.tensor[e].data_ptr()) == ("host" if e in host else "gpu")


def test_pinned_sources_and_device_sources_load_too(pages):
    tensor = placed(pages, (8, 1536, 2048), torch.bfloat16, [0, 3])
    values = torch.randn((8, 1536, 2048)).bfloat16().pin_memory()
    tensor.tensor.copy_(values, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(tensor.tensor.cpu(), values)
    device = values.cuda() + 1
    tensor.tensor.copy_(device)
    assert torch.equal(tensor.tensor, device)


def test_a_kernel_reads_the_same_values_through_both_views(pages):
    tensor = placed(pages, (8, 1536, 2048), torch.bfloat16, [1, 2, 7])
    tensor.tensor.normal_()
    tensor.copy(torch.cuda.current_stream())
    x = torch.randn(2048, 64, device="cuda", dtype=torch.bfloat16)
    in_place, staged = torch.matmul(tensor.tensor, x), torch.matmul(tensor.staged, x)
    assert torch.equal(in_place, staged)


def test_rates_and_allocation_times(pages, capsys):
    from spillway.placement.pages import bytes_at
    from spillway.placement.timing import seconds

    start = time.perf_counter()
    units = pages.allocate("host", 6 * MIB, 683)
    allocated = time.perf_counter() - start
    pages.release(units)
    tensor = placed(pages, (128, 1536, 2048), torch.bfloat16, range(90, 128))
    host = bytes_at(tensor.host_address, tensor.layout.host_bytes, 0).view(torch.float32)
    host.normal_()
    read = tensor.layout.host_bytes / seconds(host.sum)
    copied = tensor.layout.host_bytes / seconds(lambda: tensor.copy(torch.cuda.current_stream()))
    whole = tensor.staged.numel() * 2 / seconds(lambda: tensor.staged.view(torch.int32).sum())
    with capsys.disabled():
        print(f"\n4 GiB of host pages in {allocated:.2f} s; read {read / 1e9:.1f}, copied {copied / 1e9:.1f}, "
              f"GPU part {whole / 1e9:.0f} GB/s; node {pages.node}")  # fmt: skip
    assert read < whole / 4, "host experts read as fast as GPU memory: they are not on the host"


def test_too_much_memory_is_one_clear_error(pages):
    from spillway.placement.pages import PageError

    free, _ = torch.cuda.mem_get_info()
    with pytest.raises(PageError, match=r"GPU 0 gave \d+ of 2 units"):
        pages.allocate("gpu", (free // (2 * MIB)) * 2 * MIB, 2)
    assert torch.cuda.mem_get_info()[0] >= free - 64 * MIB, "a refused allocation kept memory"


HOLDER = """
import sys, time, torch
from spillway.placement.pages import Pages
torch.zeros(1, device="cuda")
pages = Pages(0)
units = pages.allocate("host", 64 << 20, 32)
address = pages.map(32 * (64 << 20), 64 << 20, [(i * (64 << 20), u) for i, u in enumerate(units)])
pages.release(units)
print("held", flush=True)
time.sleep(60)
"""


def unreclaimable_bytes():
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemTotal"].split()[0]) * 1024 - int(fields["MemAvailable"].split()[0]) * 1024


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_host_pages_are_freed_however_the_process_ends(how):
    before = unreclaimable_bytes()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(WORKFLOW), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert process.stdout.readline().strip() == "held"
    held = unreclaimable_bytes() - before
    os.kill(process.pid, how)
    process.wait(30)
    deadline = time.monotonic() + 10
    while unreclaimable_bytes() - before > 512 * MIB and time.monotonic() < deadline:
        time.sleep(0.5)
    left = unreclaimable_bytes() - before
    assert held > 1536 * MIB, f"the pages were not in host memory: only {held >> 20} MiB more in use"
    assert left < 512 * MIB, f"{left >> 20} MiB still in use after the process ended"
