"""The folder of a model of which only the shape is served: its config.json and a tokenizer, no weights.

The engine fills the weights itself (load format `dummy`). Every token id of the tokenizer decodes to text, or answers
would arrive in chunks without any, and a client that waits for text would see no first token.
"""

import json
from pathlib import Path
from typing import Any

from spillway.engine.tinymodel import write_files


def write_shape(folder: Path, config: dict[str, Any]) -> str:
    """Write the model's folder and return the SHA-256 over its files' names and contents; raises ForeignFileError."""
    documents = {
        "config.json": config,
        "tokenizer.json": tokenizer(config["vocab_size"]),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": word(0)},
    }
    return write_files(folder, {name: [(json.dumps(content) + "\n").encode()] for name, content in documents.items()})


def word(token: int) -> str:
    """What a token id decodes to."""
    return f"w{token}"


def tokenizer(tokens: int) -> dict[str, object]:
    """The content of tokenizer.json (format of the `tokenizers` library): a word of its own for each of `tokens` ids."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word(token): token for token in range(tokens)}, "unk_token": word(0)},
    }
