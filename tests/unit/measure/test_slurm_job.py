"""A measurement in a SLURM job that is not where the host's file says is refused before anything starts."""

import pytest

from spillway.measure.run import MeasureError
from spillway.measure.slurm_job import check_job
from spillway.spec.host import Engine, Host, Slurm

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
