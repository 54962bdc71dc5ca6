"""Define the pods of `make demo-central`: those of deploy/samples, pods that fill nodes, and pods that wait or never fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from lading.vocabulary import GANG, GANG_MIN, PREFIX

NAMESPACE: Final = "default"
SAMPLES: Final = Path(__file__).parents[1] / "deploy" / "samples"
PROFILES: Final = {"h100-1": "demo-8gpu", "a100-1": "mn2a", "mig-1": "mig", "desk-1": "workstation"}  # pods by node

_H100: Final = "NVIDIA H100 80GB HBM3"
_A100: Final = "NVIDIA A100-SXM4-40GB"
_ADA: Final = "NVIDIA RTX 6000 Ada Generation"


def _pod(name: str, *limits: Mapping[str, str | int], **annotations: str) -> dict[str, Any]:
    """Return a pod with a container for each of `limits`. Keys are written without `lading.dev/`, with `_` for `-`."""
    containers = [{"name": f"c{n}", "resources": {"limits": _prefixed(one)}} for n, one in enumerate(limits)]
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": _prefixed(annotations)}
    return {"metadata": metadata, "spec": {"schedulerName": "lading", "containers": containers}}


def _prefixed(text: Mapping[str, str | int]) -> dict[str, str]:
    return {PREFIX + key.replace("_", "-"): str(value) for key, value in text.items()}


FILLING: Final = (
    _pod("finetune", {"gpu": 2, "rdma": 2}, gpu_model=_H100),
    _pod("notebook", {"gpu_memory": "12Gi", "gpu_core": 25}, gpu_model=_ADA),
    _pod("serve-a", {"gpu_memory": "24Gi", "gpu_core": 40}),
    _pod("serve-b", {"gpu_memory": "40Gi", "gpu_core": 30}),
    _pod("two-shares", {"gpu_memory": "6Gi"}, {"gpu_memory": "10Gi", "rdma": 1}, gpu_model=_A100),
    _pod("spread-out", {"gpu_memory": "4Gi"}, policy="spread", gpu_model=_H100),
)
MISSPELT: Final = _pod("misspelt", {"gpu_mem": "8Gi"})
TOO_LARGE: Final = _pod("too-large", {"gpu_memory": "200Gi"})
WAITS: Final = _pod("next-run", {"gpu": 4, "rdma": 4}, gpu_model=_A100)
URGENT: Final = _pod("urgent", {"gpu": 1}, gpu_model=_ADA)
URGENT["spec"]["priorityClassName"] = "lading-training"  # a class in deploy/samples
ENDS: Final = "gpus-and-rdma"  # the sample whose devices WAITS gets


LAST_BUT_TWO: Final = _pod("one-more", {"gpu": 1}, gpu_model=_A100)  # with it two cards of that model are free
JOBS: Final = ("left", "right")


def jobs(*, gangs: bool) -> list[dict[str, Any]]:
    """Return two jobs of two pods with one card each, in turns, as two controllers create them. `gangs`: the pods of each start
    together."""
    pods = [_pod(f"{job}-{number}", {"gpu": 1}, gpu_model=_A100) for number in range(2) for job in JOBS]
    for pod in pods if gangs else ():
        job = pod["metadata"]["name"].partition("-")[0]
        pod["metadata"]["annotations"] |= {GANG: job, GANG_MIN: "2"}
    return pods


def read_samples() -> list[dict[str, Any]]:
    pods = read_documents("Pod")
    for pod in pods:
        pod["metadata"]["namespace"] = NAMESPACE
    return pods


def read_documents(kind: str) -> list[dict[str, Any]]:
    """Return the objects of this kind in deploy/samples."""
    documents = [one for path in sorted(SAMPLES.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text()) if one]
    return [one for one in documents if one["kind"] == kind]
