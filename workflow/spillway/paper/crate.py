"""The description of a release for machines: RO-Crate 1.1, which is JSON-LD (https://w3id.org/ro/crate/1.1).

Every file of the archive is an entity with its size and SHA-256; every run that measured data is an action with its
experiment, its engine and the files that it made.
"""

import datetime
import json
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

METADATA = "ro-crate-metadata.json"
PROFILE = "https://w3id.org/ro/crate/1.1"
LICENSE = "https://spdx.org/licenses/Apache-2.0"
CODE = "#code"
DIRTY = ", with changes that are in no commit"
# Types that Python's table lacks, or has differently on different machines.
ENCODINGS = {
    ".parquet": "application/vnd.apache.parquet",
    ".yaml": "application/yaml",
    ".cff": "application/yaml",
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".html": "text/html",
    ".pdf": "application/pdf",
    "": "text/plain",
}


@dataclass(frozen=True)
class Packed:
    """One file of the archive."""

    name: str
    size: int
    sha256: str
    description: str


@dataclass(frozen=True)
class Crate:
    """What a release is, besides its files."""

    title: str
    description: str
    version: str
    author: str
    published: datetime.datetime
    commit: str


def describe(crate: Crate, files: list[Packed], listed: Mapping[str, Mapping[str, str]]) -> str:
    """The text of ro-crate-metadata.json; `listed` are the manifest's rows by file name below data/."""
    there = {file.name for file in files}
    runs = _runs(listed, there)
    graph: list[dict[str, Any]] = [
        {
            "@id": METADATA,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": {"@id": PROFILE},
        },
        {
            "@id": "./",
            "@type": "Dataset",
            "name": crate.title,
            "description": crate.description,
            "version": crate.version,
            "datePublished": crate.published.date().isoformat(),
            "license": {"@id": LICENSE},
            "author": {"@id": "#authors"},
            "hasPart": [{"@id": quote(file.name)} for file in files],
            "mentions": [{"@id": run["@id"]} for run in runs],
        },
        {"@id": "#authors", "@type": "Organization", "name": crate.author},
        {
            "@id": LICENSE,
            "@type": "CreativeWork",
            "name": "Apache License 2.0",
            "description": "Of all files; figures in data/published are facts of the works that they are taken from.",
        },
        {
            "@id": CODE,
            "@type": "SoftwareSourceCode",
            "name": "Spillway",
            "description": "The code that measured and built all of this, by its git commit.",
            "version": crate.commit,
        },
        *map(_file, files),
        *runs,
        *_engines(runs),
    ]
    context = [f"{PROFILE}/context", {"sha256": "https://schema.org/sha256"}]  # which the context of 1.1 lacks
    return json.dumps({"@context": context, "@graph": graph}, indent=1, ensure_ascii=False) + "\n"


def _file(file: Packed) -> dict[str, Any]:
    suffix = file.name[file.name.rfind(".") :] if "." in file.name.rsplit("/", 1)[-1] else ""
    return {
        "@id": quote(file.name),
        "@type": "File",
        "name": file.name.rsplit("/", 1)[-1],
        "description": file.description,
        "contentSize": str(file.size),
        "encodingFormat": ENCODINGS.get(suffix) or mimetypes.types_map.get(suffix, "application/octet-stream"),
        "sha256": file.sha256,
    }


def _runs(listed: Mapping[str, Mapping[str, str]], there: set[str]) -> list[dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}
    for name, row in listed.items():
        if not row["run"] or f"data/{name}" not in there:
            continue
        run = runs.setdefault(
            row["run"],
            {
                "@id": f"#run-{row['run']}",
                "@type": "CreateAction",
                "name": f"{row['experiment']} on host {row['host']}",
                "description": f"model {row['model']}, commit {row['commit']}{DIRTY if row['dirty'] == 'true' else ''}",
                "startTime": row["measured_at"],
                "object": {"@id": quote(f"experiments/{row['experiment']}.yaml")},
                "instrument": {"@id": CODE if row["engine"] == "none" else f"#engine-{quote(row['engine'])}"},
                "result": [],
            },
        )
        run["result"].append({"@id": quote(f"data/{name}")})
    return [runs[run] for run in sorted(runs)]


def _engines(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    used = sorted({run["instrument"]["@id"] for run in runs} - {CODE})
    names = {identity: identity.removeprefix("#engine-").replace("%20", " ") for identity in used}
    return [{"@id": identity, "@type": "SoftwareApplication", "name": name} for identity, name in names.items()]
