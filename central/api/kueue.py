"""Define the few fields that central reads of Kueue's objects: AdmissionChecks, Workloads and ResourceFlavors.

A Workload is a job in Kueue's queue: sets of pods, each with a template and a count. Keys are camelCase on the wire, and
other keys are skipped. Source: kueue.x-k8s.io/v1beta2, as of Kueue 0.19.

Tests: tests/unit/central/gang/test_kueue.py
"""

from typing import Final

import msgspec

from central.request.pod import Pod, PodMetadata, PodSpec

CONTROLLER: Final = "lading.dev/fits"  # `controllerName` of the AdmissionChecks that central answers


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Configure the decoding of all parts of an object."""


class WorkloadCondition(_Wire, frozen=True):
    type: str = ""
    status: str = ""  # True, False, Unknown


def is_true(conditions: tuple[WorkloadCondition, ...], kind: str) -> bool:
    return any(condition.type == kind and condition.status == "True" for condition in conditions)


class CheckSpec(_Wire, frozen=True):
    controller_name: str = ""


class WorkloadConditions(_Wire, frozen=True):
    conditions: tuple[WorkloadCondition, ...] = ()


class AdmissionCheck(_Wire, frozen=True):
    metadata: PodMetadata
    spec: CheckSpec = CheckSpec()
    status: WorkloadConditions = WorkloadConditions()


class FlavorSpec(_Wire, frozen=True):
    node_labels: dict[str, str] = {}


class ResourceFlavor(_Wire, frozen=True):
    metadata: PodMetadata
    spec: FlavorSpec = FlavorSpec()


class Template(_Wire, frozen=True):
    metadata: PodMetadata = PodMetadata()
    spec: PodSpec = PodSpec()


class PodSet(_Wire, frozen=True):
    name: str
    template: Template = Template()

    def pod(self, namespace: str) -> Pod:
        """Return a pod that is built from the set's template."""
        metadata = msgspec.structs.replace(self.template.metadata, namespace=namespace)
        return Pod(metadata=metadata, spec=self.template.spec)


class WorkloadSpec(_Wire, frozen=True):
    pod_sets: tuple[PodSet, ...] = ()
    priority: int | None = None
    active: bool = True


class Assignment(_Wire, frozen=True):
    """Hold the quota reserved for a pod set. `count`, in pods, may be less than the job's."""

    name: str
    flavors: dict[str, str] = {}
    count: int | None = None


class Admission(_Wire, frozen=True):
    pod_set_assignments: tuple[Assignment, ...] = ()


class CheckState(_Wire, frozen=True):
    name: str
    state: str = ""
    retry_count: int | None = None


class WorkloadStatus(_Wire, frozen=True):
    conditions: tuple[WorkloadCondition, ...] = ()
    admission: Admission | None = None
    admission_checks: tuple[CheckState, ...] = ()


class Workload(_Wire, frozen=True):
    metadata: PodMetadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def has_quota(self) -> bool:
        """Return whether the Workload has reserved quota, and may start or runs. An evicted Workload keeps its quota until its
        pods are deleted, but its checks are asked again only when quota is reserved anew."""
        said = self.status.conditions
        ends = is_true(said, "Finished") or is_true(said, "Evicted") or self.metadata.deletion_timestamp is not None
        return self.spec.active and not ends and is_true(said, "QuotaReserved")

    @property
    def admitted(self) -> bool:
        return is_true(self.status.conditions, "Admitted")

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of pods of each set for which quota is reserved."""
        admission = self.status.admission
        return {one.name: one.count or 0 for one in (admission.pod_set_assignments if admission else ())}

    def flavors(self, pod_set: str) -> frozenset[str]:
        """Return the flavors of all resources of the set."""
        admission = self.status.admission
        every = admission.pod_set_assignments if admission else ()
        return frozenset(flavor for one in every if one.name == pod_set for flavor in one.flavors.values())

    def __str__(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"
