"""Make a CPU look like the engine's GPU process, so that the whole of one rank's placement can run in a test.

Stand-ins: the CUDA driver (see driver.py), torch's CUDA streams and events, and the few names of vLLM that placement
imports. What is tested is all ours: layouts, mappings, checks around loading, staging order, switch-over and proof.
"""

import ctypes
import sys
import time
import types
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import driver

EXPERTS, HIDDEN, WIDTH, TOP_K = 8, 512, 512, 2


class Event:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return max(1e-6, (other.at - self.at) * 1e3)


class Stream:
    cuda_stream = 0

    def wait_event(self, event):
        pass


class Method:
    """vLLM's method for bf16 experts: what happens after loading is up to the test."""

    def __init__(self):
        self.unquantized_backend = types.SimpleNamespace(value="TRITON")
        self.after_loading = lambda layer: None

    def process_weights_after_loading(self, layer):
        self.after_loading(layer)


Method.__name__ = "UnquantizedFusedMoEMethod"


class Weight(torch.nn.Parameter):
    is_cuda = True


class RoutedExperts(torch.nn.Module):
    """A plain mixture of experts on the layer's parameters; notes which views its forward read."""

    def __init__(self, layer_name):
        super().__init__()
        self.layer_name, self.global_num_experts, self.top_k = layer_name, EXPERTS, TOP_K
        self.quant_method = Method()
        for name, shape in (("w13_weight", (EXPERTS, 2 * WIDTH, HIDDEN)), ("w2_weight", (EXPERTS, HIDDEN, WIDTH))):
            self.register_parameter(name, Weight(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False))
        self.read = []

    def weight_loader(self, param, loaded, name, shard, expert):
        param.data[expert].copy_(loaded)
        return True

    def forward_modular(self, x, topk_weights, topk_ids, shared_experts=None, shared_experts_input=None):
        self.read.append(self.w13_weight.data_ptr())
        out = torch.zeros_like(x, dtype=torch.float32)
        for row, (weights, ids) in enumerate(zip(topk_weights, topk_ids, strict=True)):
            for weight, e in zip(weights, ids.tolist(), strict=True):
                gate, up = (self.w13_weight[e].float() @ x[row].float()).chunk(2)
                out[row] += weight * (self.w2_weight[e].float() @ (torch.nn.functional.silu(gate) * up))
        return out

    def forward_monolithic(self, *args, **kwargs):
        raise AssertionError


def load_alike(ours, plain):
    """Load the same random weights into layers of both kinds, through each one's own loader."""
    for a, b in zip(ours, plain, strict=True):
        for name in ("w13_weight", "w2_weight"):
            for e in range(EXPERTS):
                weight = torch.randn(getattr(b, name).shape[1:]).bfloat16() / 20
                for layer in (a, b):
                    layer.weight_loader(getattr(layer, name), weight, name, "w1", e)


class Worker:
    """Loads a model and runs a step as the test says."""

    def load_model(self, *, load=lambda: None):
        load()

    def execute_model(self, scheduler_output):
        return scheduler_output.run()


def settings(layers):
    """The config.json of a model of so many layers, and as much of vLLM's configuration as placement looks at."""
    config = {
        "model_type": "qwen3_moe", "num_hidden_layers": layers, "hidden_size": HIDDEN, "moe_intermediate_size": WIDTH,
        "num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "dtype": "bfloat16",
    }  # fmt: skip
    space = types.SimpleNamespace
    return config, space(
        parallel_config=space(
            enable_expert_parallel=False,
            enable_eplb=False,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            use_ubatching=False,
        ),
        lora_config=None,
        model_config=space(
            enable_sleep_mode=False, model="model", revision=None, hf_text_config=space(tie_word_embeddings=False)
        ),
        offload_config=space(uva=space(cpu_offload_gb=0), prefetch=space(offload_group_size=0)),
        compilation_config=space(cudagraph_capture_sizes=[1, 2]),
    )


def install(config_json, vllm_config, rank=0, ranks=1):
    """Put the stand-ins in place; must run before placement's modules are imported."""
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = driver
    sys.modules |= {"cuda": types.ModuleType("cuda"), "cuda.bindings": bindings, "cuda.bindings.driver": driver}
    for path, names in {
        "vllm": {"__version__": "stand-in"},
        "vllm.config": {"get_current_vllm_config": lambda: vllm_config},
        "vllm.distributed": {
            "get_tensor_model_parallel_rank": lambda: rank,
            "get_tensor_model_parallel_world_size": lambda: ranks,
            "get_tp_group": lambda: types.SimpleNamespace(barrier=lambda: None, cpu_group=None),
        },
        "vllm.v1": {},
        "vllm.v1.worker": {},
        "vllm.v1.worker.gpu_worker": {"Worker": Worker},
        "vllm.platforms": {"current_platform": types.SimpleNamespace(is_cuda=lambda: True)},
        "vllm.transformers_utils": {},
        "vllm.transformers_utils.repo_utils": {"get_hf_file_to_dict": lambda *_: config_json},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {},
        "vllm.model_executor.layers.fused_moe": {},
        "vllm.model_executor.layers.fused_moe.routed_experts": {"RoutedExperts": RoutedExperts},
    }.items():
        module = types.ModuleType(path)
        module.__dict__.update(names)
        sys.modules[path] = module
    torch.cuda.Event, torch.cuda.Stream = Event, Stream
    torch.cuda.current_stream = lambda: Stream()
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.current_device = lambda: 0
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda: None
    torch.cuda.get_device_name = lambda _: "stand-in"

    see_memory()


def see_memory():
    """Let placement see the stand-in driver's memory as tensors, and its work as taking a millisecond."""
    from spillway.placement import evidence, pages, staging

    def bytes_at(address, size, device):
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

    def seconds(work):
        work()
        return 1e-3

    pages.bytes_at = evidence.bytes_at = bytes_at
    evidence.seconds = staging.seconds = seconds
