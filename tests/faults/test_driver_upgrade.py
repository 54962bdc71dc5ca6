"""Test an upgrade of the driver without a reboot: first its files are exchanged, then its kernel module."""

import re
import shutil
from pathlib import Path
from typing import Final

from lading.driverfiles import NVML
from lading.log import Event
from lading.vocabulary import MANUAL_GPUS
from simnode.build import LIBRARIES, SimNode
from simnode.child import Child, replace_text
from simnode.cri import CriError, Pod
from simnode.daemons import Daemon, render_flat_toml
from simnode.nvml import compile_fake_nvml
from tests.conftest import BuildNode
from tests.faults.conftest import StartLading
from tests.faults.rig import GUARDED, cards_in_use, logged
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import eventually, refusal_of
from tests.started import NO_METRICS

OLD: Final = "550.127.05"  # version of the simulated node's driver
NEW: Final = "560.35.03"
VERSION: Final = "proc/driver/nvidia/version"


def install_nvml(folder: Path, version: str, of: Path) -> None:
    """Install NVML of this version as packages do: the files of other versions are removed."""
    for file in folder.glob("libnvidia-ml.so.*"):
        file.unlink()
    shutil.copy(of, folder / f"libnvidia-ml.so.{version}")
    (folder / NVML).symlink_to(f"libnvidia-ml.so.{version}")


def load_module(node: SimNode, version: str) -> None:
    for file in (node.root / VERSION, node.nvml_state):
        replace_text(file, re.sub(rf"{OLD}|{NEW}", version, file.read_text()))


def create(pod: Pod) -> None:
    """Raise AssertionError for a refusal, so that `eventually` tries again."""
    try:
        pod.create_container()
    except CriError as e:
        raise AssertionError(refusal_of(e)) from e


def test_when_the_module_was_exchanged_lading_hooks_ends_and_its_next_start_has_all_cards(
    start_lading: StartLading, runtime: InMemoryRuntime, short_folder: Path
) -> None:
    nvml = short_folder / "nvml"
    nvml.mkdir()
    fake = compile_fake_nvml(short_folder / "compiled")
    (nvml / "state").symlink_to(short_folder / "node/fake-nvml/state")
    install_nvml(nvml, OLD, fake)
    lading = start_lading(nvml_library=str(nvml / NVML), inventory_interval=1)
    with lading.client() as kubelet:
        create(kubelet.run_pod("before", annotations=GUARDED))
        install_nvml(nvml, NEW, fake)
        shutil.copy(lading.node.root / LIBRARIES / f"libcuda.so.{OLD}", lading.node.root / LIBRARIES / f"libcuda.so.{NEW}")
        create(kubelet.run_pod("upgraded", annotations={MANUAL_GPUS: "1"}))
        assert not logged(lading.hooks, Event.DRIVER_EXCHANGED)  # the old module and the loaded NVML are of one version
        load_module(lading.node, NEW)
        lading.hooks.wait_until(lambda: bool(logged(lading.hooks, Event.DRIVER_EXCHANGED)), "the module's version")
        eventually(lambda: ended_well(lading.hooks))
        lading.hooks.start()
        after = kubelet.run_pod("after", annotations={MANUAL_GPUS: "2"})
        eventually(lambda: create(after))
        assert len(cards_in_use(runtime)) == 3
        assert lading.hooks.running
        assert len(logged(lading.hooks, Event.DRIVER_EXCHANGED)) == 1


def ended_well(daemon: Daemon) -> None:
    assert daemon.status == 0


def test_so_does_lading_shares(build_node: BuildNode, short_folder: Path) -> None:
    """Start it with NVML loaded, as it is after a container had a share."""
    node, nvml = build_node("workstation"), short_folder / "nvml"
    nvml.mkdir()
    install_nvml(nvml, NEW, compile_fake_nvml(short_folder / "compiled"))
    settings = {
        "listen": str(short_folder / "shares.sock"),
        "shares_dir": str(short_folder / "shares"),
        "host_root": str(node.root),
        "nvml_library": str(nvml / NVML),
        **NO_METRICS,
    }
    config = short_folder / "shares.toml"
    config.write_text(render_flat_toml(settings))
    loaded = {"LD_PRELOAD": str(nvml / f"libnvidia-ml.so.{NEW}")}
    library = nvml / f"libnvidia-ml.so.{NEW}"
    loaded = {"LD_PRELOAD": str(library)}
    daemon = Daemon("lading-shares", config=config, socket=short_folder / "shares.sock", module="shares.main", env=loaded)
    load_module(node, NEW)
    daemon.start()
    daemon.stop()
    assert not logged(daemon, Event.DRIVER_EXCHANGED)
    load_module(node, OLD)
    shutil.copy(library, nvml / f"libnvidia-ml.so.{OLD}")
    (nvml / NVML).unlink()
    (nvml / NVML).symlink_to(f"libnvidia-ml.so.{OLD}")
    Child.start(daemon)  # it ends too soon to wait for its socket
    eventually(lambda: ended_well(daemon))
    assert len(logged(daemon, Event.DRIVER_EXCHANGED)) == 1
