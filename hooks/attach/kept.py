"""Read and restore all settings that a network device of the host keeps when it changes its network namespace.

The settings come from rtnetlink, ethtool (generic netlink, ioctl), sysfs and bpf(2). A pod that may configure its network can
change all of them, and the next pod would get the changed device. A setting that the kernel or driver does not report is not
recorded. Programs and rules that a pod attached are removed. Programs and rules that a pod removed are not made again: the
program that attached them has to do it.

Tests: tests/node/test_netlink_kept.py
"""

import errno
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from hooks.attach import bpf, ethtool, ethtool_ioctl, kept_files, kept_link
from hooks.attach.kernel import KernelError, ask, attempting, refused
from hooks.attach.messages import Exchange, RefusedError, parse_answer
from hooks.attach.rtnetlink import render_get_link
from hooks.model.attachment import KeptSetting, Link

# A second round is needed, and enough: one setting can change another (the number of channels changes RSS), but not in a
# circle.
_ROUNDS: Final = 2
_LONGEST: Final = 4096  # maximum characters of a value, which the journal stores
_ATTACHED: Final = frozenset({kept_link.XDP, ethtool_ioctl.RULES, *bpf.TCX})  # settings whose value is a set of words


class Source(Protocol):
    """Represent some of the settings of one device. Both methods raise KernelError."""

    @property
    def names(self) -> Collection[str]: ...

    def read(self) -> Mapping[str, str]: ...

    def write(self, now: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """Change the settings in `wanted`, which differ from those in `now`."""


def sources_of(link: Link, *, route: Exchange, generic: Exchange, folder: Path) -> tuple[Source, ...]:
    """Return the sources in the order in which they are restored: an XDP program prevents some other changes. `link`: a device
    in the namespace of the calling thread; `route`, `generic`: rtnetlink and generic netlink there; `folder`: the device's
    folder in sysfs."""
    family = _find_ethtool(generic)
    groups = () if family is None else tuple(_OfEthtool(link, generic, family, group) for group in ethtool.GROUPS)
    name, index = link.name, link.index
    return (
        _OfModule(name, kept_link.NAMES, partial(_read_link, link, route), partial(_write_link, link, route)),
        _OfModule(name, bpf.TCX, partial(bpf.read_tcx, index), partial(bpf.detach_tcx, index)),
        *groups,
        _OfModule(name, ethtool_ioctl.NAMES, partial(ethtool_ioctl.read, name), partial(ethtool_ioctl.write, name)),
        _OfModule(name, kept_files.NAMES, partial(kept_files.read, folder), partial(kept_files.write, folder)),
    )


def read_kept(link: Link, sources: Collection[Source]) -> tuple[KeptSetting, ...]:
    result = tuple(KeptSetting(name, value) for source in sources for name, value in source.read().items())
    for name, value in result:
        if len(value) > _LONGEST:
            raise KernelError(
                f"cannot record {name} of network device {link.name}: {len(value)} characters, more than {_LONGEST}: remove"
                " what was configured on it"
            )
    return result


def restore_kept(link: Link, sources: Collection[Source], kept: Collection[KeptSetting]) -> None:
    """Restore the settings that differ. Raise KernelError with each setting that still differs afterwards."""
    reason: dict[str, str] = {}
    for _ in range(_ROUNDS):
        for source in sources:
            now = source.read()
            wanted = {name: value for name, value in kept if name in source.names and not _is_as_before(name, now, value)}
            if wanted:
                try:
                    source.write(now, wanted)
                except KernelError as e:
                    reason |= dict.fromkeys(wanted, f" ({e.message})")
    if differing := list(_differences(sources, kept, reason)):
        raise KernelError(
            f"cannot restore network device {link.name}: {'; '.join(differing)}; its driver resets it if you write the VF's PCI"
            " address to `unbind`, then to `bind`, of the driver in /sys/bus/pci/drivers"
        )


def _differences(sources: Collection[Source], kept: Collection[KeptSetting], reason: Mapping[str, str]) -> Iterator[str]:
    now = {name: value for source in sources for name, value in source.read().items()}
    known = {name for source in sources for name in source.names}
    for name, value in kept:
        if name in known and not _is_as_before(name, now, value):
            yield f"{name} is {now.get(name, 'not reported')!r:.80}, and was {value!r:.80}{reason.get(name, '')}"


def _is_as_before(name: str, now: Mapping[str, str], value: str) -> bool:
    if name in _ATTACHED:
        return name in now and {*now[name].split()} <= {*value.split()}
    return now.get(name) == value


class _Write(Protocol):
    def __call__(self, name: str, *, now: str, wanted: str) -> None:
        """Change one setting. Raise OSError or RefusedError."""


@dataclass(frozen=True, slots=True)
class _OfModule:
    """Represent settings that a module reads together, and writes one at a time."""

    device: str
    names: Collection[str]
    get: Callable[[], Mapping[str, str]]
    set: _Write

    def read(self) -> Mapping[str, str]:
        with attempting(f"read the settings of network device {self.device}"):
            return self.get()

    def write(self, now: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        for name, value in wanted.items():
            with attempting(f"set {name} of network device {self.device}"):
                self.set(name, now=now.get(name, ""), wanted=value)


@dataclass(frozen=True, slots=True)
class _OfEthtool:
    link: Link
    exchange: Exchange
    family: int
    group: ethtool.Group

    @property
    def names(self) -> Collection[str]:
        return self.group.names

    def read(self) -> Mapping[str, str]:
        request = ethtool.render_get(self.family, self.group, self.link.index)
        try:
            (message, *_) = ask(self.exchange, request, f"read the ethtool settings of network device {self.link.name}")
        except KernelError as e:
            # Each driver has its own error number for a setting that it does not have.
            if not isinstance(e.__cause__, RefusedError) or refused(e, errno.ENODEV):
                raise
            return {}
        return ethtool.parse_group(self.group, message)

    def write(self, now: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        request = ethtool.render_set(self.family, self.group, self.link.index, now=now, wanted=wanted)
        ask(self.exchange, request, f"set {', '.join(wanted)} of network device {self.link.name}")


def _read_link(link: Link, exchange: Exchange) -> Mapping[str, str]:
    (message, *_) = parse_answer(exchange(render_get_link(link.name)))
    return kept_link.parse_kept(message)


def _write_link(link: Link, exchange: Exchange, name: str, *, now: str, wanted: str) -> None:
    """Change one setting by rtnetlink. An XDP program that is attached by a BPF link is detached by bpf(2), because rtnetlink
    refuses that."""
    for request in kept_link.render_kept(link.index, name, now=now, wanted=wanted):
        try:
            parse_answer(exchange(request))
        except RefusedError as e:
            if name != kept_link.XDP or e.code != errno.EBUSY:
                raise
            for program in {*now.split()} - {*wanted.split()}:
                bpf.detach_xdp_link(link.index, int(program.partition(":")[2]))


def _find_ethtool(generic: Exchange) -> int | None:
    """Return the number of ethtool's generic netlink family; None before Linux 5.6."""
    try:
        (message, *_) = ask(generic, ethtool.render_get_family(), "find ethtool's generic netlink family")
    except KernelError as e:
        if refused(e, errno.ENOENT):
            return None
        raise
    return ethtool.parse_family(message)
