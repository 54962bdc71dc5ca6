import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from hooks.ledger.attachment import (
    check_attachment,
    newest_of_each,
    parse_attachment,
    parse_attachments,
    render_attachment,
    render_attachments,
)
from hooks.model.attachment import (
    Attachment,
    KeptSetting,
    MacOwner,
    Netdev,
    NetnsId,
    Route,
    Step,
    VfConfig,
    VfLinkState,
    VfSettings,
)
from hooks.model.inventory import CharDevice, Vf
from lading.errors import StateError
from lading.vocabulary import PciAddress, PodUid, SandboxId
from tests.fakes.holders import SETTINGS

CONFIG = SETTINGS.config
FULL = Attachment(
    vf=Vf(
        bdf=PciAddress("0000:3b:00.2"),
        pf=PciAddress("0000:3b:00.0"),
        index=1,
        driver="mlx5_core",
        numa=1,
        ibdev="mlx5_7",
        netdev="ens1v1",
        link_layer="Ethernet",
        uverbs=CharDevice(path="/dev/infiniband/uverbs7", host_path="/n/dev/infiniband/uverbs7", major=231, minor=199),
        umad=(CharDevice(path="/dev/infiniband/issm7", host_path="/n/dev/infiniband/issm7", major=231, minor=71),),
        unhealthy="because",
    ),
    generation=7,
    pod=PodUid("pod-1"),
    namespace="default",
    pod_name="train-0",
    sandbox=SandboxId("s0"),
    netns="/var/run/netns/cni-1234",
    netns_id=NetnsId(4, 4026532001),
    boot_id="00000000-0000-4000-8000-000000000001",
    ifname="rdma0",
    settings=SETTINGS,
    netdev=Netdev(
        name="ens1v1",
        mac="02:00:00:00:00:01",
        mtu=1500,
        up=True,
        parent="0000:3b:00.2",
        altnames=("enp59s0f0v1",),
        kept=(KeptSetting("flags", "multicast"), KeptSetting("xdp", "")),
    ),
    config=replace(CONFIG, vlan=0, link_state=VfLinkState.AUTO),
    rdma=True,
    step=Step.ATTACHED,
    since=1_700_000_000,
    failure="none",
    mac_owner=MacOwner.PF,
    ibdev_number=12,
)
BARE = replace(
    FULL,
    vf=Vf(bdf=PciAddress("0000:3b:00.2"), pf=PciAddress("0000:3b:00.0"), index=0, driver="", numa=None),
    settings=VfSettings(),
    netdev=None,
    config=VfConfig(),
    failure="",
    mac_owner=MacOwner.UNKNOWN,
    ibdev_number=None,
)


@pytest.mark.parametrize("one", [FULL, BARE])
def test_what_is_written_is_read_back(one: Attachment) -> None:
    assert parse_attachment(render_attachment(one)) == one
    assert parse_attachments(render_attachments([one, one])) == (one, one)


def test_every_field_is_written() -> None:
    """Check that FULL sets every field, so that the tests above cover a new field."""
    todo: list[Any] = [FULL]
    while todo:
        item = todo.pop()
        if isinstance(item, tuple):
            todo += item
        elif is_dataclass(item):
            values = [getattr(item, f.name) for f in fields(item)]
            assert all(value != f.default for value, f in zip(values, fields(item), strict=True)), item
            todo += values


def test_it_stays_as_it_is() -> None:
    """Check a fixed text, because updated nodes read the text of their older version."""
    assert json.loads(render_attachment(BARE)) == {
        "boot_id": "00000000-0000-4000-8000-000000000001",
        "config": {},
        "generation": 7,
        "ifname": "rdma0",
        "namespace": "default",
        "netdev": None,
        "netns": "/var/run/netns/cni-1234",
        "netns_id": [4, 4026532001],
        "pod": "pod-1",
        "pod_name": "train-0",
        "rdma": True,
        "sandbox": "s0",
        "settings": {},
        "since": 1700000000,
        "step": "attached",
        "vf": {"bdf": "0000:3b:00.2", "driver": "", "index": 0, "numa": None, "pf": "0000:3b:00.0"},
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text + " ",
        lambda text: text.replace('"ifname"', '"ifnam"'),
        lambda text: text[:-1] + ',"extra":1}',
        lambda text: text[:-1] + ',"failure":""}',
        lambda text: text.replace("7,", "7.0,", 1),
        lambda text: text.replace("pod-1", "pod\\u002d1"),
        lambda text: "",
        lambda text: "null",
        lambda text: "[" * 100_000,
        lambda text: '{"x":"' + "x" * 700_000 + '"}',
    ],
)
def test_other_bytes_are_refused(spoil: Callable[[str], str]) -> None:
    with pytest.raises(StateError):
        parse_attachment(spoil(render_attachment(BARE)))


def vf(**changes: Any) -> Attachment:
    return replace(FULL, vf=replace(FULL.vf, **changes))


def uverbs(**changes: Any) -> Attachment:
    assert FULL.vf.uverbs is not None
    return vf(uverbs=replace(FULL.vf.uverbs, **changes))


