"""One rank from construction to proof on the stand-ins: `one_rank.py FOLDER CASE`; prints one JSON object."""

import json
import os
import sys
from pathlib import Path

import install
import torch

folder, case = Path(sys.argv[1]), sys.argv[2]
config, vllm_config = install.settings(5)
install.install(config, vllm_config)

from spillway.placement import plan, proof  # noqa: E402
from spillway.placement.layout import plan_layout  # noqa: E402

model, layers = plan.identify_model(config), plan.moe_layers(config)
ids = ([1, 2, 5], [], [0, 7], [0, 1, 2, 3, 4, 5, 6, 7], [4])
EMBEDDING = "model.embed_tokens.weight"
parameters = {
    "parameters": (EMBEDDING,),
    "unknown parameter": (EMBEDDING, "no.such.weight"),
    "no memory for both": (EMBEDDING,),
}.get(case, ())
if case in ("parameters", "unknown parameter"):
    ids = ([],) * 5
if case == "no memory for both":
    sizes = (2 * install.WIDTH * install.HIDDEN * 2, install.WIDTH * install.HIDDEN * 2)
    experts = sum(plan_layout(install.EXPERTS, size, host).host_bytes for host in ids for size in sizes)
    os.environ["SPILLWAY_HOST_MEMORY_BYTES"] = str(experts)
if case == "no host memory":
    os.environ["SPILLWAY_HOST_MEMORY_BYTES"] = "1000000"
if case == "driver refuses":
    install.driver.left["host"] = 8 << 20
if case == "extra layer":
    layers, ids = (*layers, "model.layers.5.mlp.experts"), (*ids, [3])
by_layer = list(zip(layers, ids, strict=True))
chosen = plan.Plan(
    model=model,
    choice=plan.Choice(builder="given"),
    layers=dict(reversed(by_layer) if case == "other order" else by_layer),
    parameters=parameters,
)
chosen.save(folder / "plan.json")
os.environ |= {"SPILLWAY_PLAN": str(folder / "plan.json"), "SPILLWAY_PROOF_DIR": str(folder / "proof")}
os.environ.setdefault("SPILLWAY_HOST_MEMORY_BYTES", str(1 << 40))
if case == "off":
    os.environ["SPILLWAY_STAGE_ROWS"] = "off"

from spillway.placement.boundary import after_loading  # noqa: E402
from spillway.placement.routed_experts import PlacedRoutedExperts, model_is_loaded, placement  # noqa: E402

after_loading(model_is_loaded)

torch.manual_seed(0)
names = plan.moe_layers(config)
if case == "missing layer":
    names = (*names, "model.layers.9.mlp.experts")
result: dict[str, object] = {}
ours: list[PlacedRoutedExperts] = []
plain = [install.RoutedExperts(name) for name in names]


def copied(layer: torch.nn.Module) -> None:
    """As `.contiguous()` and replace_parameter do to a tensor with gaps."""
    for name in ("w13_weight", "w2_weight"):
        value = getattr(layer, name).data.clone()
        if case == "repacked":
            value = value.roll(1, -1)
        layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))


def misplace(tensors: dict[str, object]) -> None:
    """Let the driver say of a GPU expert's first page, which no sample looks at, that it lies on the host."""
    places = {tensors[key].address + tensors[key].layout.places()[4].offset_bytes for key in tensors}
    memory_at = placement().pages.memory_at
    placement().pages.memory_at = lambda address: "host" if address in places else memory_at(address)


def load() -> None:
    """Make the layers, load them, and finish them as vLLM's loader does."""
    if parameters:
        placement().place_parameter(EMBEDDING, install.Weight(torch.ones((1000, install.HIDDEN), dtype=torch.bfloat16)))
    if case.startswith("own experts"):
        # An embedding of vLLM's asks for the plan, whether it is named there or not.
        if case.endswith("embedding"):
            placement()
        return
    for name in names:
        ours.append(PlacedRoutedExperts(name))
    install.load_alike(ours, plain)
    for layer in ours:
        layer.quant_method.after_loading = copied
        if case != "never finished" or layer is not ours[2]:
            layer.quant_method.process_weights_after_loading(layer)
    if case == "misplaced":
        misplace(ours[0]._placed.tensors)
    if case == "torn":
        misplace({"w2_weight": ours[0]._placed.tensors["w2_weight"]})


try:
    install.Worker().load_model(load=load)
    x, weights = torch.randn(70, install.HIDDEN).bfloat16(), torch.rand(70, install.TOP_K)
    picks = torch.randint(0, install.EXPERTS, (70, install.TOP_K), dtype=torch.int32)
    expected = [layer.forward_modular(x, weights, picks) for layer in plain]
    equal, views = [], []
    for rows in (None, "as measured", 1, 71, 1):
        if rows != "as measured" and placement().switch_over is not None:
            placement().switch_over = placement().switch_over.model_copy(update={"rows": rows})
        for layer, due in zip(ours, expected, strict=True):
            layer.read.clear()
            equal.append(bool(torch.equal(layer.forward_modular(x, weights, picks), due)))
            if layer._placed is not None:
                views.append(layer.read[-1] == layer._placed.tensors["w13_weight"].address)
    result |= {
        "equal": equal,
        "in_place": views,
        "faults": proof.check_proofs(chosen, proof.load_proofs(folder / "proof"), 1),
        "contiguous": [layer.w13_weight.is_contiguous() for layer in ours],
    }
except (RuntimeError, ValueError) as error:
    result["error"] = f"{type(error).__name__}: {error}"
    result["loaded"] = any(bool(layer.w13_weight.count_nonzero()) for layer in ours)
print(json.dumps(result))
