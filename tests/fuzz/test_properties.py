"""What holds for every input of a reader, not only that it ends: round trips, copies that change nothing, bounded messages."""

import json
import math
import string
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import CLAUDE, CODEX, LAYERS, lines

from spillway.engine.tinymodel import Tensor, safetensors
from spillway.fit.checkpoint import Folder, read_header
from spillway.load.scrape import COUNTERS, GAUGES, parse_metrics
from spillway.placement.counts import ExpertCounts, LayerCounts, load_counts
from spillway.placement.plan import Choice, ModelIdentity, Plan, load_plan
from spillway.record import parquet
from spillway.seats.logs import read_logs
from spillway.spec.json_text import parse_json
from spillway.spec.read import SpecError, read_yaml
from spillway.spec.shown import printable, shown

FEW = settings(max_examples=40, deadline=None)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)


@pytest.fixture(scope="module")
def folder() -> Any:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@FEW
@given(VALUES)
def test_json_reads_back_what_was_written_and_refuses_a_name_twice(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value
    with pytest.raises(ValueError, match="occur twice"):
        parse_json(f'{{"a": {json.dumps(value)}, "b": 1, "a": 1}}')


@FEW
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_value_error(content: bytes) -> None:
    try:
        parse_json(content)
    except ValueError as error:
        assert str(error)


@FEW
@given(value=VALUES)
def test_yaml_reads_back_what_was_written(folder: Path, value: Any) -> None:
    path = folder / "value.yaml"
    path.write_text(yaml.safe_dump(value, allow_unicode=True), encoding="utf-8")
    assert read_yaml(path) == value


@FEW
@given(content=st.binary(max_size=200) | TEXT.map(str.encode))
def test_any_bytes_are_yaml_or_a_specification_error(folder: Path, content: bytes) -> None:
    path = folder / "bytes.yaml"
    path.write_bytes(content)
    try:
        read_yaml(path)
    except SpecError as error:
        assert str(error).startswith(f"{path}: ")


IDENTITIES = st.builds(
    ModelIdentity,
    config_sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    experts=st.integers(1, 12),
    top_k=st.integers(1, 4),
    expert_bytes=st.integers(1, 2**40),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    model = draw(IDENTITIES)
    ids = st.lists(st.integers(0, model.experts - 1), unique=True, max_size=model.experts).map(
        lambda found: tuple(sorted(found))
    )
    layers = draw(st.dictionaries(TEXT, ids, min_size=1, max_size=4))
    parameters = tuple(draw(st.lists(TEXT, unique=True, min_size=not any(layers.values()), max_size=3)))
    notes = st.integers() | TEXT | st.floats(allow_nan=False, allow_infinity=False)
    choice = Choice(builder="given", parameters=draw(st.dictionaries(TEXT, notes, max_size=3)))
    return Plan(model=model, choice=choice, layers=layers, parameters=parameters)


@FEW
@given(plan=plans())
def test_a_plan_reads_back_with_the_same_hash(folder: Path, plan: Plan) -> None:
    path = folder / "plan.json"
    plan.save(path)
    found = load_plan(path)
    assert found == plan and found.sha256 == plan.sha256


@FEW
@given(data=st.data(), model=IDENTITIES)
def test_counts_read_back_and_differ_from_themselves_by_nothing(
    folder: Path, data: st.DataObject, model: ModelIdentity
) -> None:
    picks = st.lists(st.integers(1, 2**50), min_size=model.experts, max_size=model.experts).map(tuple)
    layers = {name: LayerCounts(decode=data.draw(picks), prefill=data.draw(picks)) for name in LAYERS}
    counts = ExpertCounts(model=model, origin=data.draw(TEXT), decode_rows=8, layers=layers)
    path = folder / "counts.json"
    counts.save(path)
    found = load_counts(path)
    assert found == counts and found.sha256 == counts.sha256
    nothing = found.since(counts)
    assert not any(any(layer.decode) or any(layer.prefill) for layer in nothing.layers.values())
    assert {
        name: tuple(map(sum, zip(layers[name].decode, layers[name].prefill, strict=True))) for name in LAYERS
    } == found.picks()


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "run": TEXT,
            "boot": st.integers(0, 2**31 - 1),
            "startup_s": st.floats(0, 1e6),
            "health_s": st.floats(0, 1e6),
            "process_memory_bytes": st.integers(0, 2**62),
        },
        optional={"weights_bytes": st.integers(0, 2**62)},
    ),
    min_size=1,
    max_size=5,
)


