"""engine/gpu_rates.py on the stand-ins: two GPUs, two NUMA nodes, the memory of a CPU."""

import sys
import types

import install
import torch

install.install({}, None)
zeros = torch.zeros
torch.zeros = lambda *size, device=None, **named: zeros(*size, **named)
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
torch.cuda.set_device = lambda _: None
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid=f"GPU-{device}")

from spillway.engine import gpu_rates  # noqa: E402

gpu_rates.UNIT_BYTES = 2 << 20
gpu_rates.main(sys.argv[1:])
