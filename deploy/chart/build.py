"""Build the Helm chart from the manifests of deploy/: `python deploy/chart/build.py` prints its path.

It takes the objects as `kubectl apply -k deploy/` would apply them, puts values in the places of POINTS, and writes
lading-VERSION.tgz. With its default values the chart makes the same objects (tests/install/test_chart.py). The same files give
the same bytes. A template has no logic but a condition around it, so that nothing can be in the chart that is not in deploy/.

Source: Helm, "Charts" (Chart.yaml, values.schema.json, helm.sh/resource-policy).
"""

import argparse
import gzip
import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from kubectl_lading.install.manifests import Manifest, find_deploy, pod_spec, render
from lading import __version__

NAME: Final = "lading"
FIRST_DATE: Final = 315532800  # 1980, without SOURCE_DATE_EPOCH
CONDITIONS: Final = {
    "namespace.yaml": "namespaces.create",
    "central": "central.enabled",
    "scheduler": "central.enabled",
    "admission": "admission.enabled",
    "node": "node.enabled",
    "cert-manager": "certManager.enabled",
}
IMAGES: Final = {"lading-central": "central", "lading-node": "node", "kube-scheduler": "scheduler"}
# The values that configure the pods of an object: the pods follow a change of them.
CONFIGS: Final = {
    "lading-central": ".Values.central.config",
    "lading-scheduler": ".Values.scheduler.config",
    "lading-node": "(printf `%s%s` .Values.node.hooks .Values.node.shares)",
    "lading-guard": ".Values.node.hooks",
    "lading-remove": ".Values.node.hooks",
    "lading-proxy": "(.Values.node.publicKeys | toJson)",
    "lading-proxy-remove": "(.Values.images.node | toJson)",
}
# A pod annotation with a checksum of these. Not below lading.dev/: the guard would refuse lading-hooks' own pods without it.
CHECKSUM: Final = "checksum/config"

_POD: Final = "spec.template.spec"
# Kind, name and place of each field that is a value.
POINTS: Final = {
    ("Deployment", "lading-central", "spec.replicas"): "central.replicas",
    ("Deployment", "lading-central", f"{_POD}.containers.central.resources"): "central.resources",
    ("ConfigMap", "lading-central-config", "data.central_toml"): "central.config",
    ("Deployment", "lading-scheduler", "spec.replicas"): "scheduler.replicas",
    ("Deployment", "lading-scheduler", f"{_POD}.containers.kube-scheduler.resources"): "scheduler.resources",
    ("ConfigMap", "lading-scheduler-config", "data.config_yaml"): "scheduler.config",
    ("DaemonSet", "lading-node", f"{_POD}.containers.hooks.resources"): "node.resources",
    ("DaemonSet", "lading-node", "spec.updateStrategy.rollingUpdate.maxUnavailable"): "node.maxUnavailable",
    ("DaemonSet", "lading-node", f"{_POD}.volumes.nri.hostPath.path"): "node.folders.nri",
    ("DaemonSet", "lading-node", f"{_POD}.volumes.containerd.hostPath.path"): "node.folders.containerd",
    ("DaemonSet", "lading-node", f"{_POD}.volumes.driver.hostPath.path"): "node.folders.driver",
    ("DaemonSet", "lading-guard", f"{_POD}.volumes.nri.hostPath.path"): "node.folders.nri",
    ("DaemonSet", "lading-remove", f"{_POD}.volumes.containerd.hostPath.path"): "node.folders.containerd",
    ("ConfigMap", "lading-node-config", "data.hooks_toml"): "node.hooks",
    ("ConfigMap", "lading-node-config", "data.shares_toml"): "node.shares",
}
_PUBLIC_KEYS: Final = """\
{{- if and .Values.node.enabled .Values.node.publicKeys }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: lading-public-keys
  namespace: lading-nodes
data: {{ .Values.node.publicKeys | toJson }}
{{- end }}
"""
_CHART: Final = {
    "apiVersion": "v2",
    "name": NAME,
    "description": "GPUs and RDMA VFs for Kubernetes pods, decided by one central scheduler",
    "type": "application",
    "version": __version__,
    "appVersion": __version__,
    "kubeVersion": ">=1.30.0-0",
}


