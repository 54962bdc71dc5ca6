"""Check what must hold of a node's VFs whenever nothing changes them: one checker, for the model and for real kernels.

It takes the journal's rows, each VF as it was at first (`before`) and as it is shown now (`now`). It returns what is wrong, in
words. A VF may be half-way if its row says so (a step of a release, or of an attach that was interrupted). A VF without a row
is free, and must be exactly as it was.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from hooks.model.attachment import Attachment, Link, Step, VfConfig
from lading.vocabulary import PciAddress

HOST = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One VF as the kernel shows it."""

    netns: str | None  # namespace of its network device: HOST, a path, None where it is nowhere (for the moment)
    link: Link | None
    config: VfConfig
    rdma_netns: str | None = HOST  # namespace of its ibdev
    ibdev: str = ""  # name of the ibdev, if a pod may change it
    mac_fixed: bool = False  # the PF was given a MAC, which the VF may not change
    kept: Mapping[str, str] = field(default_factory=dict)  # settings that the device keeps from namespace to namespace


def check(
    rows: Iterable[Attachment],
    *,
    before: Mapping[PciAddress, Shown],
    now: Mapping[PciAddress, Shown],
    namespaces: Iterable[str],
) -> list[str]:
    """`namespaces`: the paths of those that are there."""
    there = set(namespaces)
    held: dict[PciAddress, Attachment] = {}
    problems = []
    for row in rows:
        if row.bdf in held:
            problems.append(f"{row.bdf} has two owners: {held[row.bdf].sandbox} and {row.sandbox}")
        held[row.bdf] = row
    generations = [row.generation for row in held.values()]
    if len(set(generations)) < len(generations):
        problems.append(f"generations are not distinct: {sorted(generations)}")
    for bdf, original in before.items():
        result = now[bdf]
        if (owner := held.get(bdf)) is None:
            problems += [f"{bdf} is free, and {text}" for text in _differences(original, result)]
        else:
            problems += [f"{bdf} ({owner.sandbox}, {owner.step}) {text}" for text in _of_owner(owner, original, result, there)]
    return problems


def _differences(original: Shown, result: Shown) -> Iterator[str]:
    if result.link is None or original.link is None:
        if result.link is not original.link:
            yield "its network device is lost"
    else:
        for name in ("name", "mac", "mtu", "up", "altnames"):
            was, now = getattr(original.link, name), getattr(result.link, name)
            if was != now:
                yield f"its device's {name} is {now}, not {was}"
    for name in sorted(result.kept.keys() | original.kept.keys()):
        if result.kept.get(name) != original.kept.get(name):
            yield f"its device's {name} is {result.kept.get(name)}, not {original.kept.get(name)}"
    if result.netns != original.netns:
        yield f"its device is in {result.netns!r}"
    if result.rdma_netns != original.rdma_netns:
        yield f"its RDMA device is in {result.rdma_netns!r}"
    if result.ibdev != original.ibdev:
        yield f"its RDMA device is called {result.ibdev}, not {original.ibdev}"
    if result.mac_fixed != original.mac_fixed:
        yield f"its PF {'fixes' if result.mac_fixed else 'does not fix'} its MAC, unlike before"
    if result.config != original.config:
        yield f"its PF keeps {_said(result.config)}, not {_said(original.config)}"


def _of_owner(row: Attachment, original: Shown, result: Shown, there: set[str]) -> Iterator[str]:
    if row.netdev is not None and original.link is not None:
        was, kept = original.link, row.netdev
        if (kept.name, kept.mac, kept.mtu, kept.up) != (was.name, was.mac, was.mtu, was.up):
            yield f"has a half-configured original: {kept}"
        if any(original.kept.get(name, value) != value for name, value in kept.kept):
            yield f"has a half-configured original: {kept.kept}"
    elsewhere = {result.netns, result.rdma_netns} - {None, HOST, row.netns}
    if elsewhere:
        yield f"is in a namespace that is not its owner's: {elsewhere}"
    untold = {f.name for f in fields(VfConfig) if getattr(row.settings.config, f.name) is None}
    for name in untold:
        if getattr(result.config, name) != getattr(original.config, name):
            yield f"has {name} {getattr(result.config, name)}, which no one asked for"
    if row.step is Step.ATTACHED and row.netns in there:
        yield from _of_attached(row, result)


def _of_attached(row: Attachment, result: Shown) -> Iterator[str]:
    if row.netdev is not None:
        if result.netns != row.netns or result.link is None:
            yield f"is not with its owner, but in {result.netns!r}"
        else:
            wanted = {"name": row.ifname, "mac": row.settings.config.mac or row.netdev.mac, "up": True}
            wanted["mtu"] = row.settings.mtu or row.netdev.mtu
            for name, value in wanted.items():
                if getattr(result.link, name) != value:
                    yield f"has {name} {getattr(result.link, name)}, not {value}"
    if row.settings.config.mac is not None and not result.mac_fixed:
        yield "has a MAC that its PF does not fix"
    if row.rdma and result.rdma_netns != row.netns:
        yield f"has its RDMA device in {result.rdma_netns!r}"
    for f in fields(VfConfig):
        value = getattr(row.settings.config, f.name)
        if value is not None and getattr(result.config, f.name) != value:
            yield f"has {f.name} {getattr(result.config, f.name)} at its PF, not {value}"


def _said(config: VfConfig) -> str:
    return ", ".join(f"{f.name} {getattr(config, f.name)}" for f in fields(config) if getattr(config, f.name) is not None)
