"""Test mode `cdi` with Lading's own specs, without nvidia-ctk, on real runtimes that honour CDI names."""

import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from hooks.frontends.nri.messages import Runtime
from hooks.host.cdi_spec import parse_spec
from lading.log import Event
from lading.reasons import Reason
from simnode.build import LIBRARIES
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, CriError, Pod
from simnode.daemons import LadingNode
from simnode.nvml import NvmlState
from simnode.profile import NvidiaDriver
from tests.fakes.cdi_hook import write_cdi_hook
from tests.node.conftest import StartLading
from tests.node.site import eventually, open_site
from tests.node.test_doctor import found, states
from tests.node.test_ldcache import check_cache
from tests.node.test_ldcache import run as run_with_glibc

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("own_specs")]

GPU = "lading.dev/gpus"
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
LIBCUDA = f"/{LIBRARIES}/libcuda.so"


def start(
    start_lading: StartLading,
    runtime: PrivateContainerd,
    *,
    profile: str = "demo-8gpu",
    nri: bool = False,
    mig_cards: Sequence[str] = (),
    hook: Path | None = None,
    ldcache: Path | None = None,
) -> LadingNode:
    """Start a node. Where its driver is, is known when the node is built."""
    own = {"gpu_mode": "devices", "inventory_interval": 1}
    lading = start_lading(profile, hooks=own, runtime=runtime, nri=nri)
    lading.reconfigure_hooks(
        gpu_mode="cdi",
        driver_root=str(lading.node.root),
        cdi_dir=str(runtime.layout.cdi),
        cdi_hook=str(hook or lading.node.root / "no-such-hook"),
        mig_cards=list(mig_cards),
        share_libraries=str(ldcache.parent) if ldcache else "",
    )
    eventually(lambda: _started(lading, 2))
    return lading


def _started(lading: LadingNode, times: int) -> None:
    """Wait until the daemon has read its devices: its socket exists earlier."""
    assert lading.hooks.log.read_text().count(f"event={Event.DAEMON_STARTED}") == times


def spec_file(runtime: PrivateContainerd, kind: str = "gpu") -> Path:
    return runtime.layout.cdi / f"lading.dev-{kind}.json"


def run(pod: Pod, name: str = "main", *, env: dict[str, str] | None = None) -> Container:
    container = eventually(lambda: pod.create_container(name, env=env or {}))
    container.start()
    return container


