"""A measurement on a machine that is not what the host's file says is refused before anything starts."""

from contextlib import nullcontext

import pynvml
import pytest

from spillway.measure import machine
from spillway.measure.errors import MeasureError
from spillway.measure.machine import check_gpus, check_job
from spillway.spec.experiment import Resolved, resolve
from spillway.spec.host import Engine, Host, Slurm
from tests.conftest import ROOT

ENGINE = Engine(environment="engine-cpu", module="vllm", ready_timeout_s=9)
HOST = Host(title="a node", measured=True, engine=ENGINE, slurm=Slurm(partition="gpu", cores=16, memory_gib=64, minutes=60))
NOWHERE = HOST.model_copy(update={"slurm": None})
JOB = {"SLURM_JOB_ID": "1", "SLURM_JOB_PARTITION": "gpu"}


def test_a_job_where_the_file_says_and_no_job_at_all_pass():
    check_job(HOST, "node", JOB, 16)
    check_job(HOST, "node", {}, 1)
    check_job(NOWHERE, "node", {}, 1)


@pytest.mark.parametrize(
    ("host", "job", "cores", "said"),
    [
        (NOWHERE, JOB, 16, r"hosts/node.yaml: slurm: found nothing, in a job of the partition 'gpu'"),
        (HOST, JOB | {"SLURM_JOB_PARTITION": "cpu"}, 16, r"slurm.partition: found 'gpu', in a job of the partition 'cpu'"),
        (HOST, {"SLURM_JOB_ID": "1"}, 16, r"in a job of the partition 'unknown'"),
        (HOST, JOB, 1, r"slurm.cores: found 16, in a job that may use 1; .*workflow-profile profiles/slurm"),
    ],
    ids=["no slurm key", "another partition", "partition not told", "too few cores"],
)  # fmt: skip
def test_another_place_is_named(host, job, cores, said):
    with pytest.raises(MeasureError, match=said):
        check_job(host, "node", job, cores)


@pytest.fixture
def on_gpu() -> Resolved:
    asked = resolve(ROOT, "e13_agents", "h200")
    assert isinstance(asked, Resolved)
    return asked


H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ([H200], None),
        ([A100, H200], None),
        ([], r"hosts/h200\.yaml: gpus: found 1 x NVIDIA H200, on a machine where .* no GPU; .*host=cpu$"),
        ([A100, A100], rf"on a machine with {A100}, {A100}; measure e13_agents on such .* correct gpus\.name"),
        ([f"{H200} NVL"], f"on a machine with {H200} NVL"),
    ],
    ids=["the host's", "among others", "no GPU", "others", "one of a longer name"],
)
def test_gpus_are_those_of_the_host_or_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, on_gpu: Resolved, there: list[str], said: str | None
) -> None:
    found = {"gpus": len(there)} | {f"gpu{index}_name": name for index, name in enumerate(there)}
    monkeypatch.setattr(machine, "describe_gpus", lambda: found)
    with nullcontext() if said is None else pytest.raises(MeasureError, match=said):
        check_gpus(on_gpu)


def test_a_driver_that_does_not_answer_is_no_machine_without_gpus(monkeypatch: pytest.MonkeyPatch, on_gpu: Resolved) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    with pytest.raises(MeasureError, match=r"does not answer: .*version mismatch.*doctor --host h200"):
        check_gpus(on_gpu)


@pytest.mark.parametrize(("name", "host"), [("e11_seats", "h200"), ("e13_agents", "cpu"), ("e12_topology", "cpu")])
def test_what_uses_no_gpu_is_measured_anywhere(monkeypatch: pytest.MonkeyPatch, name: str, host: str) -> None:
    asked = resolve(ROOT, name, host)
    assert isinstance(asked, Resolved)
    monkeypatch.setattr(machine, "describe_gpus", lambda: pytest.fail("looked for GPUs"))
    check_gpus(asked)
