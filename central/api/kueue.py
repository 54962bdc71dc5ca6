"""Define the few fields that central reads of Kueue's objects: AdmissionChecks, Workloads and ResourceFlavors.

A Workload is a job in Kueue's queue: sets of pods, each with a template and a count. Keys are camelCase on the wire, and
other keys are skipped. Source: kueue.x-k8s.io/v1beta2, as of Kueue 0.19.

Tests: tests/unit/central/gang/test_kueue.py
"""

from typing import Final

import msgspec

from central.request.pod import Pod, PodMetadata, PodSpec
from lading.kube.objects import AnnotatedMetadata, ObjectCondition, Wire, is_true

CONTROLLER: Final = "lading.dev/fits"  # `controllerName` of the AdmissionChecks that central answers


class CheckSpec(Wire, frozen=True):
    controller_name: str = ""


class WorkloadConditions(Wire, frozen=True):
    conditions: tuple[ObjectCondition, ...] = ()


class AdmissionCheck(Wire, frozen=True):
    metadata: AnnotatedMetadata
    spec: CheckSpec = CheckSpec()
    status: WorkloadConditions = WorkloadConditions()


class FlavorSpec(Wire, frozen=True):
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)


class ResourceFlavor(Wire, frozen=True):
    metadata: AnnotatedMetadata
    spec: FlavorSpec = FlavorSpec()


class Template(Wire, frozen=True):
    metadata: PodMetadata = PodMetadata()
    spec: PodSpec = PodSpec()


class PodSet(Wire, frozen=True):
    name: str
    template: Template = Template()

    def pod(self, namespace: str) -> Pod:
        """Return a pod that is built from the set's template."""
        metadata = msgspec.structs.replace(self.template.metadata, namespace=namespace)
        return Pod(metadata=metadata, spec=self.template.spec)


class WorkloadSpec(Wire, frozen=True):
    pod_sets: tuple[PodSet, ...] = ()
    priority: int | None = None
    active: bool = True


class Assignment(Wire, frozen=True):
    """Hold the quota reserved for a pod set. `count`, in pods, may be less than the job's."""

    name: str
    flavors: dict[str, str] = msgspec.field(default_factory=dict)
    count: int | None = None


class Admission(Wire, frozen=True):
    pod_set_assignments: tuple[Assignment, ...] = ()


class CheckState(Wire, frozen=True):
    name: str
    state: str = ""
    retry_count: int | None = None


class WorkloadStatus(Wire, frozen=True):
    conditions: tuple[ObjectCondition, ...] = ()
    admission: Admission | None = None
    admission_checks: tuple[CheckState, ...] = ()


class Workload(Wire, frozen=True):
    metadata: AnnotatedMetadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def has_quota(self) -> bool:
        """Return whether the Workload has reserved quota, and may start or runs. An evicted Workload keeps its quota until its
        pods are deleted, but its checks are asked again only when quota is reserved anew."""
        conditions = self.status.conditions
        ends = is_true(conditions, "Finished") or is_true(conditions, "Evicted") or self.metadata.deletion_timestamp is not None
        return self.spec.active and not ends and is_true(conditions, "QuotaReserved")

    @property
    def admitted(self) -> bool:
        return is_true(self.status.conditions, "Admitted")

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of pods of each set for which quota is reserved."""
        admission = self.status.admission
        return {one.name: one.count or 0 for one in (admission.pod_set_assignments if admission else ())}

    def flavors(self, pod_set: str) -> frozenset[str]:
        admission = self.status.admission
        every = admission.pod_set_assignments if admission else ()
        return frozenset(flavor for one in every if one.name == pod_set for flavor in one.flavors.values())

    def __str__(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"
