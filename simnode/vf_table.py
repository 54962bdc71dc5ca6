"""Simulate the kernel's table of a PF's VFs without hardware: answer rtnetlink requests, byte by byte.

`VfTable.apply` is a whole exchange. RTM_GETLINK of a PF by name is answered with the PF and all of its VFs. RTM_NEWLINK with an
IFLA_VFINFO_LIST changes a VF and is acknowledged. Any other request is refused as Linux refuses it. Requests are parsed after
linux/if_link.h, independently of the code that builds them.

The VFs' settings are a JSON file, written again for each change. So the settings outlive a daemon that is killed, several
processes may share them, and a test reads (`read`) and writes (`write`) them. The file can also contain faults of drivers: a
MAC that is lost, a field that is refused, or a field that is not reported.

Source: net/core/rtnetlink.c (ifla_vf_policy, do_setvfinfo, rtnl_fill_vfinfo), linux/netlink.h (struct nlmsgerr).
"""

import errno
import fcntl
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from simnode.child import replace_text

_HEADER: Final = struct.Struct("=IHHII")
_LINK: Final = struct.Struct("=BxHiII")
_TLV: Final = struct.Struct("=HH")

_NLMSG_ERROR: Final = 2
_RTM_NEWLINK: Final = 16
_RTM_GETLINK: Final = 18
_NLM_F_CAPPED: Final = 0x100
_NLM_F_ACK_TLVS: Final = 0x200
_RTEXT_FILTER_VF: Final = 1
_ARPHRD_ETHER: Final = 1

_IFLA_IFNAME: Final = 3
_IFLA_MTU: Final = 4
_IFLA_NUM_VF: Final = 21
_IFLA_VFINFO_LIST: Final = 22
_IFLA_EXT_MASK: Final = 29

_MAC, _VLAN, _TX_RATE, _SPOOFCHK, _LINK_STATE, _RATE, _RSS, _TRUST, _VLAN_LIST = 1, 2, 3, 4, 5, 6, 7, 9, 12
_NODE_GUID, _PORT_GUID = 10, 11
_NOT_REPORTED: Final = 0xFFFFFFFF

# Setting → its fewest octets (ifla_vf_policy), what follows the VF's number, and the fields of a VfState.
_SETTINGS: Final[Mapping[int, tuple[int, str, tuple[str, ...]]]] = {
    _MAC: (36, "6s", ("mac",)),
    _VLAN: (12, "II", ("vlan", "qos")),
    _TX_RATE: (8, "I", ("max_tx_rate",)),
    _SPOOFCHK: (8, "I", ("spoofchk",)),
    _LINK_STATE: (8, "I", ("link_state",)),
    _RATE: (12, "II", ("min_tx_rate", "max_tx_rate")),
    _TRUST: (8, "I", ("trust",)),
    _NODE_GUID: (16, "4xQ", ("node_guid",)),
    _PORT_GUID: (16, "4xQ", ("port_guid",)),
    _VLAN_LIST: (4, "II2s", ("vlan", "qos", "vlan_proto")),
}
_VLAN_INFO_SIZE: Final = 16  # sizeof(struct ifla_vf_vlan_info), its padding too


@dataclass(frozen=True, slots=True, kw_only=True)
class VfState:
    """Hold the settings of a VF, as the kernel's numbers."""

    mac: str = "00:00:00:00:00:00"
    mac_fixed: bool = False  # the PF was given one, and zeros were not given since: the VF may not change it
    vlan: int = 0
    qos: int = 0
    vlan_proto: int = 0x8100
    min_tx_rate: int = 0
    max_tx_rate: int = 0
    spoofchk: int = 1
    trust: int = 0
    link_state: int = 0
    node_guid: int = 0
    port_guid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PfState:
    index: int
    vfs: tuple[VfState, ...]
    lose_mac: int = 0  # number of next MACs that are acknowledged and not kept
    refuse: Mapping[str, str] = field(default_factory=dict)  # field of a VfState → the errno when it is set
    untold: tuple[str, ...] = ()  # spoofchk, trust: the driver does not report them


class _RefusedError(Exception):
    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.words = text


