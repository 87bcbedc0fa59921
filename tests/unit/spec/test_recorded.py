"""Every host can be asked for: each experiment runs there or says why not, also for hosts that it does not name."""

import pytest

from spillway.spec.experiment import names
from spillway.spec.number import data_files
from spillway.spec.recorded import why_not
from tests.conftest import ROOT


@pytest.mark.parametrize("host", names(ROOT, "hosts"))
def test_the_workflow_can_be_called_for_every_host(host: str) -> None:
    files = data_files(ROOT, host)
    assert any(file.startswith(f"{host}/") for file in files)


def test_a_host_that_an_experiment_does_not_name_has_its_reason() -> None:
    assert why_not(ROOT, "e14_plan_choice", "rtxpro6000x2", "rtxpro6000x2") == (
        "Measured on one GPU, where nothing but the choice differs."
    )
    assert why_not(ROOT, "e13_agents", "rtxpro6000x2", "rtxpro6000x2") is None
    assert why_not(ROOT, "e13_agents", "rtxpro6000x2", "cpu") == "not recorded on host rtxpro6000x2 yet"
