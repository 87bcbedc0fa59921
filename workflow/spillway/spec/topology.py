"""What an experiment on links measures on a host: copies and reads between places of memory, without a server."""

from pydantic import Field, PositiveInt

from spillway.spec.read import Strict


class LinkRates(Strict):
    """Rates between every two places of memory that the machine has: NUMA nodes, GPUs."""

    buffer_mib: PositiveInt = Field(description="size of each buffer in MiB, or twice the last-level cache if that is more")
    repeats: int = Field(ge=3, description="timed repeats of each copy and read; the rows carry median, lowest and highest")
