"""The committed JSON Schemas are those that the models generate."""

import jsonschema
import pytest
import yaml

from spillway.spec import schema
from spillway.spec.experiment import names, resolve
from spillway.spec.host import Host
from spillway.spec.read import read
from tests.conftest import ROOT


def test_schemas_are_in_step_with_the_models() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / schema.SCHEMAS).glob("*.json")}
    assert committed == schema.schemas(), "run: python -m spillway.spec.schema"


@pytest.mark.parametrize("kind", ["experiment", "host", "model"])
def test_files_of_the_project_obey_the_schema(kind: str) -> None:
    import json

    validator = jsonschema.Draft202012Validator(json.loads(schema.schemas()[f"{kind}.schema.json"]))
    folder = ROOT / "experiments" / ({"host": "hosts", "model": "models"}.get(kind, ""))
    files = sorted(folder.glob("*.yaml"))
    assert files
    for path in files:
        assert not list(validator.iter_errors(yaml.safe_load(path.read_text()))), path


HOSTS = {name: read(Host, ROOT / f"experiments/hosts/{name}.yaml") for name in names(ROOT, "hosts")}


@pytest.mark.parametrize("host", [name for name, host in HOSTS.items() if host.measured])
@pytest.mark.parametrize("name", names(ROOT))
def test_every_experiment_says_what_it_does_on_every_measured_host(name: str, host: str) -> None:
    resolve(ROOT, name, host)
