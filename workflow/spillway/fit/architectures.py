"""Which function describes which model class."""

from collections.abc import Callable

from spillway.fit.config import Config
from spillway.fit.deepseek_v3 import deepseek_v3
from spillway.fit.deepseek_v41 import deepseek_v41
from spillway.fit.qwen3_and_mixtral import mixtral, qwen3_moe
from spillway.fit.shapes import Model
from spillway.fit.weights import FitError

ARCHITECTURES: dict[str, Callable[[Config], Model]] = {
    "Qwen3MoeForCausalLM": qwen3_moe,
    "MixtralForCausalLM": mixtral,
    "DeepseekV3ForCausalLM": deepseek_v3,
    "DeepseekV41ForCausalLM": deepseek_v41,
}


class UnknownArchitectureError(FitError):
    """The configuration names a model class whose shapes are not known here."""


def describe(config: Config) -> Model:
    """The model that a config.json describes; raises FitError for a missing number or an unknown architecture."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise FitError(f"config.json: architectures: found {names!r}; expected a list with the model class")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name](config)
    raise UnknownArchitectureError(
        f"config.json: architectures: found {', '.join(map(str, names))}; known: {', '.join(ARCHITECTURES)}"
    )
