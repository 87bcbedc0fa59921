"""How many bytes one weight matrix takes in a storage format: its values and, apart from them, their scales.

The two are counted apart because a plan moves values to the host and leaves scales in GPU memory.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Protocol


class Format(Protocol):
    """A storage format; shapes are [outputs, inputs], or [values] for a vector."""

    @property
    def name(self) -> str: ...

    def value_bytes(self, shape: Sequence[int]) -> int: ...

    def scale_bytes(self, shape: Sequence[int]) -> int: ...


@dataclass(frozen=True)
class Plain:
    """Unquantised values of `width_bytes` each."""

    name: str
    width_bytes: int

    def value_bytes(self, shape: Sequence[int]) -> int:
        return prod(shape) * self.width_bytes

    def scale_bytes(self, shape: Sequence[int]) -> int:
        return 0


@dataclass(frozen=True)
class Fp8Block:
    """One byte a value, one scale for each block of `rows` x `columns` values (DeepSeek-V3, Qwen3-FP8: 128 x 128)."""

    rows: int = 128
    columns: int = 128
    scale_width_bytes: int = 4

    @property
    def name(self) -> str:
        return f"fp8 {self.rows}x{self.columns}"

    def value_bytes(self, shape: Sequence[int]) -> int:
        return prod(shape)

    def scale_bytes(self, shape: Sequence[int]) -> int:
        outputs, inputs = shape
        return ceil(outputs / self.rows) * ceil(inputs / self.columns) * self.scale_width_bytes


@dataclass(frozen=True)
class Fp4:
    """Half a byte a value, one scale byte (e8m0) for each `group` inputs of a row: OCP MXFP4 with group 32."""

    group: int = 32

    @property
    def name(self) -> str:
        return f"fp4 by {self.group}"

    def value_bytes(self, shape: Sequence[int]) -> int:
        return ceil(prod(shape) / 2)

    def scale_bytes(self, shape: Sequence[int]) -> int:
        outputs, inputs = shape
        return outputs * ceil(inputs / self.group)


@dataclass(frozen=True)
class Exl3:
    """EXL3's trellis at `bits` a value; its scales are one fp16 for each input (`suh`) and each output (`svh`)."""

    bits: int

    @property
    def name(self) -> str:
        return f"exl3 {self.bits} bit"

    def value_bytes(self, shape: Sequence[int]) -> int:
        return ceil(prod(shape) * self.bits / 8)

    def scale_bytes(self, shape: Sequence[int]) -> int:
        return 2 * sum(shape)


@dataclass(frozen=True)
class Rows:
    """A lookup table of rows, each `bits` a value plus `row_scale_bytes` of scales stored with the row."""

    bits: int
    row_scale_bytes: int

    @property
    def name(self) -> str:
        return f"{'fp' if self.bits == 8 else 'int'}{self.bits} rows"

    def value_bytes(self, shape: Sequence[int]) -> int:
        rows, width = shape
        return rows * ceil(width * self.bits / 8)

    def scale_bytes(self, shape: Sequence[int]) -> int:
        return shape[0] * self.row_scale_bytes


BF16, FP16, FP32 = Plain("bf16", 2), Plain("fp16", 2), Plain("fp32", 4)

NAMED: dict[str, Format] = {"bf16": BF16, "fp16": FP16, "fp32": FP32}
SPELLINGS = "bf16, fp16, fp32, fp8:ROWSxCOLUMNS, fp4:GROUP, exl3:BITS, rows:BITS+SCALE_BYTES"


def parse_format(text: str) -> Format:
    """The format that a spelling such as `fp8:128x128`, `exl3:3` or `rows:4+16` names; raises ValueError otherwise."""
    if text in NAMED:
        return NAMED[text]
    if found := re.fullmatch(r"fp8:(\d+)x(\d+)", text):
        return Fp8Block(int(found[1]), int(found[2]))
    if found := re.fullmatch(r"fp4:(\d+)", text):
        return Fp4(int(found[1]))
    if found := re.fullmatch(r"exl3:([1-8])", text):
        return Exl3(int(found[1]))
    if found := re.fullmatch(r"rows:(\d+)\+(\d+)", text):
        return Rows(int(found[1]), int(found[2]))
    raise ValueError(f"format {text!r}: expected one of: {SPELLINGS}")
