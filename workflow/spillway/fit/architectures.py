"""Which function describes which model class."""

from collections.abc import Callable

from spillway.fit.config import Config
from spillway.fit.deepseek_v3 import deepseek_v3
from spillway.fit.deepseek_v41 import deepseek_v41
from spillway.fit.qwen3_and_mixtral import mixtral, qwen3_moe
from spillway.fit.shapes import Model
from spillway.fit.weights import FitError
from spillway.spec.shown import shown

ARCHITECTURES: dict[str, Callable[[Config], Model]] = {
    "Qwen3MoeForCausalLM": qwen3_moe,
    "MixtralForCausalLM": mixtral,
    "DeepseekV3ForCausalLM": deepseek_v3,
    "DeepseekV41ForCausalLM": deepseek_v41,
}


MOST_EXPERTS = 2**20
"""Plans count experts one by one; a configuration that claims more is wrong."""


class UnknownArchitectureError(FitError):
    """The configuration names a model class whose shapes are not known here."""


def describe(config: Config) -> Model:
    """The model that a config.json describes; raises FitError for a missing number or an unknown architecture."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise FitError(f"config.json: architectures: found {shown(names)}; expected a list with the model class")
    for name in map(str, names):
        if name in ARCHITECTURES:
            model = ARCHITECTURES[name](config)
            if model.routed_experts > MOST_EXPERTS:
                raise FitError(f"config.json: found {model.routed_experts} routed experts; expected at most {MOST_EXPERTS}")
            return model
    found = ", ".join(str(name)[:80] for name in names[:5])
    raise UnknownArchitectureError(f"config.json: architectures: found {found}; known: {', '.join(ARCHITECTURES)}")
