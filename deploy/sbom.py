"""Write the bill of materials of a release as CycloneDX JSON: Lading, its pinned Python packages, the images' Debian packages.

It takes requirements.txt and the images as they were built, so that nothing is listed that is not there. A tool for it
(cyclonedx-bom) reads requirements or an environment, but not the packages of an image in which no package manager runs, and
brings a dozen dependencies; the document itself is a list. The same inputs give the same bytes.

Source: CycloneDX 1.6 (JSON), package-url (pypi, deb); deb822 of /var/lib/dpkg/status.d.
"""

import json
import re
import tarfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_STATUS: Final = "var/lib/dpkg/status.d/"


def render(version: str, requirements: str, debian: list[dict[str, str]], *, date: int) -> str:
    components = [*_python(requirements), *map(_debian, sorted(debian, key=lambda one: one["Package"]))]
    lading = {"type": "application", "bom-ref": f"pkg:pypi/lading@{version}", "name": "lading", "version": version}
    body = {
        "metadata": {
            "timestamp": datetime.fromtimestamp(date, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**lading, "purl": lading["bom-ref"], "licenses": [{"license": {"id": "Apache-2.0"}}]},
        },
        "components": components,
        "dependencies": [{"ref": lading["bom-ref"], "dependsOn": [one["bom-ref"] for one in components]}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return json.dumps({**head, **body}, indent=1, ensure_ascii=False) + "\n"


def _python(requirements: str) -> Iterator[dict[str, Any]]:
    """Yield the pinned packages. Each has the hashes of all its distributions, of which pip takes one."""
    result = list(_PINNED.finditer(requirements))
    for one, following in zip(result, [*result[1:], None], strict=True):
        block = requirements[one.end() : following.start() if following else len(requirements)]
        name = re.sub(r"[-_.]+", "-", one[1]).lower()
        yield {
            **_library(name, one[2], f"pkg:pypi/{name}@{quote(one[2], safe='')}"),
            "hashes": [{"alg": "SHA-256", "content": content} for content in _HASH.findall(block)],
        }


def _debian(fields: dict[str, str]) -> dict[str, Any]:
    name, version = fields["Package"], fields["Version"]
    return _library(name, version, f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={fields['Architecture']}")


def _library(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def read_debian(images: Path) -> list[dict[str, str]]:
    """Return the fields of each Debian package of the images, which share their layers."""
    with tarfile.open(images) as archive:
        index = archive.extractfile("manifest.json")
        assert index  # noqa: S101 -- of a tar that image/build.py wrote
        layer = archive.extractfile(json.load(index)[0]["Layers"][0])
        with tarfile.open(fileobj=layer) as files:
            return [_fields(files, one) for one in files if one.name.startswith(_STATUS) and one.isfile()]


def _fields(files: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, str]:
    content = files.extractfile(member)
    assert content  # noqa: S101 -- it is a file
    return dict(re.findall(r"^([A-Za-z-]+): (.*)$", content.read().decode(), re.MULTILINE))
