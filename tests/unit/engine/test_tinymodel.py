"""Models with random weights: the same bytes everywhere, in the formats that they claim."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from spillway.engine.tinymodel import (
    CHARACTERS,
    SHAPE,
    SPECIAL_TOKENS,
    ForeignFileError,
    ShapeError,
    bfloat16,
    bound_of,
    configuration,
    e4m3,
    merges,
    tensors,
    uniform,
    vocabulary,
    write_model,
)
from spillway.spec.host import FP8_BLOCK
from tests.conftest import ROOT

SHA256 = "163f98796361a378bc18a3a84c9c5a37220c0bbc6f3ae9578e01a81fe1a21b95"
SMALL = {"layers": 1, "experts": 2, "experts_per_token": 1, "hidden": 128, "expert_hidden": 256}


def stored(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of the folder's weights file by name: float32 of what is stored as bfloat16, and the bytes of e4m3."""
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"]
    found = {}
    for name, entry in header.items():
        start, stop = (8 + length + at for at in entry["data_offsets"])
        bits = np.frombuffer(data[start:stop], {"BF16": "<u2", "F8_E4M3": "u1"}[entry["dtype"]])
        if entry["dtype"] == "BF16":
            bits = (bits.astype(np.uint32) << 16).view(np.float32)
        found[name] = bits.reshape(entry["shape"])
    return found


def decoded(octets: np.ndarray) -> np.ndarray:
    """The numbers of bytes in e4m3, by its definition: sign, four bits of exponent with bias 7, three bits of fraction."""
    exponent, fraction = (octets >> 3 & 15).astype(int), octets & 7
    assert not ((exponent == 15) & (fraction == 7)).any(), "not a number"
    assert (exponent > 0).all(), "the definition for exponent 0 is another one"
    return np.where(octets & 128, -1.0, 1.0) * np.ldexp(1 + fraction / 8, exponent - 7)


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
        ({"kv_heads": 3}, "heads is no multiple of kv_heads"),
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
    found = stored(tmp_path)
    for tensor in tensors(SHAPE):
        assert np.array_equal(found[tensor.name], tensor.draw()), tensor.name


def test_sizes_of_attention_are_those_asked_for(tmp_path: Path) -> None:
    shape = SMALL | {"heads": 6, "kv_heads": 3, "head_size": 32}
    write_model(tmp_path, shape)
    config = json.loads((tmp_path / "config.json").read_text())
    assert [config[f"num_{of}_heads"] for of in ("attention", "key_value")] == [6, 3] and config["head_dim"] == 32
    at = "model.layers.0.self_attn."
    shapes = {name.removeprefix(at): values.shape for name, values in stored(tmp_path).items() if name.startswith(at)}
    assert shapes == {
        "q_proj.weight": (192, 128), "k_proj.weight": (96, 128), "v_proj.weight": (96, 128), "o_proj.weight": (128, 192),
        "q_norm.weight": (32,), "k_norm.weight": (32,),
    }  # fmt: skip


def test_block_fp8_is_the_bf16_model_with_its_linear_layers_rounded(tmp_path: Path) -> None:
    hashes = [write_model(tmp_path / name, SMALL, "fp8") for name in ("fp8", "again")]
    assert hashes[0] == hashes[1] != write_model(tmp_path / "bf16", SMALL)
    wide, narrow = stored(tmp_path / "bf16"), stored(tmp_path / "fp8")
    rounded = {name for name, values in narrow.items() if values.dtype == np.uint8}
    layer = "model.layers.0."
    assert rounded == {f"{layer}self_attn.{part}_proj.weight" for part in "qkvo"} | {
        f"{layer}mlp.experts.{expert}.{part}_proj.weight" for expert in (0, 1) for part in ("gate", "up", "down")
    }
    assert set(narrow) == set(wide) | {f"{name}_scale_inv" for name in rounded}
    used = set()
    for name, values in wide.items():
        if name not in rounded:
            assert np.array_equal(narrow[name], values), name
            continue
        scales = narrow[f"{name}_scale_inv"]
        assert scales.shape == tuple(-(-size // FP8_BLOCK) for size in values.shape)
        weights = decoded(narrow[name]) * np.kron(scales, np.ones((FP8_BLOCK, FP8_BLOCK)))
        # Three bits of fraction: off by at most a sixteenth of the power of two below.
        assert (np.abs(weights - values) <= np.exp2(np.floor(np.log2(np.abs(values)))) / 16).all(), name
        used |= set((scales * 256 / bound_of(values.shape[1])).flat)
    assert used == {1, 2, 4, 8}, "blocks with one scale would not show a scale taken for another one's"
    config = json.loads((tmp_path / "fp8/config.json").read_text())
    published = yaml.safe_load((ROOT / "experiments/models/qwen3-235b-a22b-fp8.yaml").read_text())["source"]["config"]
    assert config.pop("quantization_config") == published["quantization_config"] | {
        "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]
    }
    assert config == configuration(SMALL)


def test_e4m3_takes_the_nearest_number_and_the_even_one_of_two() -> None:
    whole = [1, -1, 17, 19, 255, -37, 448]
    assert decoded(np.array([e4m3(number) for number in whole], np.uint8)).tolist() == [1, -1, 16, 20, 256, -36, 448]


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
    [head] = [tensor.draw() for tensor in tensors(SHAPE) if tensor.name == "lm_head.weight"]
    assert not head[: len(SPECIAL_TOKENS)].any()
    assert head[len(SPECIAL_TOKENS) :].any(axis=1).all()
