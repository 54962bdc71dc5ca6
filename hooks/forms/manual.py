"""Parse the annotations that a person writes for testing: two small grammars in, one typed assignment out, or a refusal.

    lading.dev/gpus[.<container>]  ::= "all" | gpu ("," gpu)*
    gpu                            ::= name [":" option ("," option)*]
    option                         ::= "memory=" quantity | "core=" percent | "limit=" percent | "isolation=" isolation
    name                           ::= index | GPU UUID | MIG UUID | PCI address
    lading.dev/vfs[.<container>]   ::= count | vf ("," vf)*                 vf     ::= PCI address | ibdev

The comma separates both devices and options: what begins with an option's name belongs to the device before it, anything
else is the next device. Without a suffix a key is for every container and is the pod's: one share, one choice of free VFs, used
by all of them. With a suffix it is that container's, and it replaces the unsuffixed key of its kind there.

Refused: values of another form, above all host paths, with the correct form in the message. Nothing is looked up here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hooks.forms.messages import not_accepted, shown_key
from hooks.model.assignment import Assignment, ContainerRequest, Form, GpuRequest, Refusal, Trust, VfRequest
from lading.devices.identity import is_container_name, is_ibdev, parse_gpu_uuid, parse_mig_uuid, parse_pci_address, shown
from lading.devices.isolation import IsolationName
from lading.reasons import Reason
from lading.vocabulary import MANUAL_GPUS, PREFIX, PodUid, is_manual

MAX_CHARACTERS: Final = 8192  # 256 MIG UUIDs are less; a person writes a line
MAX_COUNT: Final = 1024  # VFs; more than any node has

_ALL: Final = "all"
_EVERY: Final = ""  # stands for the container of a key without a suffix
_INDEX: Final = re.compile(r"[0-9]{1,4}")
_RANGE: Final = re.compile(r"([0-9]{1,4})-([0-9]{1,4})")
_OPTION: Final = re.compile(r"(memory|core|limit|isolation)=(.*)", re.DOTALL)
_WITH_OPTION: Final = re.compile(r"([^=]*):((?:memory|core|limit|isolation)=.*)", re.DOTALL)
_SHORT_PCI: Final = re.compile(r"[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]")
_QUANTITY: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?(Ki|Mi|Gi|Ti|k|M|G|T)")
_BYTES: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_MIB: Final = 2**20
_PERCENT: Final = re.compile(r"[0-9]{1,3}")

_GPU_NAMES: Final = "a GPU is named by index, UUID, MIG UUID or PCI address: 0, GPU-…, MIG-… or 0000:1b:00.0"
_VF_NAMES: Final = "a VF is named by PCI address or ibdev, 0000:3b:00.2 or mlx5_7; a number alone asks for that many free ones"


class Manual:
    """Read the annotations of people who test."""

    forms: Final = (Form.MANUAL,)
    prefixes: Final = (PREFIX,)
    text: Final = "written by hand"

    def own(self, keys: Iterable[str]) -> list[str]:
        return list(filter(is_manual, keys))

    def parse(
        self, annotations: Mapping[str, str], keys: Sequence[str], *, pod: PodUid, node: str, trust: Trust
    ) -> Assignment | Refusal:
        if Form.MANUAL not in trust.accepted:
            return not_accepted("devices named by hand", keys, trust)
        return parse_manual(annotations)


def parse_manual(annotations: Mapping[str, str]) -> Assignment | Refusal:
    """Return the assignment of the keys for which `is_manual` holds; other keys are ignored."""
    gpus: dict[str, ContainerRequest] = {}
    vfs: dict[str, ContainerRequest] = {}
    for key in sorted(filter(is_manual, annotations)):
        kind, dot, container = key.partition(".dev/")[2].partition(".")
        if dot and not is_container_name(container):
            return _refuse(key, f"{shown(container)} is no container name; {kind} without a suffix is for every container")
        parsed = _parse_value(key, annotations[key], pod_wide=not dot)
        if isinstance(parsed, Refusal):
            return parsed
        (gpus if kind == "gpus" else vfs)[container or _EVERY] = parsed

    def of(container: str) -> ContainerRequest:
        nothing = ContainerRequest()
        of_gpus = gpus.get(container, gpus.get(_EVERY, nothing))
        return replace(vfs.get(container, vfs.get(_EVERY, nothing)), gpus=of_gpus.gpus)

    named = sorted((gpus.keys() | vfs.keys()) - {_EVERY})
    return Assignment(form=Form.MANUAL, containers={name: of(name) for name in named}, every_container=of(_EVERY))


def _parse_value(key: str, value: str, *, pod_wide: bool) -> ContainerRequest | Refusal:
    """Parse one annotation: a request with GPUs only or VFs only."""
    if len(value) > MAX_CHARACTERS:
        return _refuse(key, f"it has {len(value)} characters, more than {MAX_CHARACTERS}")
    of_gpus = key.startswith(MANUAL_GPUS)
    if not value.strip():
        return _refuse(key, "it is empty; remove it, or name devices: " + (_GPU_NAMES if of_gpus else _VF_NAMES))
    if of_gpus:
        return _parse_gpus(key, value, pod_wide=pod_wide)
    return _parse_vfs(key, value, pod_wide=pod_wide)


def _parse_gpus(key: str, value: str, *, pod_wide: bool) -> ContainerRequest | Refusal:
    items = _split_gpus(value)
    if isinstance(items, str):
        return _refuse(key, items)
    requests: dict[str, GpuRequest] = {}
    for number, (written, options) in enumerate(items, 1):
        gpu = _parse_gpu(written, options, pod_wide=pod_wide)
        if isinstance(gpu, str):
            return _refuse(key, f"device {number} {gpu}")
        if gpu.name in requests:
            return _refuse(key, f"device {number} is {shown(written)}, which is there already; a container gets a device once")
        requests[gpu.name] = gpu
    if _ALL in requests and len(requests) > 1:
        return _refuse(key, "'all' stands beside other devices; write all alone, or name each")
    return ContainerRequest(gpus=tuple(requests.values()))


def _split_gpus(value: str) -> list[tuple[str, list[str]]] | str:
    """Return each device's name with its options, or what is wrong with the commas."""
    items: list[tuple[str, list[str]]] = []
    for token in (part.strip() for part in value.split(",")):
        if _OPTION.fullmatch(token):
            if not items or not items[-1][1]:
                before = items[-1][0] if items else "0"
                return f"{shown(token)} is an option of no device; write {shown(f'{before}:{token}')}"
            items[-1][1].append(token)
        elif match := _WITH_OPTION.fullmatch(token):
            items.append((match[1].strip(), [match[2]]))
        else:
            items.append((token, []))
    return items


