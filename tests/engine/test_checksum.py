"""All experts' checksums at once are those of each alone, whatever their size, and tell apart what was moved or swapped."""

import pytest

from tests.engine.programs import run_in_engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
PROGRAM = """
import torch
from spillway.placement import checksum
generator = torch.Generator().manual_seed(1)
# bf16, a byte a value as in fp8, and sizes that fill no whole words.
for dtype, shape in ((torch.bfloat16, (16, 24)), (torch.uint8, (8, 8)), (torch.uint8, (3, 7)), (torch.bfloat16, (5, 3))):
    whole = torch.randint(0, 256, (6, *shape), dtype=torch.uint8, generator=generator).to(dtype)
    # As experts whose pages have room to spare lie in memory.
    apart = torch.zeros(6, 2, *shape, dtype=dtype)[:, 0]
    apart.copy_(whole)
    for limit in (1, 200, 1 << 20):
        checksum._PRODUCT_BYTES = limit
        due = [checksum.checksum(expert.clone()) for expert in whole]
        assert checksum.checksums(whole) == checksum.checksums(apart) == due and len(set(due)) == 6, (dtype, shape, limit)
    flipped = whole.flip(1)
    assert not set(checksum.checksums(flipped)) & set(due), "blind to order"
"""


def test_all_at_once_equals_each_alone() -> None:
    run_in_engine(PROGRAM, 100)
