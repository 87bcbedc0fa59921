"""The CPU host's model: the same bytes everywhere, in the formats that it claims."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spillway.engine.tinymodel import (
    CHARACTERS,
    SHAPE,
    SPECIAL_TOKENS,
    ForeignFileError,
    ShapeError,
    bfloat16,
    merges,
    tensors,
    uniform,
    vocabulary,
    write_model,
)

SHA256 = "163f98796361a378bc18a3a84c9c5a37220c0bbc6f3ae9578e01a81fe1a21b95"


def test_model_has_the_same_bytes_everywhere(tmp_path: Path) -> None:
    assert write_model(tmp_path / "function", SHAPE) == SHA256
    command = [sys.executable, "-m", "spillway.engine.tinymodel", str(tmp_path / "command")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert SHA256 in done.stdout
    for path in sorted((tmp_path / "function").iterdir()):
        assert path.read_bytes() == (tmp_path / "command" / path.name).read_bytes()


def test_writing_again_repairs_what_was_interrupted_or_changed(tmp_path: Path) -> None:
    write_model(tmp_path, SHAPE)
    (tmp_path / "model.safetensors").write_bytes(b"half")
    (tmp_path / "config.json.partial").write_bytes(b"half")
    assert write_model(tmp_path, SHAPE) == SHA256
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_folder_with_somebody_else_s_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ForeignFileError, match=r"vocab\.json"):
        write_model(tmp_path, SHAPE)
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.json"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"layer": 4}, r"unknown \['layer'\]"),
        ({"experts": 0}, "whole number above 0"),
        ({"experts_per_token": 17}, "experts_per_token is above experts"),
    ],
)
def test_shape_that_makes_no_model_is_refused(change: dict[str, int], found: str, tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=found):
        write_model(tmp_path / "model", SHAPE | change)


def test_missing_size_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"missing \['hidden'\]"):
        write_model(tmp_path / "model", {key: value for key, value in SHAPE.items() if key != "hidden"})


def test_weights_file_holds_every_tensor_end_to_end(tmp_path: Path) -> None:
    write_model(tmp_path, SHAPE)
    data = (tmp_path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for entry in header.values():
        assert entry["dtype"] == "BF16"
        assert entry["data_offsets"] == [end, end + 2 * int(np.prod(entry["shape"]))]
        end = entry["data_offsets"][1]
    assert len(data) == 8 + length + end
    # Read back as bfloat16 (the upper half of a float32), a tensor is what was drawn.
    start, stop = header["lm_head.weight"]["data_offsets"]
    bits = np.frombuffer(data[8 + length + start : 8 + length + stop], "<u2").astype(np.uint32) << 16
    expected = dict(tensors(SHAPE))["lm_head.weight"]
    assert np.array_equal(bits.view(np.float32).reshape(expected.shape), expected)


def test_value_that_bfloat16_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="not exact"):
        bfloat16(np.array([1 + 2.0**-9], np.float32))


def test_weights_are_uniform_and_differ_by_name() -> None:
    values = uniform("a", 512, 256, bound=1.0)
    assert abs(float(values.mean())) < 0.01
    assert abs(float(values.std()) - 3**-0.5) < 0.01
    assert float(np.abs(values).max()) == 255 / 256
    assert not np.array_equal(values, uniform("b", 512, 256, bound=1.0))


def test_vocabulary_has_one_id_per_token_and_every_merge_in_it() -> None:
    tokens = vocabulary()
    assert len(tokens) == len(SPECIAL_TOKENS) + len(CHARACTERS) + len(merges()) == 1718
    assert sorted(tokens.values()) == list(range(1718))
    known = set(CHARACTERS)
    for first, second in merges():
        assert first in known and second in known, "a merge uses a token that no earlier merge makes"
        known.add(first + second)


def test_special_tokens_have_no_weight_in_the_output() -> None:
    head = dict(tensors(SHAPE))["lm_head.weight"]
    assert not head[: len(SPECIAL_TOKENS)].any()
    assert head[len(SPECIAL_TOKENS) :].any(axis=1).all()
