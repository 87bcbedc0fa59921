"""Make the CPU host's model: a Qwen3-MoE with random weights and a small tokenizer, the same bytes on every machine.

    python -m spillway.engine.tinymodel OUT

Nothing is downloaded. Every weight is an integer of numpy's Philox stream (a counter-based generator that numpy
promises not to change) times a power of two, so each is exact in bfloat16 and no machine rounds differently.
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHAPE = {"layers": 4, "experts": 16, "experts_per_token": 4, "hidden": 256, "expert_hidden": 128}
"""The CPU host's model, in the keys of `tiny_moe` in experiments/models/: 8.0 million parameters, 16 MB."""
HEADS, KV_HEADS, HEAD_SIZE, POSITIONS = 4, 2, 64, 8192

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


def configuration(shape: dict[str, int]) -> dict[str, object]:
    """The content of config.json for Qwen3MoeForCausalLM; raises ShapeError."""
    missing, unknown = SHAPE.keys() - shape.keys(), shape.keys() - SHAPE.keys()
    if missing or unknown:
        raise ShapeError(f"shape of the model: missing {sorted(missing)}, unknown {sorted(unknown)}")
    if any(not isinstance(value, int) or value < 1 for value in shape.values()):
        raise ShapeError(f"shape of the model: every size is a whole number above 0, found {shape}")
    if shape["experts_per_token"] > shape["experts"]:
        raise ShapeError(f"shape of the model: experts_per_token is above experts, found {shape}")
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": shape["layers"],
        "num_experts": shape["experts"],
        "num_experts_per_tok": shape["experts_per_token"],
        "hidden_size": shape["hidden"],
        "moe_intermediate_size": shape["expert_hidden"],
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
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
    }


def tensors(shape: dict[str, int]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Name and values of every weight, in the order of the file.

    Values are uniform in (-b, b) with b = 2 / sqrt(inputs), rounded to a power of two: a layer then adds to the
    residual about as much as is there, so the next token depends on the context and greedy decoding does not fall into
    a short loop. The norms of q and k are 2 for the same reason: attention picks out few positions. The output rows of
    special tokens are 0 where the largest of the others is about 8, so greedy decoding never ends a text early or
    emits a token without text.
    """
    hidden, inner = shape["hidden"], shape["expert_hidden"]
    q_size, kv_size = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    words = len(vocabulary())
    yield "model.embed_tokens.weight", uniform("model.embed_tokens.weight", words, hidden, bound=1.0)
    for layer in range(shape["layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", np.ones(hidden, np.float32)
        yield at + "post_attention_layernorm.weight", np.ones(hidden, np.float32)
        for name, rows, columns in (("q", q_size, hidden), ("k", kv_size, hidden), ("v", kv_size, hidden)):
            yield at + f"self_attn.{name}_proj.weight", uniform(at + name, rows, columns)
        yield at + "self_attn.o_proj.weight", uniform(at + "o", hidden, q_size)
        yield at + "self_attn.q_norm.weight", np.full(HEAD_SIZE, 2, np.float32)
        yield at + "self_attn.k_norm.weight", np.full(HEAD_SIZE, 2, np.float32)
        yield at + "mlp.gate.weight", uniform(at + "router", shape["experts"], hidden)
        for expert in range(shape["experts"]):
            of = f"{at}mlp.experts.{expert}."
            yield of + "gate_proj.weight", uniform(of + "gate", inner, hidden)
            yield of + "up_proj.weight", uniform(of + "up", inner, hidden)
            yield of + "down_proj.weight", uniform(of + "down", hidden, inner)
    yield "model.norm.weight", np.ones(hidden, np.float32)
    head = 2 * uniform("lm_head.weight", words, hidden)
    head[: len(SPECIAL_TOKENS)] = 0
    yield "lm_head.weight", head


def uniform(name: str, rows: int, columns: int, bound: float | None = None) -> NDArray[np.float32]:
    """A [rows, columns] matrix, uniform in (-bound, bound), drawn from a Philox stream keyed by the name.

    A random byte r becomes (2r - 255) / 256 * bound: 8 significant bits, which is what bfloat16 holds.
    """
    if bound is None:
        bound = math.ldexp(1.0, 1 - (columns.bit_length() - 1) // 2)
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    count = rows * columns
    words = np.random.Philox(key=key).random_raw((count + 7) // 8)
    octets = np.frombuffer(words.astype("<u8").tobytes(), np.uint8)[:count].astype(np.float32)
    return ((2 * octets - 255) * np.float32(bound / 256)).reshape(rows, columns)


def bfloat16(values: NDArray[np.float32]) -> bytes:
    """Little-endian bfloat16 bytes of values that bfloat16 holds exactly; raises ValueError if one is not."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if np.any(bits & 0xFFFF):
        raise ValueError("a weight is not exact in bfloat16")
    return (bits >> 16).astype("<u2").tobytes()


def safetensors(weights: Iterator[tuple[str, NDArray[np.float32]]]) -> bytes:
    """A safetensors file: 8 bytes of header length, a JSON header padded to 8 bytes, the tensors end to end."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    offset = 0
    for name, values in weights:
        data = bfloat16(values)
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def model_files(shape: dict[str, int]) -> dict[str, bytes]:
    """File name to content of the whole model; raises ShapeError."""
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
        "config.json": configuration(shape),
        "generation_config.json": generation,
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": tokenizer_configuration,
    }
    files = {name: (json.dumps(content, indent=2) + "\n").encode() for name, content in documents.items()}
    files["model.safetensors"] = safetensors(tensors(shape))
    return files


def write_model(folder: Path, shape: dict[str, int]) -> str:
    """Write the model into `folder` and return the SHA-256 over its files' names and contents.

    Safe to repeat and to interrupt: a file appears whole or not at all. Raises ShapeError, and ForeignFileError if the
    folder holds anything else.
    """
    return write_files(folder, model_files(shape))


def write_files(folder: Path, files: dict[str, bytes]) -> str:
    """Write a model's files as `write_model` does; raises ForeignFileError."""
    folder.mkdir(parents=True, exist_ok=True)
    foreign = sorted(path.name for path in folder.iterdir() if path.name.removesuffix(".partial") not in files)
    if foreign:
        raise ForeignFileError(f"{folder} holds {', '.join(foreign)}, not part of this model: choose an empty folder")
    digest = hashlib.sha256()
    for name in sorted(files):
        partial = folder / f"{name}.partial"
        partial.write_bytes(files[name])
        os.replace(partial, folder / name)
        digest.update(f"{name} {len(files[name])}\n".encode())
        digest.update(files[name])
    return digest.hexdigest()


def main() -> None:
    """Write the tiny model into the folder given and print where it is and its SHA-256."""
    parser = argparse.ArgumentParser(description="Write the CPU host's model, the same bytes on every machine.")
    parser.add_argument("out", type=Path, help="folder to write into: new, or one that holds this model")
    out: Path = parser.parse_args().out
    print(f"tiny model in {out}, sha256 {write_model(out, SHAPE)}")


if __name__ == "__main__":
    main()