def netdev(**changes: Any) -> Attachment:
    assert FULL.netdev is not None
    return replace(FULL, netdev=replace(FULL.netdev, **changes))


def wanted(**changes: Any) -> Attachment:
    return replace(FULL, settings=replace(FULL.settings, **changes))


@pytest.mark.parametrize(
    "wrong",
    [
        vf(bdf=PciAddress("0000:3B:00.2")),
        vf(pf=PciAddress("../../x")),
        vf(index=-1),
        vf(ibdev="../x"),
        vf(netdev="a/b"),
        uverbs(path="/dev/sda", host_path="/dev/sda"),
        uverbs(path="/dev/infiniband/../sda"),
        uverbs(host_path="/dev/sda"),
        uverbs(host_path="/tmp/../dev/infiniband/uverbs7"),
        uverbs(major=0),
        vf(umad=(CharDevice(path="/dev/nvidia0", host_path="/dev/nvidia0", major=195, minor=0),)),
        netdev(name="eth0 up"),
        netdev(name="a" * 16),
        netdev(name=".."),
        netdev(name=""),
        netdev(mac="02:00"[:4]),
        netdev(mac="0g:00:00:00:00:00"),
        netdev(mtu=-1),
        netdev(altnames=("a b",)),
        netdev(altnames=("a" * 128,)),
        netdev(altnames=("",)),
        netdev(kept=(KeptSetting("../x", "1"),)),
        netdev(kept=(KeptSetting("alias", "\n"),)),
        netdev(kept=(KeptSetting("alias", "0" * 4097),)),
        netdev(kept=(KeptSetting("group", "0"),) * 129),
        netdev(altnames=tuple(f"en{number}" for number in range(17))),
        replace(FULL, ibdev_number=-1),
        wanted(mtu=67),
        wanted(mtu=65536),
        wanted(addresses=("10.0.0.256/24",)),
        wanted(routes=(Route("default"),)),
        wanted(routes=(Route("10.0.0.0/8", "somewhere"),)),
        wanted(config=replace(CONFIG, vlan=4095)),
        wanted(config=replace(CONFIG, vlan_qos=8)),
        wanted(config=replace(CONFIG, mac="02:00:5E:10:00:01")),
        wanted(config=replace(CONFIG, max_tx_rate=2**32)),
        replace(FULL, config=replace(CONFIG, min_tx_rate=-1)),
        replace(FULL, ifname="a b"),
        replace(FULL, ifname=""),
        replace(FULL, netns="run/netns/x"),
        replace(FULL, netns="/run/../x"),
        replace(FULL, netns="/run/netns/x\n"),
        replace(FULL, pod=PodUid("")),
        replace(FULL, sandbox=SandboxId("")),
        replace(FULL, boot_id=""),
        replace(FULL, generation=-1),
        replace(FULL, generation=2**62),
        replace(FULL, since=-1),
        replace(FULL, netns_id=NetnsId(4, 2**64)),
    ],
)
def test_names_and_numbers_that_are_none_are_refused(wrong: Attachment) -> None:
    with pytest.raises(StateError):
        parse_attachment(render_attachment(wrong))
    with pytest.raises(StateError):
        parse_attachments(render_attachments([FULL, wrong]))
    with pytest.raises(StateError):
        check_attachment(wrong)


def test_a_container_tells_of_no_generation_after_which_there_are_too_few() -> None:
    """Check that the journal continues after the largest generation that it received."""
    assert parse_attachments(render_attachments([replace(FULL, generation=2**48)]))
    for generation in (2**48 + 1, 2**53):
        with pytest.raises(StateError):
            parse_attachments(render_attachments([replace(FULL, generation=generation)]))
        assert parse_attachment(render_attachment(replace(FULL, generation=generation)))  # but the journal may get there


def test_what_was_written_before_there_were_alternative_names_is_read() -> None:
    old = replace(netdev(altnames=()), ibdev_number=None)
    text = render_attachment(old)
    assert "altnames" not in text
    assert "ibdev_number" not in text
    assert parse_attachment(text) == old


def test_a_name_whose_octets_are_no_text_is_refused_before_it_is_written() -> None:
    with pytest.raises(StateError):
        check_attachment(netdev(name="\udcff"))


def test_a_twenty_octet_address_is_infinibands() -> None:
    one = netdev(mac=":".join(["80"] * 20))
    assert parse_attachment(render_attachment(one)) == one


def test_of_each_vf_the_newest_counts() -> None:
    other = vf(bdf=PciAddress("0000:3b:00.3"))
    old, new = replace(FULL, generation=3), replace(FULL, generation=9)
    assert set(newest_of_each([new, old, other, new])) == {other, new}
    assert newest_of_each([]) == ()


def test_two_vfs_never_have_one_generation() -> None:
    """Check equal generations, which are possible where a ledger was rebuilt from containers that have ended since."""
    rows = [vf(bdf=PciAddress(f"0000:3b:00.{number}")) for number in (2, 3, 4)]
    result = newest_of_each([*rows, replace(rows[0], generation=8)])
    assert sorted(row.generation for row in result) == [7, 8, 9]
    assert {row.bdf for row in result} == {row.bdf for row in rows}
