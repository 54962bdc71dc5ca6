from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from hooks.grant.cards import adjust_cards, find_cards
from hooks.host.ldcache import make_hook, without_compat
from hooks.isolation.library import ShareLibrary
from hooks.isolation.tokens import Tokens
from hooks.isolation.unenforced import Unenforced
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.cdi import Hook
from hooks.model.container import Adjustment, Container, Mount, Sandbox
from hooks.model.inventory import Driver, DriverMount, Inventory
from hooks.ports import Enforced
from hooks.vendors.nvidia.inject import GpuMode, SpecsBy
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.devices.isolation import IsolationName
from lading.reasons import Reason
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, node, uuid

CDI_NAMES = frozenset(f"nvidia.com/gpu={name}" for name in (uuid(0), uuid(1), mig_uuid(21)))
NODE = replace(inventory(gpus=(gpu(0), gpu(1), mig_gpu(2))), cdi_names=CDI_NAMES)
CONTROL = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
(DRIVER,) = NODE.drivers
DEVICES = Nvidia(NvidiaSettings(gpu_mode=GpuMode.DEVICES))
TWO = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(1)), GrantedGpu(uuid=uuid(0))))
MIG = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(2), mig_uuid=mig_uuid(21)),))
EVERY_MODE = [
    DEVICES,
    Nvidia(NvidiaSettings(gpu_mode=GpuMode.CDI, cdi_specs=SpecsBy.NVIDIA_CTK)),
    Nvidia(NvidiaSettings(gpu_mode=GpuMode.NVIDIA_RUNTIME)),
]


def adjust_gpus(devices: GrantedDevices, node: Inventory, injection: Nvidia, cdi_refusal: str = "") -> Adjustment | Refusal:
    cards = find_cards(devices, node)
    if isinstance(cards, Refusal):
        return cards
    enforced = adjust_cards(
        cards,
        node,
        Sandbox(uid="p"),
        Container(name="c"),
        vendors=[injection],
        isolations=[Unenforced()],
        cdi_refusal=cdi_refusal,
    )
    return enforced if isinstance(enforced, Refusal) else enforced.adjustment


def with_driver(driver: Driver) -> Inventory:
    return replace(NODE, drivers=(driver,))


def adjust(devices: GrantedDevices, injection: Nvidia) -> Adjustment:
    result = adjust_gpus(devices, NODE, injection)
    assert isinstance(result, Adjustment), result
    return result


def env(adjustment: Adjustment) -> dict[str, str]:
    names = [upsert.name for upsert in adjustment.env]
    assert len(set(names)) == len(names)
    return {upsert.name: upsert.value for upsert in adjustment.env}


@pytest.mark.parametrize("injection", EVERY_MODE)
def test_no_gpus_no_adjustment(injection: Nvidia) -> None:
    assert adjust(GrantedDevices(), injection) == Adjustment()


def test_without_a_hook_for_the_loaders_cache_triton_gets_the_folder_of_libcuda() -> None:
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
    mounts = tuple(DriverMount(host_path="/d/libcuda.so.1", container_path=f"{folder}/libcuda.so.1") for folder in folders)
    hook = make_hook(Path("/opt/lading-ldcache"), [], "580.1", compat=True)
    bare = adjust_gpus(TWO, with_driver(replace(DRIVER, mounts=mounts)), DEVICES)
    hooked = adjust_gpus(TWO, with_driver(replace(DRIVER, mounts=mounts, hooks=(hook,))), DEVICES)
    assert isinstance(bare, Adjustment)
    assert isinstance(hooked, Adjustment)
    assert env(bare) == {"NVIDIA_VISIBLE_DEVICES": "void", "TRITON_LIBCUDA_PATH": folders[0]}
    assert env(hooked) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert (bare.hooks, hooked.hooks) == ((), (hook,))


def test_devices_mode_gives_the_nodes_of_the_minors() -> None:
    adjustment = adjust(TWO, DEVICES)
    assert [d.container_path for d in adjustment.devices] == ["/dev/nvidia7", "/dev/nvidia6", *CONTROL]
    assert [d.host_path for d in adjustment.devices][:1] == ["/node/dev/nvidia7"]
    assert {d.permissions for d in adjustment.devices} == {"rw"}
    assert env(adjustment) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert not adjustment.mounts
    assert not adjustment.cdi_devices


def test_devices_mode_gives_the_caps_of_a_mig_instance() -> None:
    adjustment = adjust(MIG, DEVICES)
    caps = ["/dev/nvidia-caps/nvidia-cap11", "/dev/nvidia-caps/nvidia-cap12"]
    assert [d.container_path for d in adjustment.devices] == ["/dev/nvidia5", *caps, *CONTROL]