def _parse_gpu(written: str, options: list[str], *, pod_wide: bool) -> GpuRequest | str:
    name = _gpu_name(written)
    if name is None:
        return _wrong_name(written, _GPU_NAMES)
    if options and (name == _ALL or name.startswith("MIG-")):
        return f"is {shown(written)} with a share; shares are of one card: a MIG instance is given whole, and so is all"
    amounts: dict[str, int] = {}
    isolation = None
    for option in options:
        what, _, value = (part.strip() for part in option.partition("="))
        if what in amounts or (what == "isolation" and isolation):
            return f"({shown(written)}) has {what}= twice"
        if what == "isolation":
            isolation = next((one for one in IsolationName if one == value), None)
        elif amount := _parse_amount(what, value):
            amounts[what] = amount
        understood = isolation is not None if what == "isolation" else what in amounts
        if not understood:
            return f"({shown(written)}) asks for {what}={shown(value)}; write {_RIGHT[what]}"
    memory, core, limit = (amounts.get(what) for what in ("memory", "core", "limit"))
    if memory is None and core is None and options:
        return f"({shown(written)}) has {options[0].partition('=')[0]}= and no share; add memory= or core="
    if limit is not None and limit < (core or 0):
        return f"({shown(written)}) has limit={limit}, less than core={core}; write {core} to 100"
    return GpuRequest(
        name=name,
        memory_mib=memory,
        core_percent=core,
        core_limit_percent=limit,
        isolation=isolation,
        pod_wide=pod_wide,
    )


