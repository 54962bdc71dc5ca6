"""Render the manifests of deploy/ like `kubectl kustomize`, but without that program, for this command and the Helm chart.

Take a folder with a kustomization.yaml; return the objects in its order. Supported are the fields that deploy/ uses: resources,
configMapGenerator with files, images, labels. Any other field is refused, so that nothing is left out silently. The name of a
generated ConfigMap ends with a hash of its content, as in kustomize, so that pods restart after a change.

Source: kustomize's "kustomization" reference; sigs.k8s.io/kustomize/api/hasher (the suffix).

Tests: tests/unit/kubectl_lading/install/test_install.py
"""

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from lading.errors import HostError

Manifest = dict[str, Any]

# Prefer libyaml's parser, which needs a tenth of the time for deploy/; PyYAML may be built without it.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KNOWN: Final = {"apiVersion", "kind", "resources", "configMapGenerator", "images", "labels"}
_SUFFIX: Final = str.maketrans({"0": "g", "1": "h", "3": "k", "a": "m", "e": "t"})
_SUFFIX_LENGTH: Final = 10


def find_deploy() -> Path:
    """Return the folder of the manifests, in the git checkout or in the installed wheel. Raise HostError if there is none."""
    wheel = (Path(folder, "share/lading/deploy") for folder in (sys.prefix, sysconfig.get_path("data")))
    places = (Path(__file__).parents[2] / "deploy", *wheel)
    for folder in places:
        if (folder / "kustomization.yaml").is_file():
            return folder
    raise HostError(f"cannot find the manifests: there is no {places[-1]}", hint="install the wheel with pip")


def render(folder: Path, *, suffixes: bool = True) -> list[Manifest]:
    """Return the folder's objects. Without `suffixes`, generated ConfigMaps have the plain names in the kustomizations."""
    generated: list[Manifest] = []
    objects = _render(folder, generated)
    for one in generated if suffixes else ():
        metadata = one["metadata"]
        plain, metadata["name"] = metadata["name"], f"{metadata['name']}-{_suffix(one)}"
        for reference in _references(objects, plain, metadata["namespace"]):
            reference["name"] = metadata["name"]
    return objects


def _render(folder: Path, generated: list[Manifest]) -> list[Manifest]:
    kustomization = yaml.load((folder / "kustomization.yaml").read_text(), _LOADER)  # noqa: S506  both are safe loaders
    if unknown := sorted(kustomization.keys() - _KNOWN):
        raise HostError(f"cannot render {folder}: no meaning is known here for {', '.join(unknown)}")
    objects: list[Manifest] = []
    for name in kustomization["resources"]:
        path = folder / name
        objects += _render(path, generated) if path.is_dir() else filter(None, yaml.load_all(path.read_text(), _LOADER))
    for generator in kustomization.get("configMapGenerator", []):
        data = {name: (folder / name).read_text() for name in generator["files"]}
        metadata = {"name": generator["name"], "namespace": generator["namespace"]}
        generated.append({"apiVersion": "v1", "data": data, "kind": "ConfigMap", "metadata": metadata})
        objects.append(generated[-1])
    for image in kustomization.get("images", []):
        for container in _containers(objects):
            if container["image"] == image["name"]:
                container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    for labels in kustomization.get("labels", []):
        for one in objects:
            one["metadata"].setdefault("labels", {}).update(labels["pairs"])
    return objects


def pod_spec(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification of an object's pods; empty for an object without a pod template."""
    spec: dict[str, Any] = one.get("spec", {}).get("template", {}).get("spec", {})
    return spec


def _containers(objects: Iterable[Manifest]) -> Iterator[dict[str, Any]]:
    for spec in map(pod_spec, objects):
        yield from (*spec.get("initContainers", ()), *spec.get("containers", ()))


def _references(objects: Iterable[Manifest], name: str, namespace: str) -> Iterator[dict[str, Any]]:
    for one in objects:
        if one["metadata"].get("namespace") == namespace:
            for volume in pod_spec(one).get("volumes", ()):
                sources = (volume, *volume.get("projected", {}).get("sources", ()))
                yield from (source["configMap"] for source in sources if source.get("configMap", {}).get("name") == name)


def _suffix(config_map: Manifest) -> str:
    hashed = {"data": config_map["data"], "kind": "ConfigMap", "name": ""}  # kustomize's hash leaves out the name
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":  # Go's JSON encoder escapes these characters
        text = text.replace(character, f"\\u{ord(character):04x}")
    return hashlib.sha256(text.encode()).hexdigest()[:_SUFFIX_LENGTH].translate(_SUFFIX)