def test_a_container_gets_its_card_the_drivers_files_and_nothing_else(
    newer: PrivateContainerd, start_lading: StartLading, ldcache_hook: Path
) -> None:
    lading = start(start_lading, newer, ldcache=ldcache_hook)
    with open_site(lading, newer) as site, site.kubelet.pod("own", annotations={GPU: "0,2", "lading.dev/vfs": "1"}) as pod:
        container = run(pod)
        sight = site.see(container)
        verbs = {site.uverbs(vf) for vf in sight.vfs} | {"/dev/infiniband/rdma_cm"}
        assert sight.nodes == {site.card(0), site.card(2), *CONTROL, *verbs}
        assert sight.env["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert sight.env["NVIDIA_CTK_LIBCUDA_DIR"] == f"/{LIBRARIES}"
        for name in (f"{LIBCUDA}.550.127.05", f"{LIBCUDA}.1", "/usr/lib64/libcuda.so.1"):
            assert container.sh(f"cat {name}").strip() == "simulated libcuda"
        assert container.sh("nvidia-smi").strip() == "simulated nvidia-smi"
        mounts = container.sh("cat /proc/self/mountinfo")
        assert re.search(rf"{LIBCUDA}\.1 ro,nosuid,nodev", mounts)
        with site.kubelet.pod("cached", annotations={GPU: "1"}) as cached:
            check_cache(run_with_glibc(cached))
        plain = run(site.kubelet.run_pod("plain"))
        assert not site.see(plain).nodes
        assert plain.env()["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_by_nri_it_is_the_same_or_refused_at_the_start_and_for_each_container(
    newer: PrivateContainerd, start_lading: StartLading
) -> None:
    lading = start(start_lading, newer, nri=True)
    with open_site(lading, newer) as site, site.kubelet.pod("own", annotations={GPU: "1"}) as pod:
        if Runtime(name="containerd", version=newer.version).honours_cdi:
            container = run(pod)
            assert site.see(container).nodes == {site.card(1), *CONTROL}
            assert container.sh(f"cat {LIBCUDA}.1").strip() == "simulated libcuda"
            return

        def check() -> None:
            refused = site.refused(pod)
            assert refused.reason is Reason.CDI_UNAVAILABLE
            assert f"by NRI, containerd {newer.version}" in refused.message

        eventually(check)
        text = [line for line in lading.hooks.log.read_text().splitlines() if f"event={Event.CDI_UNAVAILABLE}" in line]
        assert f"containers with GPUs are refused: by NRI, containerd {newer.version}" in text[0]


def test_a_mig_instance_has_a_kind_of_its_own(newer: PrivateContainerd, start_lading: StartLading) -> None:
    lading = start(start_lading, newer, profile="mig")
    with open_site(lading, newer) as site:
        instance = site.node.profile.gpus[0][1].mig[0]  # type: ignore[index]
        with site.kubelet.pod("mig", annotations={GPU: f"{instance.uuid},1"}) as pod:
            caps = {f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in instance.cap_minors}
            container = run(pod)
            assert site.see(container).nodes == {site.card(0), site.card(1), *CONTROL, *caps}
            assert container.sh("cat /proc/self/mountinfo").count(f"{LIBCUDA}.1 ") == 1


def test_an_instance_that_is_made_on_demand_is_named_when_it_is_there(
    newer: PrivateContainerd, start_lading: StartLading
) -> None:
    lading = start(start_lading, newer, profile="mig-on-demand", mig_cards=["all"])
    with open_site(lading, newer) as site:
        position = f"MIG-{site.gpu(0)}/1g.10gb@6"
        with site.kubelet.pod("small", annotations={GPU: position}) as pod:
            caps = {"/dev/nvidia-caps/nvidia-cap35", "/dev/nvidia-caps/nvidia-cap36"}
            assert site.see(run(pod)).nodes == {site.card(0), *CONTROL, *caps}
        eventually(lambda: _is_deleted(spec_file(newer, "mig")))


def _is_deleted(path: Path) -> None:
    assert not path.exists()


def test_hooks_run_without_the_containers_environment(
    newer: PrivateContainerd, start_lading: StartLading, tmp_path: Path, ldcache_hook: Path
) -> None:
    notes = tmp_path / "notes"
    hook = write_cdi_hook(tmp_path / "nvidia-cdi-hook", notes=notes)
    lading = start(start_lading, newer, hook=hook, ldcache=ldcache_hook)
    with open_site(lading, newer) as site, site.kubelet.pod("hooked", annotations={GPU: "0"}) as pod:
        container = run(pod, env={"LD_PRELOAD": "/evil.so", "LD_LIBRARY_PATH": "/evil", "MARK": "of the container"})
        assert container.env()["LD_PRELOAD"] == "/evil.so"
        runs = notes.read_text().split("end\n")[:-1]
        assert [one.split()[0] for one in runs] == ["create-symlinks", "disable-device-node-modification"]
        assert f"libcuda.so.1::{LIBCUDA}" in runs[0]
        for one in runs:
            names = {line.partition("=")[0] for line in one.splitlines()[1:]}
            assert names <= {"PATH", "PWD", "OLDPWD", "SHLVL", "_"}
            assert "PATH=/usr/bin:/bin" in one.splitlines()
        assert container.sh(f"cat {LIBCUDA}.550.127.05").strip() == "simulated libcuda"
        assert container.sh(f"ls {LIBCUDA}.1 || true").strip() == ""  # the stand-in makes no links


def test_a_card_that_goes_and_comes_back_goes_and_comes_back_in_the_spec(
    newer: PrivateContainerd, start_lading: StartLading
) -> None:
    lading = start(start_lading, newer)
    with open_site(lading, newer) as site:
        node = site.node.root / site.card(7)[1:]
        away = node.with_name("away")

        def named() -> set[str]:
            return {device.name for device in parse_spec(spec_file(newer).read_bytes()).devices}

        def is_named(*indices: int) -> None:
            assert named() == {site.gpu(index) for index in indices}

        eventually(lambda: is_named(*range(8)))
        node.rename(away)
        eventually(lambda: is_named(*range(7)))
        refused = site.refused_at_once({GPU: "7"})
        assert refused.reason is Reason.DEVICE_UNHEALTHY
        away.rename(node)
        eventually(lambda: is_named(*range(8)))
        with site.kubelet.pod("back", annotations={GPU: "7"}) as pod:
            assert site.see(run(pod)).nodes == {site.card(7), *CONTROL}


def test_another_driver_is_in_the_spec_and_in_the_next_container(newer: PrivateContainerd, start_lading: StartLading) -> None:
    lading = start(start_lading, newer)
    with open_site(lading, newer) as site:
        folder = site.node.root / LIBRARIES
        with site.kubelet.pod("before", annotations={GPU: "0"}) as pod:
            run(pod)
            for library in folder.glob("*.so.550.127.05"):
                library.rename(folder / library.name.replace("550.127.05", "560.35.03"))
            for link in folder.glob("*.so.1"):
                link.unlink()
                link.symlink_to(link.name.removesuffix("1") + "560.35.03")
            assert site.refused_at_once({GPU: "1"}).reason is Reason.DRIVER_FILES_MISSING
            eventually(lambda: _is_deleted(spec_file(newer)))
        profile = site.node.profile
        upgraded = msgspec.structs.replace(profile, driver=NvidiaDriver(version="560.35.03"))
        NvmlState(profile=upgraded).write(site.node.nvml_state)
        with site.kubelet.pod("after", annotations={GPU: "0"}) as pod:
            container = run(pod)
            assert container.sh(f"cat {LIBCUDA}.560.35.03").strip() == "simulated libcuda"


@pytest.mark.long
def test_the_doctor_checks_the_specs_and_at_the_runtimes_folders(
    newer: PrivateContainerd, start_lading: StartLading, tmp_path: Path
) -> None:
    lading = start(start_lading, newer)
    assert states(found(lading, "--only", "cdi,cdi-specs"), "ok") == {"cdi", "cdi-specs"}
    lading.hooks.stop()
    (lading.node.root / LIBRARIES / "libcuda.so.550.127.05").unlink()  # no part of Lading writes it again
    assert states(found(lading, "--only", "cdi,cdi-specs"), "failed") == {"cdi-specs"}
    lading.reconfigure_hooks(cdi_dir=str(tmp_path / "elsewhere"))
    assert "cdi" in states(found(lading, "--only", "cdi,cdi-specs"), "failed")
    with open_site(lading, newer) as site:
        site.await_log(lading.hooks, Event.CDI_UNAVAILABLE, "elsewhere")
        refused = site.refused_at_once({GPU: "0"})
        assert refused.reason is Reason.CDI_UNAVAILABLE
        assert str(tmp_path / "elsewhere") in refused.message


def test_a_container_restarts_while_the_daemon_is_away_from_its_spec(
    newer: PrivateContainerd, start_lading: StartLading
) -> None:
    """Check that the files remain when the daemon stops, and are up to date before the first container after its start."""
    lading = start(start_lading, newer)
    with open_site(lading, newer) as site, site.kubelet.pod("again", annotations={GPU: "3"}) as pod:
        run(pod).remove()
        lading.hooks.stop()
        assert spec_file(newer).exists()
        spec_file(newer).unlink()  # a reboot does this
        lading.hooks.start()
        eventually(lambda: _started(lading, 3))
        assert site.see(run(pod)).nodes == {site.card(3), *CONTROL}


def test_the_runtime_lives_with_foreign_and_half_written_files_beside(
    newer: PrivateContainerd, start_lading: StartLading
) -> None:
    lading = start(start_lading, newer)
    folder = newer.layout.cdi
    half = spec_file(newer).read_bytes()[:300]
    (folder / ".lading.dev-gpu.json.new").write_bytes(half)  # the file of a writer that was killed
    (folder / "nvidia.yaml").write_bytes(b"\xff{")
    with open_site(lading, newer) as site, site.kubelet.pod("beside", annotations={GPU: "0"}) as pod:
        assert site.see(run(pod)).nodes == {site.card(0), *CONTROL}
        assert site.direct.version()


@pytest.mark.long
def test_containers_are_created_while_the_spec_is_written_again_and_again(
    newer: PrivateContainerd, start_lading: StartLading
) -> None:
    lading = start(start_lading, newer)
    end = threading.Event()

    def damage() -> None:
        """Have it written at each reading."""
        while not end.wait(0.2):
            spec = json.loads(spec_file(newer).read_bytes())
            spec["containerEdits"]["env"].append("STALE=1")
            new = spec_file(newer).with_name("x")
            new.write_text(json.dumps(spec))
            new.rename(spec_file(newer))
            (lading.node.root / "dev/nvidia-wake").touch()
            (lading.node.root / "dev/nvidia-wake").unlink()

    thread = threading.Thread(target=damage)
    with open_site(lading, newer) as site, site.kubelet.pod("busy", annotations={GPU: "0,1"}) as pod:
        thread.start()
        try:
            for number in range(20):
                container = _created(pod, f"c{number}")
                container.start()
                assert site.see(container).gpus == (site.gpu(0), site.gpu(1)) if number % 5 == 0 else True
                container.remove()
        finally:
            end.set()
            thread.join()


def _created(pod: Pod, name: str) -> Container:
    try:
        return pod.create_container(name)
    except CriError as e:
        raise AssertionError(e.details) from e


def test_the_specs_of_an_earlier_configuration_are_removed(newer: PrivateContainerd, start_lading: StartLading) -> None:
    lading = start(start_lading, newer)
    assert spec_file(newer).exists()
    (newer.layout.cdi / "nvidia.json").write_text("{}")
    lading.reconfigure_hooks(gpu_mode="devices", driver_root="")
    eventually(lambda: _started(lading, 3))
    assert [path.name for path in newer.layout.cdi.iterdir()] == ["nvidia.json"]
