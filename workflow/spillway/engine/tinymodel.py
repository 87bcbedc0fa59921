"""Make a Qwen3-MoE with random weights and a small tokenizer, such as the CPU host's, the same bytes on every machine.

    python -m spillway.engine.tinymodel OUT

Nothing is downloaded. Every weight is an integer of numpy's Philox stream (a counter-based generator that numpy
promises not to change) times a power of two, so each is exact in bfloat16 and no machine rounds differently. In block fp8
the linear layers hold the same weights, rounded to e4m3. One tensor at a time is in memory.
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from spillway.spec.host import FP8_BLOCK

SHAPE = {"layers": 4, "experts": 16, "experts_per_token": 4, "hidden": 256, "expert_hidden": 128}
"""The CPU host's model, in the keys of `tiny_moe` in experiments/models/: 8.0 million parameters, 16 MB."""
ATTENTION = {"heads": 4, "kv_heads": 2, "head_size": 64}
"""Sizes that a shape may lack."""
POSITIONS = 8192

Format = Literal["bf16", "fp8"]
READ_BYTES = 1 << 20

END_OF_TEXT, START_OF_TURN, END_OF_TURN, UNKNOWN = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unknown|>"
SPECIAL_TOKENS = [END_OF_TEXT, START_OF_TURN, END_OF_TURN, UNKNOWN]
SPACE = "Ġ"  # how byte-level BPE writes a space; newline and tab stand below in the same notation
CHARACTERS = [*string.digits, *string.ascii_letters, *string.punctuation, SPACE, "Ċ", "ĉ"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ShapeError(ValueError):
    """The shape lacks a key, has one too many, or its sizes do not fit together."""


class ForeignFileError(FileExistsError):
    """The model's folder holds a file that this module did not write and the engine might read."""


def merges() -> list[tuple[str, str]]:
    """The tokenizer's BPE merges in order of priority: pairs of lower-case letters and of digits, then a space before.

    Only ASCII is covered: a token that is half a UTF-8 character would stream as a chunk without text.
    """
    letters, digits = string.ascii_lowercase, string.digits
    pairs = [*itertools.product(letters, letters), *itertools.product(digits, digits)]
    indents = [(SPACE * width, SPACE * width) for width in (1, 2, 4)]
    starts = [(SPACE, character) for character in (*string.ascii_letters, *string.digits)]
    word_starts = [(SPACE, first + second) for first, second in pairs]
    return [*pairs, *indents, *word_starts, *starts]


def vocabulary() -> dict[str, int]:
    """Token to id, 1,718 of them: the special tokens, the characters of ASCII that print, and what the merges make."""
    tokens = [*SPECIAL_TOKENS, *CHARACTERS, *(first + second for first, second in merges())]
    return {token: index for index, token in enumerate(tokens)}


def tokenizer() -> dict[str, object]:
    """The content of tokenizer.json (format of the `tokenizers` library): byte-level BPE over ASCII."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": token, **special} for index, token in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary(),
            "merges": [list(pair) for pair in merges()],
        },
    }


def configuration(shape: dict[str, int], stored: Format = "bf16") -> dict[str, object]:
    """The content of config.json for Qwen3MoeForCausalLM; raises ShapeError."""
    missing, unknown = SHAPE.keys() - shape.keys(), shape.keys() - SHAPE.keys() - ATTENTION.keys()
    if missing or unknown:
        raise ShapeError(f"shape of the model: missing {sorted(missing)}, unknown {sorted(unknown)}")
    if any(not isinstance(value, int) or value < 1 for value in shape.values()):
        raise ShapeError(f"shape of the model: every size is a whole number above 0, found {shape}")
    if shape["experts_per_token"] > shape["experts"]:
        raise ShapeError(f"shape of the model: experts_per_token is above experts, found {shape}")
    shape = ATTENTION | shape
    if shape["heads"] % shape["kv_heads"]:
        raise ShapeError(f"shape of the model: heads is no multiple of kv_heads, found {shape}")
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": shape["layers"],
        "num_experts": shape["experts"],
        "num_experts_per_tok": shape["experts_per_token"],
        "hidden_size": shape["hidden"],
        "moe_intermediate_size": shape["expert_hidden"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["head_size"],
        "max_position_embeddings": POSITIONS,
        "intermediate_size": shape["expert_hidden"],
        "vocab_size": len(vocabulary()),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "router_aux_loss_coef": 0.001,
        "bos_token_id": None,
        "eos_token_id": vocabulary()[END_OF_TURN],
        "pad_token_id": vocabulary()[END_OF_TEXT],
        "torch_dtype": "bfloat16",
        **({"quantization_config": quantisation(shape["layers"])} if stored == "fp8" else {}),
    }


def quantisation(layers: int) -> dict[str, object]:
    """The `quantization_config` of block fp8, in the keys of published checkpoints."""
    routers = [f"model.layers.{layer}.mlp.gate" for layer in range(layers)]
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        "modules_to_not_convert": ["lm_head", *routers],
    }


@dataclass(frozen=True)
class Tensor:
    """A tensor of the weights file. `draw` gives float32 values that bfloat16 holds, or the bytes of e4m3."""

    name: str
    dtype: Literal["BF16", "F8_E4M3"]
    shape: tuple[int, ...]
    draw: Callable[[], NDArray[Any]]

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * (2 if self.dtype == "BF16" else 1)

    def content(self) -> bytes:
        """Its bytes in the file."""
        drawn = self.draw()
        return drawn.tobytes() if self.dtype == "F8_E4M3" else bfloat16(drawn)


def tensors(shape: dict[str, int], stored: Format = "bf16") -> Iterator[Tensor]:
    """Every tensor, in the order of the file.

    Values are uniform in (-b, b) with b = 2 / sqrt(inputs), rounded to a power of two: a layer then adds to the
    residual about as much as is there, so the next token depends on the context and greedy decoding does not fall into
    a short loop. The norms of q and k are 2 for the same reason: attention picks out few positions. The output rows of
    special tokens are 0 where the largest of the others is about 8, so greedy decoding never ends a text early or
    emits a token without text.
    """
    shape = ATTENTION | shape
    hidden, inner, head_size = shape["hidden"], shape["expert_hidden"], shape["head_size"]
    q_size, kv_size = shape["heads"] * head_size, shape["kv_heads"] * head_size
    words = len(vocabulary())

    def same(name: str, size: int, value: float) -> Tensor:
        return Tensor(name, "BF16", (size,), partial(np.full, size, value, np.float32))

    def drawn(name: str, key: str, rows: int, columns: int) -> Tensor:
        return Tensor(name, "BF16", (rows, columns), partial(uniform, key, rows, columns))

    def linear(name: str, key: str, rows: int, columns: int) -> Iterator[Tensor]:
        if stored == "bf16":
            yield drawn(name, key, rows, columns)
        else:
            blocks = -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)
            yield Tensor(name, "F8_E4M3", (rows, columns), partial(float8, key, rows, columns))
            yield Tensor(f"{name}_scale_inv", "BF16", blocks, partial(scales, key, rows, columns))

    yield Tensor(
        "model.embed_tokens.weight", "BF16", (words, hidden), partial(uniform, "model.embed_tokens.weight", words, hidden, 1.0)
    )
    for layer in range(shape["layers"]):
        at = f"model.layers.{layer}."
        yield same(at + "input_layernorm.weight", hidden, 1)
        yield same(at + "post_attention_layernorm.weight", hidden, 1)
        for name, rows, columns in (("q", q_size, hidden), ("k", kv_size, hidden), ("v", kv_size, hidden)):
            yield from linear(at + f"self_attn.{name}_proj.weight", at + name, rows, columns)
        yield from linear(at + "self_attn.o_proj.weight", at + "o", hidden, q_size)
        yield same(at + "self_attn.q_norm.weight", head_size, 2)
        yield same(at + "self_attn.k_norm.weight", head_size, 2)
        yield drawn(at + "mlp.gate.weight", at + "router", shape["experts"], hidden)
        for expert in range(shape["experts"]):
            of = f"{at}mlp.experts.{expert}."
            yield from linear(of + "gate_proj.weight", of + "gate", inner, hidden)
            yield from linear(of + "up_proj.weight", of + "up", inner, hidden)
            yield from linear(of + "down_proj.weight", of + "down", hidden, inner)
    yield same("model.norm.weight", hidden, 1)
    yield Tensor("lm_head.weight", "BF16", (words, hidden), partial(head, words, hidden))


def head(words: int, hidden: int) -> NDArray[np.float32]:
    """The output layer, without weights for the special tokens."""
    values = 2 * uniform("lm_head.weight", words, hidden)
    values[: len(SPECIAL_TOKENS)] = 0
    return values


def octets(name: str, count: int) -> NDArray[np.uint8]:
    """Random bytes of a Philox stream keyed by the name."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw((count + 7) // 8)
    return np.frombuffer(words.astype("<u8").tobytes(), np.uint8)[:count]


def bound_of(columns: int) -> float:
    """Bound of the weights of a layer with so many inputs: 2 / sqrt(columns), rounded up to a power of two."""
    return math.ldexp(1.0, 1 - (columns.bit_length() - 1) // 2)


def uniform(name: str, rows: int, columns: int, bound: float | None = None) -> NDArray[np.float32]:
    """A [rows, columns] matrix, uniform in (-bound, bound); `bound` is that of the layer unless given.

    A random byte r becomes (2r - 255) / 256 * bound: 8 significant bits, which is what bfloat16 holds.
    """
    bound = bound_of(columns) if bound is None else bound
    values = octets(name, rows * columns).astype(np.float32)
    return ((2 * values - 255) * np.float32(bound / 256)).reshape(rows, columns)


def e4m3(whole: int) -> int:
    """The byte of the number of format e4m3 that is nearest to a whole one with 1 <= |whole| <= 448, ties to even."""
    mantissa, exponent = math.frexp(abs(whole))
    return ((exponent + 6) << 3) + round(16 * mantissa) - 8 | (128 if whole < 0 else 0)


E4M3 = np.array([e4m3(2 * octet - 255) for octet in range(256)], np.uint8)
"""Random byte r -> the byte of (2r - 255)."""


def float8(name: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """The bytes in e4m3 of what `uniform` gives, each divided by its block's scale."""
    powers = np.repeat(np.repeat(_powers(name, rows, columns), FP8_BLOCK, axis=0), FP8_BLOCK, axis=1)[:rows, :columns]
    return E4M3[octets(name, rows * columns)].reshape(rows, columns) - 8 * powers  # the exponent begins at the 4th bit


def scales(name: str, rows: int, columns: int) -> NDArray[np.float32]:
    """What each block of `float8` is multiplied by to give the weights: bound / 256 times 1, 2, 4 or 8.

    Powers of two change no rounding, and blocks that differ show a scale that was taken for another one's.
    """
    return np.ldexp(np.float32(bound_of(columns) / 256), _powers(name, rows, columns).astype(np.int32))


def _powers(name: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """Power of two, 0 to 3, of each block's scale."""
    blocks = -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)
    return octets(f"{name} scales", math.prod(blocks)).reshape(blocks) & np.uint8(3)


def bfloat16(values: NDArray[np.float32]) -> bytes:
    """Little-endian bfloat16 bytes of values that bfloat16 holds exactly; raises ValueError if one is not."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if np.any(bits & 0xFFFF):
        raise ValueError("a weight is not exact in bfloat16")
    return (bits >> 16).astype("<u2").tobytes()


def safetensors(weights: Iterable[Tensor]) -> Iterator[bytes]:
    """A safetensors file in parts: 8 bytes of header length, a JSON header padded to 8 bytes, the tensors end to end."""
    listed = list(weights)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in listed:
        end = offset + tensor.size
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in listed:
        yield tensor.content()


def model_files(shape: dict[str, int], stored: Format = "bf16") -> dict[str, Iterable[bytes]]:
    """File name to content, in parts, of the whole model; raises ShapeError."""
    tokenizer_configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {"eos_token_id": vocabulary()[END_OF_TURN], "pad_token_id": vocabulary()[END_OF_TEXT]}
    documents: dict[str, object] = {
        "config.json": configuration(shape, stored),
        "generation_config.json": generation,
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": tokenizer_configuration,
    }
    files: dict[str, Iterable[bytes]] = {
        name: [(json.dumps(content, indent=2) + "\n").encode()] for name, content in documents.items()
    }
    return files | {"model.safetensors": safetensors(tensors(shape, stored))}


def write_model(folder: Path, shape: dict[str, int], stored: Format = "bf16") -> str:
    """Write the model into `folder` and return the SHA-256 over its files' names, sizes and contents.

    Safe to repeat and to interrupt: a file appears whole or not at all. Raises ShapeError, and ForeignFileError if the
    folder holds anything else.
    """
    return write_files(folder, model_files(shape, stored))


def write_files(folder: Path, files: Mapping[str, Iterable[bytes]]) -> str:
    """Write a model's files as `write_model` does; raises ForeignFileError."""
    folder.mkdir(parents=True, exist_ok=True)
    foreign = sorted(path.name for path in folder.iterdir() if path.name.removesuffix(".partial") not in files)
    if foreign:
        raise ForeignFileError(f"{folder} holds {', '.join(foreign)}, not part of this model: choose an empty folder")
    digest = hashlib.sha256()
    for name in sorted(files):
        unfinished = folder / f"{name}.partial"
        with unfinished.open("w+b") as file:
            file.writelines(files[name])
            digest.update(f"{name} {file.tell()}\n".encode())
            file.seek(0)
            while part := file.read(READ_BYTES):
                digest.update(part)
        os.replace(unfinished, folder / name)
    return digest.hexdigest()


def main() -> None:
    """Write the tiny model into the folder given and print where it is and its SHA-256."""
    parser = argparse.ArgumentParser(description="Write the CPU host's model, the same bytes on every machine.")
    parser.add_argument("out", type=Path, help="folder to write into: new, or one that holds this model")
    out: Path = parser.parse_args().out
    print(f"tiny model in {out}, sha256 {write_model(out, SHAPE)}")


if __name__ == "__main__":
    main()