def build(out: Path, *, date: int) -> Path:
    deploy, here = find_deploy(), Path(__file__).parent
    files = {
        "Chart.yaml": yaml.safe_dump(_CHART, sort_keys=False),
        "values.yaml": fill_values((here / "values.yaml").read_text(), deploy),
        "values.schema.json": (here / "values.schema.json").read_text(),
        "templates/public-keys.yaml": _PUBLIC_KEYS,
        **dict(_templates(deploy)),
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{NAME}-{__version__}.tgz"
    path.write_bytes(_pack(files, date))
    return path


def fill_values(text: str, deploy: Path) -> str:
    """Put the files in the places of their names in angle brackets."""

    def content(result: re.Match[str]) -> str:
        indent = result[1] + "  "
        lines = (deploy / result[3]).read_text().splitlines()
        return f"{result[1]}{result[2]}: |\n" + "".join(f"{indent}{line}\n" if line else "\n" for line in lines)

    return re.sub(r"^( *)(\w+): <(.+)>\n", content, text, flags=re.MULTILINE)


def _templates(deploy: Path) -> Iterator[tuple[str, str]]:
    points = dict(POINTS)
    groups: dict[str, list[Manifest]] = {}
    parts = {_identity(one): part for part in (*_parts(deploy), "cert-manager") for one in _objects(deploy / part)}
    for one in (*render(deploy, suffixes=False), *render(deploy / "cert-manager")):
        groups.setdefault(parts[_identity(one)], []).append(one)
    for part, objects in groups.items():
        text = "".join(_template(one, points) for one in objects)
        if condition := CONDITIONS.get(part):
            text = f"{{{{- if .Values.{condition} }}}}\n{text}{{{{- end }}}}\n"
        yield f"templates/{part.removesuffix('.yaml')}.yaml", text
    if points:
        raise SystemExit(f"error: deploy/ has no {', '.join(map(str, points))}, which is in POINTS")


def _parts(deploy: Path) -> list[str]:
    return list(yaml.safe_load((deploy / "kustomization.yaml").read_text())["resources"])


def _objects(path: Path) -> list[Manifest]:
    return render(path, suffixes=False) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))


def _identity(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]


def _template(one: Manifest, points: dict[tuple[str, str, str], str]) -> str:
    """Return the object as YAML with expressions. Each point that is used is taken out."""
    expressions: list[str] = []

    def put(place: dict[str, Any], key: str, expression: str) -> None:
        place[key] = f"EXPRESSION{len(expressions)}END"
        expressions.append(f"{{{{ {expression} }}}}")

    kind, _, name = _identity(one)
    for point in [point for point in points if point[:2] == (kind, name)]:
        place, key = _find(one, point[2])
        put(place, key, f".Values.{points.pop(point)} | toJson")
    spec = pod_spec(one)
    if spec:
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            image = f".Values.images.{IMAGES[container['image'].partition(':')[0]]}"
            put(container, "image", f"printf `%s:%s` {image}.repository ({image}.tag | default .Chart.AppVersion) | toJson")
        put(spec, "imagePullSecrets", ".Values.imagePullSecrets | toJson")
        put(one["spec"]["template"]["metadata"].setdefault("annotations", {}), CHECKSUM, f"{CONFIGS[name]} | sha256sum")
    if kind == "CustomResourceDefinition":  # with it all reports of nodes would go
        one["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    text = yaml.safe_dump(one, sort_keys=False, width=1000, allow_unicode=True).replace("{{", '{{ "{{" }}')
    for number, expression in enumerate(expressions):
        text = text.replace(f"EXPRESSION{number}END", expression)
    return f"---\n{text}"


def _find(one: Manifest, path: str) -> tuple[dict[str, Any], str]:
    """Find a place. In a list, a word is the name of an element; `_` is a dot in a key."""
    *text, last = path.split(".")
    at: Any = one
    for word in text:
        at = next(item for item in at if item["name"] == word) if isinstance(at, list) else at[word]
    return at, last if last in at else last.replace("_", ".")


def _pack(files: Mapping[str, str], date: int) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, text in sorted(files.items()):
            info = tarfile.TarInfo(f"{NAME}/{name}")
            info.size, info.mtime = len(text.encode()), date
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the Helm chart, and print its path.")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where it goes (default: dist)")
    args = parser.parse_args()
    print(build(args.out, date=int(os.environ.get("SOURCE_DATE_EPOCH", FIRST_DATE))))


if __name__ == "__main__":
    main()
