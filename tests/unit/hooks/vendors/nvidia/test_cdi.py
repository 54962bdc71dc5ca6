"""Test CDI specs of a simulated node, by the real pynvml over the fake library; LADING_GOLDEN=write writes the golden files."""

import os
import platform
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hooks.host.cdi_spec import render_spec
from hooks.host.ldcache import without_compat
from hooks.inventory.cdi import name_devices, publish
from hooks.inventory.read import read_inventory
from hooks.model.assignment import GrantedGpu, Refusal
from hooks.model.cdi import Hook, Spec
from hooks.model.inventory import Gpu, Inventory
from hooks.ports import Card
from hooks.vendors.nvidia.cdi_hook import read_commands
from hooks.vendors.nvidia.groups import DriverGroup
from hooks.vendors.nvidia.inject import GpuMode, SpecsBy
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.errors import HostError
from lading.reasons import Reason
from simnode.build import LIBRARIES, SimNode
from simnode.nvml import GPU_IS_LOST, Failure, NvmlState
from simnode.profile import Profile
from tests.conftest import BuildNode
from tests.fakes.cdi_hook import HOOKS, write_cdi_hook

GOLDEN = Path(__file__).parents[5] / "tests/golden/cdi"
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the simulated driver's folder is that of x86_64")


def vendor(node: SimNode, library: Path, **changes: object) -> Nvidia:
    own = NvidiaSettings(
        gpu_mode=GpuMode.CDI,
        cdi_specs=SpecsBy.LADING,
        nvml_library=str(library),
        driver_root=str(node.root),
        cdi_hook=str(node.root / "usr/bin/nvidia-cdi-hook"),
    )
    return Nvidia(msgspec.structs.replace(own, **changes))


def with_files(node: SimNode, *, hook: bool = True) -> SimNode:
    """Add what a driver's packages and NVIDIA's toolkit bring besides."""
    assert node.profile.driver is not None
    firmware = node.root / "lib/firmware/nvidia" / node.profile.driver.version
    firmware.mkdir(parents=True)
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin", "README"):
        (firmware / name).touch()
    (node.root / "usr/bin/nvidia-imex").touch()
    if hook:
        write_cdi_hook(node.root / "usr/bin/nvidia-cdi-hook")
    return node


def specs_of(node: SimNode, nvidia: Nvidia, tmp_path: Path, *, mad: bool = False) -> dict[str, str]:
    """Return the files that are written, by name."""
    inventory = publish(read_inventory(node.root, vendors=[nvidia]), [nvidia], tmp_path / "cdi", mad=mad)
    assert inventory.problems == ()
    return {path.name: path.read_text().replace(str(node.root), "/NODE") for path in (tmp_path / "cdi").iterdir()}


@pytest.mark.parametrize(
    ("name", "profile", "hook"), [("with-hook", "demo-8gpu", True), ("without-hook", "demo-8gpu", False), ("mig", "mig", True)]
)
def test_the_files_of_a_node(
    build_node: BuildNode, fake_nvml: Path, tmp_path: Path, name: str, profile: str, hook: bool
) -> None:
    node = with_files(build_node(profile), hook=hook)
    NvmlState(profile=node.profile).write(node.nvml_state)
    written = specs_of(node, vendor(node, fake_nvml), tmp_path, mad=True)
    golden = GOLDEN / name
    if os.environ.get("LADING_GOLDEN") == "write":
        golden.mkdir(parents=True, exist_ok=True)
        for file, content in written.items():
            (golden / file).write_text(content)
    assert written == {path.name: path.read_text() for path in golden.iterdir()}


def only(nvidia: Nvidia, inventory: Inventory, kind: str = "lading.dev/gpu") -> Spec:
    (spec,) = (spec for spec in nvidia.render_specs(inventory)[0] if spec.kind == kind)
    render_spec(spec)
    return spec


def read(node: SimNode, nvidia: Nvidia, state: NvmlState | None = None) -> Inventory:
    (state or NvmlState(profile=node.profile)).write(node.nvml_state)
    return read_inventory(node.root, vendors=[nvidia])


def test_links_and_the_library_cache_are_made_by_hooks_and_no_hook_is_without_an_environment(
    build_node: BuildNode, fake_nvml: Path
) -> None:
    node = with_files(build_node("demo-8gpu"))
    nvidia = vendor(node, fake_nvml)
    edits = only(nvidia, read(node, nvidia)).container_edits
    assert [hook.args[1] for hook in edits.hooks] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    assert {hook.env for hook in edits.hooks} == {("PATH=/usr/bin:/bin",)}
    assert {hook.path for hook in edits.hooks} == {str(node.root / "usr/bin/nvidia-cdi-hook")}
    assert f"libcuda.so.1::/{LIBRARIES}/libcuda.so" in edits.hooks[0].args
    names = [Path(mount.container_path).name for mount in edits.mounts]
    assert "libcuda.so.1" not in names  # ldconfig makes it
    assert {"gsp_ga10x.bin", "nvidia-smi", "nvidia-imex"} <= set(names)
    assert "README" not in names