def test_two_instances_of_one_card_share_its_node() -> None:
    both = GrantedDevices(gpus=(*MIG.gpus, GrantedGpu(uuid=uuid(2), mig_uuid=mig_uuid(20))))
    paths = [d.container_path for d in adjust(both, DEVICES).devices]
    assert len(paths) == len(set(paths)) == 1 + 4 + 3


def test_devices_mode_mounts_the_driver_read_only() -> None:
    library = DriverMount(host_path="/opt/driver/libcuda.so.1", container_path="/usr/lib/libcuda.so.1")
    with_files = with_driver(replace(DRIVER, mounts=(library,)))
    adjustment = adjust_gpus(TWO, with_files, DEVICES)
    assert isinstance(adjustment, Adjustment)
    assert adjustment.mounts == (Mount("/usr/lib/libcuda.so.1", "/opt/driver/libcuda.so.1", readonly=True),)


def test_devices_mode_without_the_drivers_files() -> None:
    """Check that the files of an optional group do not replace the driver's own."""
    config = DriverMount(host_path="/opt/driver/cufile.json", container_path="/etc/cufile.json")
    for group_mounts in ((), (config,)):
        node = with_driver(replace(DRIVER, files_problem="no libcuda.so.580.65.06", group_mounts=group_mounts))
        result = adjust_gpus(TWO, node, DEVICES)
        assert isinstance(result, Refusal)
        assert result.reason == Reason.DRIVER_FILES_MISSING
        assert "libcuda.so.580.65.06" in result.message


def test_devices_mode_gives_the_optional_groups() -> None:
    """Check nodes and files with every card, and a card's DRM nodes with that card."""
    render = {number: node(f"/dev/dri/renderD{number}", number) for number in (128, 129)}
    config = DriverMount(host_path="/opt/driver/cufile.json", container_path="/etc/cufile.json")
    driver = replace(DRIVER, control=(*DRIVER.control, node("/dev/gdrdrv")), group_mounts=(config,))
    with_drm = tuple(replace(gpu(index), drm=(drm,)) for index, drm in enumerate(render.values()))
    inventory_of_groups = replace(NODE, gpus=(*with_drm, mig_gpu(2)), drivers=(driver,))
    expected = {
        TWO: ["/dev/nvidia7", "/dev/nvidia6", "/dev/dri/renderD128", "/dev/dri/renderD129", *CONTROL, "/dev/gdrdrv"],
        GrantedDevices(gpus=TWO.gpus[:1]): ["/dev/nvidia6", "/dev/dri/renderD129", *CONTROL, "/dev/gdrdrv"],
    }
    for devices, paths in expected.items():
        adjustment = adjust_gpus(devices, inventory_of_groups, DEVICES)
        assert isinstance(adjustment, Adjustment)
        assert [device.container_path for device in adjustment.devices] == paths
        assert [(mount.container_path, mount.readonly) for mount in adjustment.mounts] == [("/etc/cufile.json", True)]
    assert adjust_gpus(GrantedDevices(), inventory_of_groups, DEVICES) == Adjustment()


@pytest.mark.parametrize("deleted", ["/dev/nvidiactl", "/dev/nvidia-uvm"])
def test_devices_mode_without_a_needed_control_node(deleted: str) -> None:
    without = replace(DRIVER, control=tuple(node for node in DRIVER.control if node.path != deleted))
    result = adjust_gpus(TWO, with_driver(without), DEVICES)
    assert isinstance(result, Refusal)
    assert result.reason == Reason.DEVICE_NODE_INVALID
    assert deleted in result.message
    no_driver = adjust_gpus(TWO, replace(NODE, drivers=()), DEVICES)
    assert isinstance(no_driver, Refusal)


def test_profilers_node_may_be_absent() -> None:
    node = with_driver(replace(DRIVER, control=DRIVER.control[:2]))
    assert isinstance(adjust_gpus(TWO, node, DEVICES), Adjustment)


def test_cdi_mode_names_by_uuid() -> None:
    adjustment = adjust(TWO, EVERY_MODE[1])
    assert list(adjustment.cdi_devices) == [f"nvidia.com/gpu={uuid(0)}", f"nvidia.com/gpu={uuid(1)}"]
    assert env(adjustment) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert not adjustment.devices
    assert list(adjust(MIG, EVERY_MODE[1]).cdi_devices) == [f"nvidia.com/gpu={mig_uuid(21)}"]


