from dataclasses import replace

import pytest

from hooks.grant.rdma import RdmaInjection, adjust_vfs, pcidevice_name
from hooks.model.assignment import GrantedDevices, GrantedVf, Refusal
from hooks.model.container import Adjustment
from hooks.model.inventory import Inventory
from lading.reasons import Reason
from tests.unit.hooks.inventories import inventory, vf

NODE = inventory(vfs=tuple(vf(i) for i in range(4)))
PLAIN = RdmaInjection()
TWO = GrantedDevices(vfs=(GrantedVf(bdf=vf(3).bdf), GrantedVf(bdf=vf(0).bdf)))


def adjust(injection: RdmaInjection = PLAIN, user_env: frozenset[str] = frozenset(), node: Inventory = NODE) -> Adjustment:
    result = adjust_vfs(TWO, node, injection, user_env)
    assert isinstance(result, Adjustment), result
    return result


def env(adjustment: Adjustment) -> dict[str, str]:
    return {upsert.name: upsert.value for upsert in adjustment.env}


def test_no_vfs_no_adjustment() -> None:
    assert adjust_vfs(GrantedDevices(), NODE, PLAIN, frozenset()) == Adjustment()


def test_verbs_nodes_by_their_own_number() -> None:
    adjustment = adjust()
    paths = ["/dev/infiniband/uverbs23", "/dev/infiniband/uverbs20", "/dev/infiniband/rdma_cm"]
    assert [d.container_path for d in adjustment.devices] == paths
    assert [d.host_path for d in adjustment.devices] == ["/node" + path for path in paths]
    assert {d.permissions for d in adjustment.devices} == {"rw"}
    assert not adjustment.add_capabilities


def test_names_for_programs() -> None:
    assert env(adjust()) == {"PCIDEVICE_LADING_DEV_RDMA": f"{vf(3).bdf},{vf(0).bdf}", "NCCL_IB_HCA": "=mlx5_4,mlx5_1"}


def test_a_users_own_nccl_wins_and_ours_wins_for_pcidevice() -> None:
    names = frozenset({"NCCL_IB_HCA", "PCIDEVICE_LADING_DEV_RDMA", "NCCL_DEBUG"})
    assert list(env(adjust(user_env=names))) == ["PCIDEVICE_LADING_DEV_RDMA"]
    assert "NCCL_IB_HCA" in env(adjust(user_env=frozenset({"NCCL_DEBUG"})))


def test_the_resource_name_is_configured() -> None:
    assert pcidevice_name("nvidia.com/mlnx-roce") == "PCIDEVICE_NVIDIA_COM_MLNX_ROCE"
    assert "PCIDEVICE_X_Y" in env(adjust(RdmaInjection(resource="x/y")))


def test_mad_nodes_and_ipc_lock_are_options() -> None:
    adjustment = adjust(RdmaInjection(mad=True, ipc_lock=True))
    paths = {d.container_path.rpartition("/")[2] for d in adjustment.devices}
    assert paths == {"uverbs23", "uverbs20", "rdma_cm", "umad3", "issm3", "umad0", "issm0"}
    assert list(adjustment.add_capabilities) == ["IPC_LOCK"]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (inventory(vfs=(vf(0),)), Reason.DEVICE_UNKNOWN),
        (inventory(vfs=(vf(0), replace(vf(3), uverbs=None))), Reason.DEVICE_UNHEALTHY),
        (inventory(vfs=(vf(0), replace(vf(3), ibdev=""))), Reason.DEVICE_UNHEALTHY),
        (inventory(vfs=(vf(0), vf(3, unhealthy="gone"))), Reason.DEVICE_UNHEALTHY),
        (replace(NODE, rdma_cm=None), Reason.DEVICE_NODE_INVALID),
    ],
)
def test_a_vf_that_left_or_broke_since_it_was_granted(node: Inventory, reason: Reason) -> None:
    result = adjust_vfs(TWO, node, PLAIN, frozenset())
    assert isinstance(result, Refusal)
    assert result.reason == reason
    assert vf(3).bdf in result.message