def test_ladings_own_hook_makes_the_cache_where_it_is(build_node: BuildNode, fake_nvml: Path) -> None:
    node = with_files(build_node("demo-8gpu"))
    program = node.root / "lading-ldcache"
    program.touch(mode=0o755)
    nvidia = replace(vendor(node, fake_nvml), ldcache=program)
    *others, own = hooks_of(nvidia, node)
    assert [hook.args[1] for hook in others] == ["create-symlinks", "disable-device-node-modification"]
    assert own.args[:3] == ("lading-ldcache", "--driver", "550.127.05")
    assert {f"/{LIBRARIES}/libcuda.so.1", f"/{LIBRARIES}/libcuda.so"} <= set(own.args)
    assert f"/{LIBRARIES}/libcuda.so.550.127.05" not in own.args
    program.chmod(0o644)  # access(2) gives the same answer on a file system without exec
    assert len(hooks_of(nvidia, node)) == 4


@pytest.mark.parametrize(("model", "allowed"), [("NVIDIA H100", True), ("NVIDIA GeForce RTX 4090", False), ("TITAN V", False)])
def test_a_newer_libcuda_of_the_image_is_for_data_centre_cards(
    build_node: BuildNode, fake_nvml: Path, model: str, allowed: bool
) -> None:
    node = build_node("demo-8gpu")
    program = node.root / "lading-ldcache"
    program.touch(mode=0o755)
    content = msgspec.json.encode(node.profile).replace(node.profile.gpus[0][1].model.encode(), model.encode())
    state = NvmlState(profile=msgspec.json.decode(content, type=Profile))
    nvidia = replace(vendor(node, fake_nvml), ldcache=program)
    (hook,) = only(nvidia, read(node, nvidia, state)).container_edits.hooks
    assert ("--no-compat" not in hook.args) is allowed


