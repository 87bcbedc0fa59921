"""Which model this process serves, by its config.json."""

from typing import Any

from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

from spillway.placement.plan import ModelIdentity, PlanError, identify_model


def identify_served(model_config: Any) -> ModelIdentity:
    """Identity of the model of a vLLM ModelConfig; raises PlanError for one that has none or is no mixture of experts."""
    found = get_hf_file_to_dict("config.json", model_config.model, model_config.revision)
    if found is None:
        raise PlanError(f"{model_config.model}: no config.json to tell which model this is; plans and counts belong to one")
    return identify_model(found)
