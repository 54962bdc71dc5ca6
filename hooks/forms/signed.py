"""Parse the assignment that central wrote: strict JSON in, typed assignment out, or a refusal that names the JSON path.

Strict, because two readers that understand one text differently are how a device is granted twice: duplicate keys, NaN, a float
in place of a count, and text that is not Unicode are refused. Open, because central may be newer than the node: unknown keys
are ignored, and incompatible changes come under another `v`. Bounded, because a pod's author can write the annotation too:
size, depth and digits are limited before anything is built from them.

Source: the annotation's form in docs/reference.md; RFC 8259.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from hooks.forms.messages import listed_keys, not_accepted
from hooks.forms.netdev import WrongSettingError, parse_flag, parse_settings, settings_conflict
from hooks.forms.signature import check_signature
from hooks.model.assignment import Assignment, ContainerRequest, Form, FormName, GpuRequest, Refusal, Trust, VfRequest
from hooks.model.attachment import VfSettings
from lading.devices import assignment as schema
from lading.devices.identity import (
    is_container_name,
    is_ifname,
    parse_gpu_uuid,
    parse_mig_uuid,
    parse_pci_address,
    shown,
    shown_value,
)
from lading.reasons import Reason
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, PREFIX, PciAddress, PodUid, is_request_annotation

MAX_BYTES: Final = 262_144  # Kubernetes' limit for all annotations of an object together
MAX_DEPTH: Final = 32  # this form is five deep; a newer central may nest unknown keys deeper, an attacker much deeper
MAX_DIGITS: Final = 19  # digits of a 64-bit integer

T = TypeVar("T")
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_RIGHT: Final = {
    "uuid": "write a GPU's UUID, GPU-… or MIG-…, whole",
    "bdf": "write a PCI address of the form 0000:3b:00.2",
    "pf": "write a PCI address of the form 0000:3b:00.0",
}

# Strings are skipped whole, so that a bracket inside one is not counted. A string without an end reaches to the end of the
# text: this keeps the scan linear, and json.loads says what is wrong with it.
_STRINGS_AND_BRACKETS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


class Central:
    """Read the annotation of Lading's scheduler. The signature comes first: where signatures are required, a text
    without a valid one is not even parsed."""

    forms: Final = (Form.SIGNED, Form.UNSIGNED)
    prefixes: Final = (PREFIX,)
    text: Final = "for central"

    def own(self, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if key in {ASSIGNMENT, ASSIGNMENT_SIGNATURE} or is_request_annotation(key)]

    def parse(
        self, annotations: Mapping[str, str], keys: Sequence[str], *, pod: PodUid, node: str, trust: Trust
    ) -> Assignment | Refusal:
        text, written = annotations.get(ASSIGNMENT), annotations.get(ASSIGNMENT_SIGNATURE)
        if text is None:
            return _missing(keys)
        if written is not None and Form.SIGNED in trust.accepted:
            key_id = check_signature(written, text, trust.keys)
            if isinstance(key_id, Refusal):
                return key_id
            return parse_central(text, pod=pod, node=node, form=Form.SIGNED, key_id=key_id)
        if Form.UNSIGNED in trust.accepted:
            # Also with a signature: an attacker who could forge it could leave it out.
            return parse_central(text, pod=pod, node=node, form=Form.UNSIGNED)
        if Form.SIGNED in trust.accepted:
            return Refusal(
                reason=Reason.SIGNATURE_MISSING,
                message=f"cannot use {ASSIGNMENT}: this node accepts signed ones only, and there is no {ASSIGNMENT_SIGNATURE}",
            )
        return not_accepted("an assignment by central", [ASSIGNMENT], trust)


def _missing(keys: Sequence[str]) -> Refusal:
    if ASSIGNMENT_SIGNATURE in keys:
        return Refusal(
            reason=Reason.ANNOTATION_MALFORMED,
            message=f"cannot use {ASSIGNMENT_SIGNATURE}: there is no {ASSIGNMENT} that it could sign",
        )
    return Refusal(
        reason=Reason.ASSIGNMENT_MISSING,
        message=f"cannot find {ASSIGNMENT}: the pod asks for placement with {listed_keys(keys)} and was bound without one; "
        "set schedulerName: lading and do not set nodeName",
    )


class _WrongError(Exception):
    """Ends the parse at any depth; `parse_central` turns it into a value."""

    def __init__(self, cause: str, reason: Reason = Reason.ANNOTATION_MALFORMED) -> None:
        super().__init__(cause)
        self.refusal = Refusal(reason=reason, message=f"cannot use {ASSIGNMENT}: {cause}")


def parse_central(text: str, *, pod: PodUid, node: str, form: FormName, key_id: str = "") -> Assignment | Refusal:
    """Return the assignment, if it is for this pod on this node. The caller, which knows the grants, decides whether `gen` is
    stale."""
    try:
        root = _object(_load(text), "the annotation")
        _check_addressee(root, pod, node)
        entries = _object(_required(root, "containers", "containers"), "containers")
        containers = {name: _container(name, value) for name, value in entries.items()}
        _check_shared(containers)
        return Assignment(
            form=form,
            containers=containers,
            pod=pod,
            node=node,
            gen=_whole_number(_required(root, "gen", "gen"), "gen", 0, schema.MAX_GEN),
            key_id=key_id,
        )
    except _WrongError as e:
        return e.refusal


def _load(text: str) -> object:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _WrongError(f"it has {size} bytes, more than {MAX_BYTES}")
    _check_depth(text)
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate, as "\ud800", is no Unicode text
    except json.JSONDecodeError as e:
        raise _WrongError(f"not JSON at character {e.pos}: {e.msg}") from e
    except UnicodeEncodeError as e:
        raise _WrongError("a text holds half of a surrogate pair (\\ud800 to \\udfff)") from e
    return value


def _check_depth(text: str) -> None:
    depth = 0
    for match in _STRINGS_AND_BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _WrongError(f"nested deeper than {MAX_DEPTH} levels at character {match.start()}")
        elif match[0] in "]}":
            depth -= 1


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _WrongError(f"the key {shown(twice)} stands twice in one object")
    return value


def _no_constant(word: str) -> NoReturn:
    raise _WrongError(f"{word} is no JSON number")


def _bounded_int(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise _WrongError(f"a number of {len(digits)} digits, {shown(digits)}; no number has more than {MAX_DIGITS}")
    return int(digits)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _WrongError(f"the number {shown(digits)} is too large")
    return value


def _check_addressee(root: dict[str, Any], pod: PodUid, node: str) -> None:
    version = root.get("v")
    if type(version) is not int or version != schema.VERSION:
        raise _WrongError(
            f"v is {shown_value(version)} and this node reads v {schema.VERSION}; "
            "bring lading-hooks and central to versions that agree",
            Reason.ASSIGNMENT_VERSION,
        )
    for_pod = _text(_required(root, "pod", "pod"), "pod")
    if for_pod != pod:
        raise _WrongError(
            f"pod is {shown(for_pod)} and this pod's uid is {shown(pod)}; an assignment cannot be copied to another pod",
            Reason.ASSIGNMENT_OTHER_POD,
        )
    for_node = _text(_required(root, "node", "node"), "node")
    if for_node != node:
        raise _WrongError(
            f"node is {shown(for_node)} and this node is {shown(node)}; if the two are one machine, correct its node_name",
            Reason.ASSIGNMENT_OTHER_NODE,
        )


def _container(name: str, value: object) -> ContainerRequest:
    if not is_container_name(name):
        raise _WrongError(f"containers has the key {shown(name)}, which is no container name (a DNS label)")
    path = f"containers.{name}"
    entry = _object(value, path)
    gpus = tuple(_gpu(v, f"{path}.gpus[{i}]") for i, v in enumerate(_array(entry.get("gpus", []), f"{path}.gpus")))
    vfs = tuple(_vf(v, f"{path}.vfs[{i}]") for i, v in enumerate(_array(entry.get("vfs", []), f"{path}.vfs")))
    _check_distinct([gpu.name for gpu in gpus], f"{path}.gpus")
    _check_distinct([vf.name for vf in vfs], f"{path}.vfs")
    return ContainerRequest(gpus=gpus, vfs=vfs)


def _check_shared(containers: Mapping[str, ContainerRequest]) -> None:
    """Check settings of VFs in several containers. A pod has one network namespace: a VF is in it once, by one name, with one
    set of settings, whichever container is created first."""
    first: dict[str, tuple[str, VfRequest]] = {}
    named: dict[str, tuple[str, VfRequest]] = {}
    for name, container in containers.items():
        for i, vf in enumerate(container.vfs):
            path = f"containers.{name}.vfs[{i}]"
            at, same = first.setdefault(vf.name, (path, vf))
            if (same.ifname, same.netdev, same.settings) != (vf.ifname, vf.netdev, vf.settings):
                raise _WrongError(
                    f"{path} and {at} give {vf.name} different settings; all containers of a pod must use the same settings "
                    "for one VF"
                )
            at, other = named.setdefault(vf.ifname or vf.name, (path, vf))
            if other.name != vf.name:
                raise _WrongError(
                    f"{path}.ifname is {shown(vf.ifname)}, as {at}.ifname is; two VFs of one pod cannot have the same "
                    "interface name"
                )


def _gpu(value: object, path: str) -> GpuRequest:
    gpu = _read(
        value, path, schema.AssignedGpu, uuid=lambda text: parse_mig_uuid(text) or parse_gpu_uuid(text), bdf=parse_pci_address
    )
    whole = gpu.memory_mib is None and gpu.core_percent is None
    if gpu.uuid.startswith("MIG-") and not whole:
        raise _WrongError(f"{path} is a share of a MIG instance; an instance is given whole")
    if whole and (gpu.pod_memory_mib is not None or gpu.pod_core_percent is not None):
        raise _WrongError(f"{path} has pod_memory_mib or pod_core_percent and is no share; they are of a pod's shares")
    if whole and (gpu.core_limit_percent is not None or gpu.isolation is not None):
        raise _WrongError(f"{path} has core_limit_percent or isolation and is no share; they are of shares")
    if gpu.core_limit_percent is not None and gpu.core_limit_percent < (gpu.core_percent or 0):
        raise _WrongError(f"{path}.core_limit_percent is {gpu.core_limit_percent}, less than core_percent, {gpu.core_percent}")
    # The pod's containers take turns: what it takes is less than their sum, and no less than one of them.
    for key, share, of_pod in (
        ("pod_memory_mib", gpu.memory_mib, gpu.pod_memory_mib),
        ("pod_core_percent", gpu.core_percent, gpu.pod_core_percent),
    ):
        if of_pod is not None and of_pod < (share or 0):
            raise _WrongError(f"{path}.{key} is {of_pod}, less than the {share} of this container")
    return GpuRequest(
        name=gpu.uuid,
        bdf=PciAddress(gpu.bdf) if gpu.bdf else None,
        memory_mib=gpu.memory_mib,
        core_percent=gpu.core_percent,
        core_limit_percent=gpu.core_limit_percent,
        isolation=gpu.isolation,
        pod_memory_mib=gpu.pod_memory_mib,
        pod_core_percent=gpu.pod_core_percent,
    )


def _vf(value: object, path: str) -> VfRequest:
    vf = _read(value, path, schema.AssignedVf, bdf=parse_pci_address, pf=parse_pci_address)
    entry = _object(value, path)
    if vf.ifname is not None and not is_ifname(vf.ifname):
        raise _WrongError(f"{path}.ifname is {shown(vf.ifname)}, no interface name (1 to 15 letters, digits, dots, dashes)")
    try:
        netdev, settings = parse_flag(entry, "netdev"), parse_settings(entry)
    except WrongSettingError as e:
        raise _WrongError(f"{path}.{e.key} {e.cause}") from e
    if netdev is False and settings != VfSettings():
        raise _WrongError(f"{path}.netdev is false, and its other keys set a network device; keep one of the two")
    if conflict := settings_conflict(settings):
        raise _WrongError(f"{path}: {conflict}")
    pf = PciAddress(vf.pf) if vf.pf else None
    return VfRequest(name=vf.bdf, pf=pf, ifname=vf.ifname or "", netdev=netdev, settings=settings)


def _read(value: object, path: str, kind: type[T], **identities: Callable[[str], str | None]) -> T:
    """Return an entry as the schema has it. Identities may be in another spelling, and are read in their one spelling."""
    entry = _object(value, path)
    spelled = {key: parse(text) or text for key, parse in identities.items() if isinstance(text := entry.get(key), str)}
    try:
        return msgspec.convert({**entry, **spelled}, kind)
    except msgspec.ValidationError as e:
        cause, _, at = str(e).partition(" - at `$.")
        if missing := _MISSING.search(cause):
            raise _WrongError(f"{path}.{missing[1]} is missing") from e
        key = at.rstrip("`")
        raise _WrongError(f"{path}.{key} is {shown_value(entry.get(key))}; {_RIGHT.get(key, cause)}") from e


def _check_distinct(names: list[str], path: str) -> None:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            raise _WrongError(f"{path}[{i}] names {name}, as {path}[{first[name]}] does; a container gets a device once")


def _required(entry: dict[str, Any], key: str, path: str) -> object:
    if key not in entry:
        raise _WrongError(f"{path} is missing")
    return entry[key]


def _object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _WrongError(f"{path} is {shown_value(value)}, not an object")
    return value


def _array(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _WrongError(f"{path} is {shown_value(value)}, not an array")
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise _WrongError(f"{path} is {shown_value(value)}, not a text")
    return value


def _whole_number(value: object, path: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:  # bool is an int to Python, and 1.0 equals 1
        raise _WrongError(f"{path} is {shown_value(value)}, not a whole number from {low} to {high}")
    return value