def test_on_a_node_with_both_each_card_decides(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    program = node.root / "lading-ldcache"
    program.touch(mode=0o755)
    model = node.profile.gpus[0][1].model
    content = msgspec.json.encode(node.profile).replace(model.encode(), b"NVIDIA GeForce RTX 4090", 1)
    nvidia = replace(vendor(node, fake_nvml), ldcache=program)
    spec = only(nvidia, read(node, nvidia, NvmlState(profile=msgspec.json.decode(content, type=Profile))))
    (common,) = spec.container_edits.hooks
    assert "--no-compat" not in common.args
    (own,) = [device.container_edits.hooks for device in spec.devices if device.container_edits.hooks]
    assert own == without_compat([common])
    assert spec.devices[0].container_edits.hooks == own


def test_an_older_program_is_called_only_for_what_it_has(build_node: BuildNode, fake_nvml: Path) -> None:
    node = with_files(build_node("demo-8gpu"), hook=False)
    write_cdi_hook(node.root / "usr/bin/nvidia-cdi-hook", hooks=("update-ldcache", "create-symlinks", "chmod"))
    nvidia = vendor(node, fake_nvml)
    assert [hook.args[1] for hook in hooks_of(nvidia, node)] == ["create-symlinks", "update-ldcache"]
    write_cdi_hook(node.root / "usr/bin/nvidia-cdi-hook")  # upgraded, while the daemon runs
    assert len(hooks_of(nvidia, node)) == 4


def hooks_of(nvidia: Nvidia, node: SimNode) -> tuple[Hook, ...]:
    return only(nvidia, read(node, nvidia)).container_edits.hooks


@pytest.mark.parametrize(
    "broken", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\necho '   chmod     Change modes'\n", "#!/no/such/interpreter\n"]
)
def test_a_program_of_no_use_is_reported_and_links_are_mounts(build_node: BuildNode, fake_nvml: Path, broken: str) -> None:
    node = with_files(build_node("demo-8gpu"), hook=False)
    program = node.root / "usr/bin/nvidia-cdi-hook"
    program.write_text(broken)
    program.chmod(0o755)
    nvidia = vendor(node, fake_nvml)
    inventory = read(node, nvidia)
    assert any(str(program) in problem and "as mounts" in problem for problem in inventory.problems)
    edits = only(nvidia, inventory).container_edits
    assert edits.hooks == ()
    assert f"/{LIBRARIES}/libcuda.so.1" in {mount.container_path for mount in edits.mounts}
    assert "/usr/lib64/libcuda.so.1" in {mount.container_path for mount in edits.mounts}


def test_the_program_that_is_absent_has_no_hooks(tmp_path: Path) -> None:
    assert read_commands(tmp_path / "nvidia-cdi-hook") == frozenset()
    assert read_commands(write_cdi_hook(tmp_path / "here")) >= set(HOOKS)
    (tmp_path / "plain").touch()
    with pytest.raises(HostError, match="plain"):
        read_commands(tmp_path / "plain")


def test_specs_follow_the_node(build_node: BuildNode, fake_nvml: Path, tmp_path: Path) -> None:
    """Check a card that disappeared, one that the driver cannot show, and another driver."""
    node = build_node("demo-8gpu")
    nvidia = vendor(node, fake_nvml)
    folder = tmp_path / "cdi"

    def written(state: NvmlState | None = None) -> str:
        inventory = publish(read(node, nvidia, state), [nvidia], folder, mad=False)
        file = folder / "lading.dev-gpu.json"
        text = file.read_text() if file.exists() else ""
        assert {name for name in inventory.cdi_names if "/gpu=" in name} == {
            f"lading.dev/gpu={gpu.uuid}" for _, gpu in node.profile.gpus if gpu.uuid in text
        }
        return text

    deleted = node.profile.gpus[3][1]
    assert deleted.uuid in written()
    lost = written(NvmlState(profile=node.profile, failures=(Failure(gpu=3, status=GPU_IS_LOST),)))
    assert deleted.uuid not in lost
    assert deleted.uuid in written()
    (node.root / f"dev/nvidia{deleted.minor}").unlink()
    text = written()
    assert deleted.uuid not in text
    assert node.profile.gpus[2][1].uuid in text
    assert node.profile.driver is not None
    (node.root / LIBRARIES / f"libcuda.so.{node.profile.driver.version}").unlink()  # the driver is being upgraded
    assert written() == ""
    assert (folder / "lading.dev-vf.json").exists()


def card(gpu: Gpu, mig: int | None = None) -> Card:
    assert gpu.node is not None
    instance = None if mig is None else gpu.mig[mig]
    granted = GrantedGpu(uuid=gpu.uuid, mig_uuid=instance.uuid if instance else "")
    return Card(granted=granted, gpu=gpu, node=gpu.node, mig=instance)


def test_a_container_gets_names_and_nothing_else(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("mig")
    nvidia = vendor(node, fake_nvml)
    inventory = name_devices(read(node, nvidia), [nvidia], mad=False)
    divided = next(gpu for gpu in inventory.gpus if gpu.mig)
    adjustment = nvidia.inject([card(divided, 0)], inventory, cdi_refusal="")
    assert not isinstance(adjustment, Refusal)
    assert adjustment.cdi_devices == (f"lading.dev/mig={divided.mig[0].uuid}",)
    assert [(env.name, env.value) for env in adjustment.env] == [("NVIDIA_VISIBLE_DEVICES", "void")]
    assert (adjustment.devices, adjustment.mounts) == ((), ())
    assert f"lading.dev/gpu={divided.uuid}" not in inventory.cdi_names  # in MIG mode no container uses the whole card


def test_what_is_missing_is_refused_by_its_reason(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    nvidia = vendor(node, fake_nvml)
    named = name_devices(read(node, nvidia), [nvidia], mad=False)
    (driver,) = named.drivers
    first = card(named.gpus[0])

    def refused(inventory: Inventory, cdi_refusal: str = "") -> tuple[Reason, str]:
        result = nvidia.inject([first], inventory, cdi_refusal=cdi_refusal)
        assert isinstance(result, Refusal)
        return result.reason, result.message

    assert refused(named, "containerd 1.6 ignores them") == (
        Reason.CDI_UNAVAILABLE,
        "cannot give GPUs by CDI: containerd 1.6 ignores them",
    )
    unwritten = replace(named, cdi_names=frozenset())
    reason, message = refused(unwritten)
    assert reason is Reason.CDI_UNAVAILABLE
    assert f"lading.dev/gpu={first.gpu.uuid}" in message
    assert "could not be written" in nvidia.problem(unwritten)
    assert not nvidia.problem(named)
    missing = replace(driver, missing=("/lib/libcuda.so.1",))
    assert refused(replace(named, drivers=(missing,)))[0] is Reason.DRIVER_FILES_MISSING
    bare = replace(named, drivers=(replace(driver, mounts=(), files_problem=f"no libcuda.so.{driver.version}"),))
    assert refused(bare)[0] is Reason.DRIVER_FILES_MISSING
    assert driver.version in nvidia.problem(bare)
    without_uvm = replace(driver, control=driver.control[:1])
    assert refused(replace(named, drivers=(without_uvm,)))[0] is Reason.DEVICE_NODE_INVALID


def test_optional_groups_are_in_the_specs(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    (node.root / "usr/share/nvidia").mkdir(parents=True)
    (node.root / "usr/share/nvidia/nvoptix.bin").touch()
    nvidia = vendor(node, fake_nvml, driver_groups=(DriverGroup.GRAPHICS,))
    mounts = only(nvidia, read(node, nvidia)).container_edits.mounts
    assert "/usr/share/nvidia/nvoptix.bin" in {mount.container_path for mount in mounts}


def test_specs_by_others_are_left_to_them(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("demo-8gpu")
    for other in ({"cdi_specs": SpecsBy.NVIDIA_CTK}, {"gpu_mode": GpuMode.DEVICES}):
        nvidia = vendor(node, fake_nvml, **other)
        assert nvidia.render_specs(read(node, nvidia)) == ((), ())
