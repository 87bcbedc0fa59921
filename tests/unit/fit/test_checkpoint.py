"""Headers of safetensors files: a local folder, a server with range requests, a server without."""

import functools
import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spillway.engine.tinymodel import SHAPE, write_model
from spillway.fit.architectures import describe
from spillway.fit.checkpoint import INDEX, SINGLE, Folder, component_of, stored_bytes_by_component, stored_tensors
from spillway.fit.config import read_config
from spillway.fit.hub import HubFiles, resolve_url
from spillway.fit.sources import find_model
from spillway.fit.weights import FitError, bytes_by_component


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder, SHAPE)
    return folder


def write_shard(path: Path, tensors: dict[str, tuple[str, list[int], int]], cut: int = 0) -> None:
    header, offset = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * (offset - cut))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    shards = {
        "a.safetensors": {"model.embed_tokens.weight": ("BF16", [10, 4], 80)},
        "b.safetensors": {"model.layers.0.mlp.experts.0.up_proj.weight": ("BF16", [4, 4], 32)},
    }
    for name, tensors in shards.items():
        write_shard(tmp_path / name, tensors)
    places = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 112}, "weight_map": places}))
    return tmp_path


def test_predicted_and_stored_bytes_of_the_tiny_model_are_equal(tiny: Path) -> None:
    computed = bytes_by_component(describe(read_config(tiny)).weights)
    assert stored_bytes_by_component(stored_tensors(Folder(tiny))) == computed


def test_shards_are_read_through_the_index(sharded: Path) -> None:
    assert stored_bytes_by_component(stored_tensors(Folder(sharded))) == {"embedding": 80, "routed experts": 32}


def test_an_absent_shard_is_named(sharded: Path) -> None:
    (sharded / "b.safetensors").unlink()
    with pytest.raises(FitError, match=r"b\.safetensors: absent, but .* names it \(1 of 2 files absent\)"):
        stored_tensors(Folder(sharded))


def test_a_folder_without_checkpoint_is_an_error_here(tmp_path: Path) -> None:
    with pytest.raises(FitError, match=f"neither it nor {SINGLE} is there"):
        stored_tensors(Folder(tmp_path))


