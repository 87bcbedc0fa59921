"""Standing in vLLM's worker: what is registered here is called before every step, or once the model is loaded."""

import functools
from collections.abc import Callable
from typing import Any

import torch

_calls: dict[str, Callable[[int], None]] = {}


def before_each_step(name: str, call: Callable[[int], None]) -> None:
    """Call `call(rows)` before every step of `rows` rows, on every rank alike; a later one of the same name replaces it.

    Both of vLLM's model runners are called by one method of its worker, with what the scheduler put into the step. There is
    no other hook there: a worker extension cannot replace a method, and under full CUDA graphs no module's forward runs.
    Kernels of the step before may still be running.
    """
    from vllm.v1.worker.gpu_worker import Worker

    _calls[name] = call
    run = Worker.execute_model
    if hasattr(run, "stands_between_steps"):
        return

    @functools.wraps(run)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        rows = scheduler_output.total_num_scheduled_tokens
        if rows:
            with torch.inference_mode():
                for each in _calls.values():
                    each(rows)
        return run(self, scheduler_output, *args, **kwargs)

    execute_model.stands_between_steps = True  # type: ignore[attr-defined]
    Worker.execute_model = execute_model


def after_loading(call: Callable[[], None]) -> None:
    """Call `call()` in every worker once it has loaded the model, whatever loaded it; an error of it ends the engine's start.

    Calling this again changes nothing: there is one such call.
    """
    from vllm.v1.worker.gpu_worker import Worker

    load = Worker.load_model
    if hasattr(load, "is_followed_by_a_call"):
        return

    @functools.wraps(load)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = load(self, *args, **kwargs)
        call()
        return found

    load_model.is_followed_by_a_call = True  # type: ignore[attr-defined]
    Worker.load_model = load_model


def of_all_ranks(value: Any) -> list[Any]:
    """The values that all tensor-parallel ranks bring to the same call, by rank; each rank must make it."""
    from vllm.distributed import get_tensor_model_parallel_world_size, get_tp_group

    ranks = get_tensor_model_parallel_world_size()
    if ranks == 1:
        return [value]
    found: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(found, value, group=get_tp_group().cpu_group)
    return found