_PERCENTAGE: Final = "a whole number of percent, 1 to 100"
_RIGHT: Final = {
    "memory": "an amount with its unit: 8Gi, 8138Mi, 8.5G",
    "core": _PERCENTAGE,
    "limit": _PERCENTAGE,
    "isolation": f"one of {', '.join(IsolationName)}",
}


def _parse_amount(what: str, text: str) -> int | None:
    if what == "memory":
        return parse_memory_mib(text) or None
    return int(text) if _PERCENT.fullmatch(text) and 1 <= int(text) <= 100 else None


def _gpu_name(written: str) -> str | None:
    if written == _ALL:
        return written
    if _INDEX.fullmatch(written):
        return str(int(written))
    return parse_gpu_uuid(written) or parse_mig_uuid(written) or parse_pci_address(written)


def parse_memory_mib(text: str) -> int | None:
    """Return a Kubernetes quantity in MiB, rounded up; None also without a unit: to Kubernetes that is bytes, to most people
    MiB."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    whole, fraction, unit = match[1], match[2] or "", match[3]
    scale = int("1" + "0" * len(fraction))
    return -(-int(whole + fraction) * _BYTES[unit] // (scale * _MIB))


def _parse_vfs(key: str, value: str, *, pod_wide: bool) -> ContainerRequest | Refusal:
    names = [name.strip() for name in value.split(",")]
    if len(names) == 1 and re.fullmatch(r"[0-9]+", names[0]):
        count = int(names[0]) if len(names[0]) <= 4 else 0
        if not 1 <= count <= MAX_COUNT:
            return _refuse(key, f"it asks for {shown(names[0])} VFs; write a number from 1 to {MAX_COUNT}, or remove it")
        return ContainerRequest(any_vfs=count, any_vfs_pod_wide=pod_wide)
    requests: dict[str, VfRequest] = {}
    for number, written in enumerate(names, 1):
        name = parse_pci_address(written) or (written if is_ibdev(written) and ".." not in written else None)
        if name is None:
            return _refuse(key, f"device {number} {_wrong_name(written, _VF_NAMES)}")
        if name in requests:
            return _refuse(key, f"device {number} is {shown(written)}, which is there already; a container gets a device once")
        requests[name] = VfRequest(name=name)
    return ContainerRequest(vfs=tuple(requests.values()))


def _wrong_name(written: str, names: str) -> str:
    """Describe why this is not a device's name. The guesses are for common mistakes."""
    if not written:
        return f"is empty: a comma too many; {names}"
    if written.startswith("/") or ".." in written:
        return f"is the path {shown(written)}; no path of the host is ever given to a container; {names}"
    if "=" in written:
        return (
            f"is {shown(written)}; the options are memory=, core=, limit= and isolation=, behind a device: 0:memory=8Gi,core=30"
        )
    if match := _RANGE.fullmatch(written):
        return f"is {shown(written)}; ranges are not understood, write each: {match[1]},…,{match[2]}"
    if _SHORT_PCI.fullmatch(written):
        return f"is {shown(written)}, a PCI address without its domain; write {shown(f'0000:{written.lower()}')}"
    return f"is {shown(written)}; {names}"


def _refuse(key: str, cause: str) -> Refusal:
    return Refusal(reason=Reason.ANNOTATION_MALFORMED, message=f"cannot use {shown_key(key)}: {cause}")
