"""JSON Schemas of the specification files, generated from the models, for editors and for reviewers.

python -m spillway.spec.schema           writes workflow/schemas/*.schema.json
"""

import json
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from spillway.spec.experiment import Experiment
from spillway.spec.host import Host, Model
from spillway.spec.number import Figures, Numbers
from spillway.spec.workload import Workload

SCHEMAS = Path("workflow/schemas")
KINDS: dict[str, type[BaseModel]] = {
    "experiment": Experiment,
    "host": Host,
    "model": Model,
    "numbers": Numbers,
    "figures": Figures,
}


def schemas() -> dict[str, str]:
    """File name -> text of each JSON Schema (draft 2020-12)."""
    made = {name: kind.model_json_schema() for name, kind in KINDS.items()}
    made["workload"] = TypeAdapter(Workload).json_schema()
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {f"{name}.schema.json": json.dumps(draft | schema, indent=2) + "\n" for name, schema in made.items()}


def main() -> None:
    SCHEMAS.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (SCHEMAS / name).write_text(text, encoding="utf-8")
        print(SCHEMAS / name)


if __name__ == "__main__":
    main()