class VfTable:
    """Simulate the VF tables of PFs, by the name of the PF's network device. Many threads and processes may use one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, PfState]:
        result: dict[str, dict[str, Any]] = json.loads(self._path.read_text())
        return {
            name: PfState(**{**pf, "vfs": tuple(VfState(**vf) for vf in pf["vfs"]), "untold": tuple(pf["untold"])})
            for name, pf in result.items()
        }

    def write(self, pfs: Mapping[str, PfState]) -> None:
        """Write in one step: a process killed meanwhile leaves the old one."""
        replace_text(self._path, json.dumps({name: asdict(pf) for name, pf in pfs.items()}, indent=1))

    def change(self, pf: str, decide: Callable[[PfState], PfState]) -> None:
        with self._locked():
            pfs = self.read()
            self.write({**pfs, pf: decide(pfs[pf])})

    def apply(self, request: bytes) -> bytes:
        """Process one exchange: return all messages that answer the request."""
        try:
            return self._carry_out(request) + _end(request, 0)
        except _RefusedError as e:
            return _end(request, e.code, e.words)

    def _carry_out(self, request: bytes) -> bytes:
        length, kind, _, sequence, _ = _HEADER.unpack_from(request)
        if length != len(request):
            raise _RefusedError(errno.EINVAL, "the message's length is not that of the datagram")
        _, _, index, _, _ = _LINK.unpack_from(request, _HEADER.size)
        attributes = list(_tlvs(request[_HEADER.size + _LINK.size :]))
        with self._locked():
            if kind == _RTM_GETLINK:
                return self._get(index, dict(attributes), sequence)
            if kind != _RTM_NEWLINK:
                raise _RefusedError(errno.EOPNOTSUPP, "this is a table of VFs and nothing else")
            self._set(index, attributes)
            return b""

    def _get(self, index: int, attributes: Mapping[int, bytes], sequence: int) -> bytes:
        wanted = attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode()
        for name, pf in self.read().items():
            if name == wanted or (index and pf.index == index):
                mask = int.from_bytes(attributes.get(_IFLA_EXT_MASK, b""), "little")
                body = _LINK.pack(0, _ARPHRD_ETHER, pf.index, 0, 0) + _describe(
                    name, pf, with_vfs=bool(mask & _RTEXT_FILTER_VF)
                )
                return _HEADER.pack(_HEADER.size + len(body), _RTM_NEWLINK, 0, sequence, 0) + body
        raise _RefusedError(errno.ENODEV)

    def _set(self, index: int, attributes: list[tuple[int, bytes]]) -> None:
        pfs = self.read()
        name, pf = next(((name, pf) for name, pf in pfs.items() if pf.index == index), ("", None))
        if pf is None:
            raise _RefusedError(errno.ENODEV)
        if [kind for kind, _ in attributes] != [_IFLA_VFINFO_LIST]:
            raise _RefusedError(errno.EOPNOTSUPP, "this is a table of VFs and nothing else")
        for kind, info in _tlvs(attributes[0][1]):
            if kind != 1:  # IFLA_VF_INFO
                raise _RefusedError(errno.EINVAL, "no IFLA_VF_INFO")
            for setting, payload in _tlvs(info):
                pf = _change(pf, setting, payload)
                if setting in {_NODE_GUID, _PORT_GUID}:  # do_setvfinfo returns here and ignores the rest of the request
                    break
        self.write({**pfs, name: pf})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.with_name(f"{self._path.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _change(pf: PfState, setting: int, payload: bytes) -> PfState:
    """Change a VF as do_setvfinfo does, with a driver that checks what all drivers check."""
    if setting not in _SETTINGS:
        raise _RefusedError(errno.EOPNOTSUPP, f"VF attribute {setting}")
    if len(payload) < _SETTINGS[setting][0]:
        raise _RefusedError(errno.ERANGE, "Attribute failed policy validation")
    if setting == _VLAN_LIST:
        payload = _only_vlan(payload)
    (vf,) = struct.unpack_from("=I", payload)
    if vf >= len(pf.vfs):
        raise _RefusedError(errno.EINVAL, f"there is no VF {vf}")
    wanted = _parse(setting, payload)
    for field_name in wanted:
        if field_name in pf.refuse:
            raise _RefusedError(getattr(errno, pf.refuse[field_name]))
    if setting == _MAC and pf.lose_mac:
        return replace(pf, lose_mac=pf.lose_mac - 1)
    vfs = list(pf.vfs)
    vfs[vf] = replace(vfs[vf], **wanted)
    _check(vfs[vf])
    return replace(pf, vfs=tuple(vfs))


def _only_vlan(payload: bytes) -> bytes:
    infos = list(_tlvs(payload))
    if not infos or any(kind != 1 or len(info) < _VLAN_INFO_SIZE for kind, info in infos):
        raise _RefusedError(errno.EINVAL)
    if len(infos) > 1:  # MAX_VLAN_LIST_LEN
        raise _RefusedError(errno.EOPNOTSUPP)
    return infos[0][1]


def _parse(setting: int, payload: bytes) -> dict[str, Any]:
    _, layout, fields = _SETTINGS[setting]
    result: dict[str, Any] = dict(zip(fields, struct.unpack_from(f"=I{layout}", payload)[1:], strict=True))
    match setting:
        case 1:  # _MAC
            mac = result["mac"].hex(":")
            # igb_ndo_set_vf_mac, ixgbe_ndo_set_vf_mac, i40e_ndo_set_vf_mac: zeros take the administrative MAC away.
            return {"mac": mac, "mac_fixed": mac != VfState().mac}
        case 2:  # _VLAN
            return result | {"vlan_proto": 0x8100}
        case 12:  # _VLAN_LIST
            return result | {"vlan_proto": int.from_bytes(result["vlan_proto"], "big")}
        case _:
            return result


def _check(vf: VfState) -> None:
    if vf.vlan > 4095 or vf.qos > 7 or (vf.qos and not vf.vlan):
        raise _RefusedError(errno.EINVAL, f"VLAN {vf.vlan} with priority {vf.qos}")
    if vf.vlan_proto not in {0x8100, 0x88A8}:
        raise _RefusedError(errno.EPROTONOSUPPORT)
    if int(vf.mac[:2], 16) & 1:
        raise _RefusedError(errno.EINVAL, "a multicast MAC")
    if vf.max_tx_rate and vf.min_tx_rate > vf.max_tx_rate:
        raise _RefusedError(errno.EINVAL, "the least rate is above the greatest")
    if vf.link_state > 2 or vf.spoofchk > 1 or vf.trust > 1:
        raise _RefusedError(errno.EINVAL)


def _describe(name: str, pf: PfState, *, with_vfs: bool) -> bytes:
    text = _tlv(_IFLA_IFNAME, name.encode() + b"\0") + _tlv(_IFLA_MTU, struct.pack("=I", 1500))
    if with_vfs:
        text += _tlv(_IFLA_NUM_VF, struct.pack("=I", len(pf.vfs)))
        infos = b"".join(_tlv(1, _describe_vf(number, vf, pf.untold)) for number, vf in enumerate(pf.vfs))
        text += _tlv(_IFLA_VFINFO_LIST, infos)
    return text


def _describe_vf(number: int, vf: VfState, untold: tuple[str, ...]) -> bytes:
    """Describe a VF as rtnl_fill_vfinfo does, in its order."""
    flags = {name: _NOT_REPORTED if name in untold else getattr(vf, name) for name in ("spoofchk", "trust")}
    vlan_info = struct.pack("=III", number, vf.vlan, vf.qos) + vf.vlan_proto.to_bytes(2, "big") + bytes(2)
    return b"".join(
        (
            _tlv(_MAC, struct.pack("=I32s", number, bytes.fromhex(vf.mac.replace(":", "")))),
            _tlv(_VLAN, struct.pack("=III", number, vf.vlan, vf.qos)),
            _tlv(_RATE, struct.pack("=III", number, vf.min_tx_rate, vf.max_tx_rate)),
            _tlv(_TX_RATE, struct.pack("=II", number, vf.max_tx_rate)),
            _tlv(_SPOOFCHK, struct.pack("=II", number, flags["spoofchk"])),
            _tlv(_LINK_STATE, struct.pack("=II", number, vf.link_state)),
            _tlv(_RSS, struct.pack("=II", number, _NOT_REPORTED)),
            _tlv(_TRUST, struct.pack("=II", number, flags["trust"])),
            _tlv(_VLAN_LIST, _tlv(1, vlan_info)),
        )
    )


def _tlv(kind: int, payload: bytes) -> bytes:
    length = _TLV.size + len(payload)
    return _TLV.pack(length, kind) + payload + bytes(-length % 4)


def _tlvs(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        length, kind = _TLV.unpack_from(data) if len(data) >= _TLV.size else (0, 0)
        if not _TLV.size <= length <= len(data):
            raise _RefusedError(errno.EINVAL, "an attribute ends before its length")
        yield kind & 0x3FFF, data[_TLV.size : length]
        data = data[length + -length % 4 :]


def _end(request: bytes, code: int, text: str = "") -> bytes:
    """Render the struct nlmsgerr that a socket with NETLINK_CAP_ACK and NETLINK_EXT_ACK gets."""
    sequence = _HEADER.unpack_from(request)[3]
    body = struct.pack("=i", -code) + request[: _HEADER.size] + (_tlv(1, text.encode() + b"\0") if text else b"")
    flags = _NLM_F_CAPPED | (_NLM_F_ACK_TLVS if text else 0)
    return _HEADER.pack(_HEADER.size + len(body), _NLMSG_ERROR, flags, sequence, 0) + body