def test_cdi_mode_without_the_name_or_the_runtime() -> None:
    only_first = replace(NODE, cdi_names=frozenset({"nvidia.com/gpu=0", f"nvidia.com/gpu={uuid(1)}"}))
    result = adjust_gpus(TWO, only_first, EVERY_MODE[1])
    assert isinstance(result, Refusal)
    assert result.reason == Reason.CDI_UNAVAILABLE
    assert uuid(0) in result.message
    result = adjust_gpus(TWO, NODE, EVERY_MODE[1], "containerd 1.6 has no CDI")
    assert isinstance(result, Refusal)
    assert result.reason == Reason.CDI_UNAVAILABLE
    assert "containerd 1.6" in result.message


def test_nvidia_runtime_mode_names_by_uuid() -> None:
    adjustment = adjust(TWO, EVERY_MODE[2])
    assert env(adjustment) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}"}
    assert not adjustment.devices
    assert env(adjust(MIG, EVERY_MODE[2])) == {"NVIDIA_VISIBLE_DEVICES": mig_uuid(21)}


@pytest.mark.parametrize("injection", EVERY_MODE)
def test_shares_are_reported_in_the_order_of_pci_addresses(injection: Nvidia) -> None:
    """Check the order of PCI addresses, by which a program counts its devices, whatever the order of the assignment is."""
    share = GrantedGpu(uuid=uuid(1), memory_mib=8138)
    cores = GrantedGpu(uuid=uuid(0), core_percent=30)
    usable = NODE.gpus[0].usable_mib
    for order in permutations((share, cores, *MIG.gpus)):
        adjustment = adjust(GrantedDevices(gpus=order), injection)
        assert env(adjustment)["LADING_GPU_MEMORY_MIB"] == f"{usable},8138,40000"
        assert env(adjustment)["LADING_GPU_CORE_PERCENT"] == "30,100,100"
        assert env(adjustment)["LADING_GPU_TOTAL_MEMORY_MIB"] == f"{usable},{usable},40000"
    assert not [name for name in env(adjust(TWO, injection)) if name.startswith("LADING_")]


@pytest.mark.parametrize("injection", EVERY_MODE)
def test_a_card_that_left_since_it_was_granted(injection: Nvidia) -> None:
    for one in (GrantedGpu(uuid=uuid(9)), GrantedGpu(uuid=uuid(2), mig_uuid=mig_uuid(29))):
        result = adjust_gpus(GrantedDevices(gpus=(one,)), NODE, injection)
        assert isinstance(result, Refusal)
        assert result.reason == Reason.DEVICE_UNKNOWN
        assert (one.mig_uuid or one.uuid) in result.message


@pytest.mark.parametrize("injection", EVERY_MODE)
def test_a_card_that_broke_since_it_was_granted(injection: Nvidia) -> None:
    for broken in (gpu(0, unhealthy="Xid 79"), replace(gpu(0), node=None)):
        result = adjust_gpus(GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)),)), inventory(gpus=(broken,)), injection)
        assert isinstance(result, Refusal)
        assert result.reason == Reason.DEVICE_UNHEALTHY


def test_a_share_beside_a_mig_instance_keeps_its_isolation() -> None:
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    node = with_driver(replace(DRIVER, mounts=(DriverMount(host_path="/opt/driver" + library, container_path=library),)))
    share = GrantedGpu(uuid=uuid(0), memory_mib=1000, isolation=IsolationName.TOKENS)
    cards = find_cards(GrantedDevices(gpus=(*MIG.gpus, share)), node)
    assert not isinstance(cards, Refusal)
    enforced = adjust_cards(
        cards,
        node,
        Sandbox(uid="p"),
        Container(name="c"),
        vendors=[DEVICES],
        isolations=[Unenforced(), Tokens(library=ShareLibrary(libraries="/opt/libraries", shares_dir="/run/shares"))],
        cdi_refusal="",
    )
    assert isinstance(enforced, Enforced), enforced
    assert Mount(library, "/opt/libraries/libcuda.so.1") in enforced.adjustment.mounts
    assert enforced.share is not None
    assert [one.uuid for one in enforced.share.gpus] == [uuid(0)]


def test_a_newer_libcuda_of_the_image_is_for_containers_whose_cards_all_take_it() -> None:
    hook = make_hook(Path("/opt/lading-ldcache"), ["/usr/lib64/libcuda.so.1"], DRIVER.version, compat=True)
    geforce = replace(gpu(1), model="NVIDIA GeForce RTX 4090")
    both = replace(NODE, gpus=(gpu(0), geforce), drivers=(replace(DRIVER, hooks=(hook,)),))

    def hooks_with(*numbers: int) -> tuple[Hook, ...]:
        devices = GrantedDevices(gpus=tuple(GrantedGpu(uuid=uuid(number)) for number in numbers))
        result = adjust_gpus(devices, both, DEVICES)
        assert isinstance(result, Adjustment)
        return result.hooks

    assert hooks_with(0) == (hook,)
    assert hooks_with(1) == hooks_with(0, 1) == without_compat((hook,))
