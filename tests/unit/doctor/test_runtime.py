import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.kubelet.distribution import Distribution, Service
from doctor.kubelet.kubelet import CGROUP_DRIVER, Command, KubeletReading, Setting
from doctor.kubelet.unit import Word
from doctor.processes import Process
from doctor.read import read_runtime
from doctor.runtime import CgroupDrivers, RuntimeReading, decide_cgroup_driver, decide_runtime
from lading.checks.model import Verdict
from lading.errors import HostError
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.unit.doctor.verdicts import only, states


def runtime(
    version: str = "1.7.28",
    *,
    name: str = "containerd",
    ready: bool = True,
    deprecated: bool = False,
    systemd: bool | None = True,
) -> RuntimeReading:
    conditions = [
        cri.RuntimeCondition(type="RuntimeReady", status=True),
        cri.RuntimeCondition(type="NetworkReady", status=ready),
        cri.RuntimeCondition(type="ContainerdHasNoDeprecationWarnings", status=not deprecated),
    ]
    options = None if systemd is None else {"SystemdCgroup": systemd}
    config = {"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": options}}}}
    status = cri.StatusResponse(status=cri.RuntimeStatus(conditions=conditions), info={"config": json.dumps(config)})
    return RuntimeReading(
        endpoint=Path("/run/x.sock"), version=cri.VersionResponse(runtime_name=name, runtime_version=version), status=status
    )


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (runtime(), [Verdict.OK]),
        (runtime("1.6.20~ds1"), [Verdict.OK]),
        (runtime("v2.1.9"), [Verdict.OK]),
        (runtime("1.5.0"), [Verdict.FAILED]),
        (runtime("1.31.0", name="cri-o"), [Verdict.WARNING, Verdict.OK]),
        (runtime(ready=False), [Verdict.FAILED]),
        (runtime("v2.3.4", deprecated=True), [Verdict.WARNING, Verdict.OK]),
    ],
)
def test_versions_and_conditions(reading: RuntimeReading, expected: list[Verdict]) -> None:
    assert states(decide_runtime(reading)) == expected


def test_no_one_listens(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"none\.sock"):
        asyncio.run(read_runtime(tmp_path / "none.sock"))


def test_a_runtime_that_listens_elsewhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        monkeypatch.setattr("doctor.read.RUNTIMES", (str(tmp_path / "none.sock"), str(tmp_path / "s")))
        with pytest.raises(HostError) as e:
            asyncio.run(read_runtime(tmp_path / "none.sock"))
    assert f'runtime_endpoint = "{tmp_path / "s"}"' in e.value.hint


def kubelet(driver: str) -> KubeletReading:
    command = Command(config={"cgroupDriver": Setting(value=driver, source="/k.yaml")})
    return KubeletReading(process=Process(pid=1), running=command)


@pytest.mark.parametrize(
    ("mine", "reading", "state"),
    [
        ("systemd", runtime(), Verdict.OK),
        ("cgroupfs", runtime(systemd=False), Verdict.OK),
        ("cgroupfs", runtime(), Verdict.FAILED),
        ("systemd", runtime(systemd=False), Verdict.FAILED),
        ("cgroupfs", runtime("2.1.9"), Verdict.WARNING),  # a newer kubelet asks the runtime
        ("systemd", runtime(systemd=None), Verdict.SKIPPED),
        ("systemd", replace(runtime(), status=cri.StatusResponse(info={"config": "no JSON"})), Verdict.SKIPPED),
        ("systemd", replace(runtime(), status=cri.StatusResponse(info={"config": "[]"})), Verdict.SKIPPED),
    ],
)
def test_cgroup_drivers(mine: str, reading: RuntimeReading, state: Verdict) -> None:
    assert only(decide_cgroup_driver(CgroupDrivers(kubelet=kubelet(mine), runtime=reading))).verdict is state


FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
K3S = Service(distribution=Distribution.K3S, unit="k3s-agent")
OF_K3S = Setting(value="cgroupfs", source="/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf")


@pytest.mark.parametrize(
    ("reading", "mends"),
    [
        (kubelet("cgroupfs"), ("cgroupDriver: systemd in /k.yaml", "restart kubelet")),
        (KubeletReading(process=Process(pid=1), running=Command()), ("cgroupDriver: systemd in /var/lib/kubelet/config.yaml",)),
        (
            replace(kubelet("systemd"), running=Command(words=(Word("--cgroup-driver=cgroupfs", FLAGS),))),
            (f"--cgroup-driver=systemd in {FLAGS}", "daemon-reload"),
        ),
        (
            KubeletReading(process=Process(pid=1), running=Command(config={CGROUP_DRIVER: OF_K3S}), service=K3S),
            ("kubelet-arg: cgroup-driver=systemd in /etc/rancher/k3s/config.yaml", "restart k3s-agent"),
        ),
    ],
)
def test_the_driver_is_set_where_it_counts(reading: KubeletReading, mends: tuple[str, ...]) -> None:
    verdict = only(decide_cgroup_driver(CgroupDrivers(kubelet=reading, runtime=runtime())))
    assert verdict.verdict is Verdict.FAILED
    for mend in mends:
        assert mend in verdict.mend


def test_no_kubelet_no_driver() -> None:
    assert states(decide_cgroup_driver(CgroupDrivers(kubelet=KubeletReading(), runtime=runtime()))) == [Verdict.SKIPPED]