@FEW
@given(rows=ROWS, origin=st.dictionaries(TEXT, SCALARS, max_size=4))
def test_a_table_reads_back_with_its_provenance(folder: Path, rows: list[dict[str, Any]], origin: dict[str, Any]) -> None:
    path = folder / "x.parquet"
    parquet.write(path, "boots", rows, origin)
    assert parquet.provenance(path) == origin
    found = parquet.read(path)
    for name in rows[0]:
        assert found[name].tolist() == [row.get(name) for row in rows] or name == "weights_bytes"
    assert found["weights_bytes"].isna().tolist() == ["weights_bytes" not in row for row in rows]


SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=6)


@FEW
@given(shapes=SHAPES)
def test_a_checkpoints_header_accounts_for_every_byte(folder: Path, shapes: list[tuple[int, int]]) -> None:
    tensors = {
        f"model.layers.{n}.mlp.experts.{n}.up_proj.weight": np.zeros(shape, np.float32) for n, shape in enumerate(shapes)
    }
    content = b"".join(safetensors(Tensor(name, "BF16", zeros.shape, zeros.copy) for name, zeros in tensors.items()))
    (folder / "model.safetensors").write_bytes(content)
    found = read_header(Folder(folder), "model.safetensors")
    assert {tensor.name: tensor.shape for tensor in found} == {name: values.shape for name, values in tensors.items()}
    length = int.from_bytes(content[:8], "little")
    assert sum(tensor.bytes for tensor in found) == len(content) - 8 - length


LABELS = st.text(string.ascii_letters + string.digits + '"\\\n {}=,#', max_size=8)


@FEW
@given(st.dictionaries(LABELS, st.floats(0, 2.0**50), min_size=1, max_size=3))
def test_a_metrics_page_reads_back(engines: dict[str, float]) -> None:
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    for column, name in GAUGES.items():
        registry = CollectorRegistry()
        gauge = Gauge(name, "help", ["engine", "model_name"], registry=registry)
        for engine, value in engines.items():
            gauge.labels(engine, "m").set(value)
        page = generate_latest(registry).decode()
        assert parse_metrics(page) == {engine: {column: value} for engine, value in engines.items()}
    column, name = next(iter(COUNTERS.items()))
    assert parse_metrics(f'{name}_total{{engine="0"}} 1\n{name}_total{{engine="0",model_name="b"}} 2\n') == {"0": {column: 3.0}}


@pytest.mark.parametrize("records", [CLAUDE, CODEX], ids=["claude", "codex"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_log_written_twice_or_with_rubbish_between_says_the_same(
    folder: Path, records: list[Any], data: st.DataObject
) -> None:
    def said(content: list[bytes]) -> list[tuple[float, float, int, int]]:
        path = folder / "log.jsonl"
        path.write_bytes(b"".join(content))
        calls = read_logs(path).calls.values()
        return sorted((call.start_s, call.end_s, call.context_tokens, call.output_tokens) for call in calls)

    whole = lines(records)[0].splitlines(keepends=True)
    plain = said(whole)
    rubbish = st.sampled_from([b"\n", b"{\n", b"[]\n", b"\xff\xfe\n", b'"text"\n', b'{"type": 7}\n', b"\0" * 99 + b"\n"])
    mixed = [part for line in whole for part in (*data.draw(st.lists(rubbish, max_size=2)), line)]
    assert said(mixed) == plain
    assert said(whole + [whole[-1]] * data.draw(st.integers(1, 3))) == plain


@FEW
@given(st.text(max_size=300))
def test_shown_text_is_short_and_commands_no_terminal(text: str) -> None:
    assert len(shown(text)) <= 80 and len(shown([text] * 50, 200)) <= 200
    written = printable(text)
    assert written == printable(written)
    assert not any(ord(character) in (*range(9), *range(11, 32), *range(127, 160)) for character in written)
    assert written.encode("utf-8").decode("utf-8") == written


def test_shown_is_quick_on_what_grows_without_bound() -> None:
    value: Any = ["x"]
    for _ in range(200):
        value = [value, value, {"a": value}]
    assert len(shown(value)) <= 80
    assert shown(math.nan) == "nan"


@pytest.mark.parametrize("change", [("\n", "\r\n"), ("id,", "\ufeffid,")], ids=["CR LF", "byte order mark"])
def test_a_csv_from_another_system_reads_the_same(folder: Path, change: tuple[str, str]) -> None:
    figures = Path(__file__).parents[2] / "data" / "published" / "figures.csv"
    path = folder / "figures.csv"
    path.write_bytes(figures.read_text(encoding="utf-8").replace(*change).encode())
    assert parquet.read(path).equals(parquet.read(figures))


def test_a_csv_of_endless_columns_is_refused_at_once(folder: Path) -> None:
    path = folder / "wide.csv"
    path.write_bytes(b"," * 100_000)
    with pytest.raises(parquet.RecordError, match="more than 1000 values"):
        parquet.read(path)
