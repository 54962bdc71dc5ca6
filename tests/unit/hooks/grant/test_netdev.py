from dataclasses import replace

import pytest

from hooks.grant.netdev import decide_netdevs, merge_settings
from hooks.model.assignment import ContainerRequest, GrantedDevices, GrantedVf, Refusal, VfRequest
from hooks.model.attachment import NetdevPolicy, Route, VfConfig, VfLinkState, VfSettings, WantedVf
from hooks.model.container import Sandbox
from hooks.model.inventory import Vf
from lading.reasons import Reason
from tests.unit.hooks.inventories import inventory, vf

ETHERNET = replace(vf(0), link_layer="Ethernet", netdev="eth0")
IPOIB = replace(vf(1), link_layer="InfiniBand", netdev="ib1")
NO_IPOIB = replace(vf(2), link_layer="InfiniBand")
NODE = inventory(vfs=(ETHERNET, IPOIB, NO_IPOIB))
ATTACHES = NetdevPolicy(attaches=True, by_default=True)
VLAN_7 = VfSettings(config=VfConfig(vlan=7))


def decide(
    *vfs: Vf,
    policy: NetdevPolicy = ATTACHES,
    host_network: bool = False,
    netdev: bool | None = None,
    settings: VfSettings | None = None,
    by_number: int = 0,
) -> tuple[WantedVf, ...] | Refusal:
    """Decide the attachments. `by_number`: how many of the last VFs were not named."""
    named = vfs[: len(vfs) - by_number]
    requests = tuple(VfRequest(name=one.bdf, netdev=netdev, settings=settings or VfSettings()) for one in named)
    devices = GrantedDevices(vfs=tuple(GrantedVf(bdf=one.bdf, ifname="net7" if one is ETHERNET else "") for one in vfs))
    sandbox = Sandbox(id="s0", uid="pod-1", name="p", namespace="default", host_network=host_network)
    return decide_netdevs(sandbox, ContainerRequest(vfs=requests, any_vfs=by_number), devices, NODE, policy)


def wanted(*vfs: Vf, **asked: object) -> tuple[WantedVf, ...]:
    answer = decide(*vfs, **asked)  # type: ignore[arg-type]
    assert not isinstance(answer, Refusal), answer
    return answer


def reason(*vfs: Vf, **asked: object) -> Reason:
    answer = decide(*vfs, **asked)  # type: ignore[arg-type]
    assert isinstance(answer, Refusal), answer
    assert vfs[-1].bdf in answer.message
    return answer.reason


def test_each_vf_with_the_name_and_settings_that_it_is_to_have() -> None:
    asked = VfSettings(config=VfConfig(vlan=7, trust=True), addresses=("10.0.0.2/24",))
    node = replace(ATTACHES, settings=VfSettings(config=VfConfig(vlan=1, spoofchk=False), mtu=9000))
    both = VfSettings(config=VfConfig(vlan=7, trust=True, spoofchk=False), mtu=9000, addresses=("10.0.0.2/24",))
    assert wanted(ETHERNET, settings=asked, policy=node) == (WantedVf(vf=ETHERNET, ifname="net7", settings=both),)


def test_what_was_chosen_by_number_has_the_nodes_settings() -> None:
    node = replace(ATTACHES, settings=VLAN_7)
    assert wanted(IPOIB, ETHERNET, policy=node, by_number=1)[1].settings == VLAN_7


def test_settings_go_field_by_field() -> None:
    own = VfSettings(config=VfConfig(vlan=0, trust=False), routes=(Route("10.1.0.0/16"),))
    default = VfSettings(config=VfConfig(vlan=9, vlan_qos=1, trust=True), mtu=1400, routes=(Route("10.2.0.0/16"),))
    merged = VfSettings(config=VfConfig(vlan=0, vlan_qos=1, trust=False), mtu=1400, routes=(Route("10.1.0.0/16"),))
    assert merge_settings(own, default) == merged  # 0 and false are said; only what is not is the node's