def test_an_index_that_names_a_tensor_of_no_file(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = "a.safetensors"
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(FitError, match=r"names 'lm_head\.weight', which no file holds"):
        stored_tensors(Folder(sharded))


@pytest.mark.parametrize("content", ["[]", "{}", "not json", '{"weight_map": 3}'])
def test_a_damaged_index(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(FitError, match="no weight_map in it"):
        stored_tensors(Folder(tmp_path))


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    write_shard(tmp_path / SINGLE, {"lm_head.weight": ("BF16", [8, 8], 128)}, cut=1)
    with pytest.raises(FitError, match=r"its header accounts for .*: the file is cut short"):
        stored_tensors(Folder(tmp_path))


@pytest.mark.parametrize("content", [b"", b"<html>not weights</html>", (20).to_bytes(8, "little") + b"{" * 20])
def test_a_file_that_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(FitError, match=r"not a safetensors file|not JSON"):
        stored_tensors(Folder(tmp_path))


def test_a_header_without_offsets(tmp_path: Path) -> None:
    text = json.dumps({"lm_head.weight": {"dtype": "BF16", "shape": [8]}}).encode()
    (tmp_path / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(FitError, match=r"lm_head\.weight: found .*; expected dtype, shape and data_offsets"):
        stored_tensors(Folder(tmp_path))


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("model.layers.3.mlp.experts.17.down_proj.weight_scale_inv", "routed experts"),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", "shared experts"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "router"),
        ("model.layers.3.block_sparse_moe.gate.weight", "router"),
        ("model.layers.3.mlp.gate_proj.weight", "dense MLP"),
        ("model.layers.3.self_attn.q_a_layernorm.weight", "norms"),
        ("model.layers.3.self_attn.kv_b_proj.weight", "attention"),
        ("layers.1.engram.embed.weight", "engram tables"),
        ("layers.1.engram.wkv.weight", "engram projections"),
        ("layers.1.hc_attn_fn", "residual mixing"),
        ("mtp.0.ffn.experts.5.w1.weight", "draft layers"),
        ("vision.blocks.1.attn.wo.weight", "vision"),
        ("embed.weight", "embedding"),
        ("head.weight", "head"),
        ("something.else", "other"),
    ],
)
def test_names_of_tensors(name: str, component: str) -> None:
    assert component_of(name) == component


def test_layers_past_the_backbone_draft() -> None:
    assert component_of("model.layers.61.mlp.experts.0.up_proj.weight", backbone_layers=61) == "draft layers"


class RangeServer(http.server.SimpleHTTPRequestHandler):
    """Answers ranges as a hub does, and counts the bytes that it sent; `honours` says what it does with a range."""

    sent = 0
    honours = "ranges"

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        content = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if self.honours == "nothing":
            return self.send_error(403)
        if wanted is None or self.honours == "whole files":
            self._answer(200, content, {})
        else:
            first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
            self._answer(206, content[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(content)}"})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        type(self).sent += len(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serving(folder: Path, honours: str = "ranges") -> Iterator[tuple[str, type[RangeServer]]]:
    handler = type("Handler", (RangeServer,), {"sent": 0, "honours": honours})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_headers_behind_a_url_and_no_tensor(tiny: Path) -> None:
    with serving(tiny) as (url, handler), HubFiles(url) as files:
        assert stored_tensors(files) == stored_tensors(Folder(tiny))
        header = int.from_bytes((tiny / SINGLE).read_bytes()[:8], "little")
        assert handler.sent < header + 200 < (tiny / SINGLE).stat().st_size / 10


def test_a_model_behind_a_url(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny) as (url, _):
        found = find_model(url, tmp_path, headers=True)
        assert found.config == read_config(tiny)
        assert found.tensors == tuple(stored_tensors(Folder(tiny)))
        assert find_model(url, tmp_path, headers=False).tensors is None


def test_a_server_that_ignores_ranges_is_refused_before_it_sends_all(tiny: Path) -> None:
    refused = pytest.raises(FitError, match="ignores range requests and would send the whole file")
    with serving(tiny, "whole files") as (url, _), HubFiles(url) as files, refused:
        files.read(SINGLE, 0, 8)


def test_a_server_that_refuses(tiny: Path) -> None:
    refused = pytest.raises(FitError, match="the server refused with 403")
    with serving(tiny, "nothing") as (url, _), HubFiles(url) as files, refused:
        files.read("config.json", 0, 8)


def test_a_file_that_the_server_lacks(tiny: Path) -> None:
    with serving(tiny) as (url, _), HubFiles(url) as files:
        assert not files.exists(INDEX)
        with pytest.raises(FitError, match="the server has no such file"):
            files.read(INDEX, 0, 8)


def test_a_server_that_is_not_there() -> None:
    with HubFiles("http://127.0.0.1:9") as files, pytest.raises(FitError, match=r"http://127\.0\.0\.1:9/config\.json: "):
        files.exists("config.json")


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://huggingface.co/Qwen/Qwen3-30B-A3B", "https://huggingface.co/Qwen/Qwen3-30B-A3B/resolve/main"),
        ("https://huggingface.co/Qwen/Qwen3-30B-A3B/tree/abc", "https://huggingface.co/Qwen/Qwen3-30B-A3B/resolve/abc"),
        ("https://mirror.example/models/x/", "https://mirror.example/models/x"),
    ],
)
def test_the_page_of_a_model_leads_to_its_files(url: str, base: str) -> None:
    assert resolve_url(url) == base


def test_a_url_without_a_scheme() -> None:
    with pytest.raises(FitError, match="http:// or https://"):
        resolve_url("huggingface.co/Qwen/Qwen3-30B-A3B")