@pytest.mark.parametrize(
    ("asked", "default", "netdev"), [(None, True, True), (None, False, False), (True, False, True), (False, True, False)]
)
def test_whether_is_the_assignments_to_say_then_the_nodes(asked: bool | None, default: bool, netdev: bool) -> None:
    """Check a VF whose network device stays: its name is in the answer all the same, because in exclusive mode its RDMA device
    moves."""
    (one,) = wanted(ETHERNET, netdev=asked, policy=replace(ATTACHES, by_default=default))
    assert one.netdev is netdev


def test_a_node_that_attaches_nothing_names_nothing() -> None:
    assert wanted(ETHERNET, policy=NetdevPolicy(by_default=True)) == ()
    assert wanted(ETHERNET, policy=NetdevPolicy(), netdev=False) == ()


@pytest.mark.parametrize("asked", [{"netdev": True}, {"settings": VLAN_7}, {"settings": VfSettings(mtu=9000)}])
def test_what_no_one_here_would_do_is_refused_not_left_out(asked: dict[str, object]) -> None:
    assert reason(ETHERNET, policy=NetdevPolicy(by_default=True), **asked) is Reason.ATTACH_FAILED
    assert wanted(ETHERNET, policy=NetdevPolicy(settings=VLAN_7)) == ()  # the node's own are for those that it attaches


def test_settings_of_a_device_that_stays_are_refused() -> None:
    assert reason(ETHERNET, settings=VLAN_7, policy=replace(ATTACHES, by_default=False)) is Reason.ATTACH_FAILED


@pytest.mark.parametrize("netdev", [None, True])
def test_the_hosts_network_is_no_place_to_bring_it(netdev: bool | None) -> None:
    assert reason(ETHERNET, host_network=True, netdev=netdev) is Reason.HOST_NETWORK
    assert reason(NO_IPOIB, ETHERNET, host_network=True, netdev=netdev) is Reason.HOST_NETWORK


def test_in_the_hosts_network_an_rdma_device_is_where_it_should_be() -> None:
    assert wanted(ETHERNET, host_network=True, netdev=False) == ()
    assert wanted(NO_IPOIB, host_network=True) == ()
    assert wanted(ETHERNET, host_network=True, policy=NetdevPolicy(by_default=True)) == ()


# InfiniBand


def test_whether_an_infiniband_vf_has_a_network_device_is_checked_late() -> None:
    """Check that it is read late: the inventory may be from a moment at which the VF was in another pod."""
    assert [one.netdev for one in wanted(IPOIB, NO_IPOIB)] == [True, True]


@pytest.mark.parametrize("config", [VfConfig(mac="02:00:5e:10:00:01"), VfConfig(vlan=7), VfConfig(spoofchk=False)])
def test_what_it_does_not_have_is_refused(config: VfConfig) -> None:
    assert reason(IPOIB, settings=VfSettings(config=config)) is Reason.ANNOTATION_MALFORMED


def test_of_the_nodes_settings_it_has_what_it_can_have() -> None:
    text = VfSettings(config=VfConfig(vlan=7, link_state=VfLinkState.ENABLE), mtu=4092)
    (one,) = wanted(IPOIB, policy=replace(ATTACHES, settings=text))
    assert one.settings == VfSettings(config=VfConfig(link_state=VfLinkState.ENABLE), mtu=4092)


def test_what_is_set_at_its_pf_is_not_for_the_hosts_network() -> None:
    text = VfSettings(config=VfConfig(link_state=VfLinkState.ENABLE))
    assert [one.settings for one in wanted(NO_IPOIB, settings=text)] == [text]
    assert reason(NO_IPOIB, settings=text, host_network=True) is Reason.HOST_NETWORK


def test_what_does_not_go_together_with_the_nodes_is_refused() -> None:
    node = replace(ATTACHES, settings=VfSettings(config=VfConfig(max_tx_rate=100)))
    assert reason(ETHERNET, settings=VfSettings(config=VfConfig(min_tx_rate=200)), policy=node) is Reason.ANNOTATION_MALFORMED


def test_a_vf_that_is_deleted_is_for_others_to_refuse() -> None:
    assert wanted(replace(vf(5), netdev="eth5")) == ()
