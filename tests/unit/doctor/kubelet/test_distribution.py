"""Test kubelet of K3s and RKE2, in a folder like a node's: where its endpoint is configured, and which commands put the proxy
in between."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.kubelet.distribution import CONTAINERD, Option, flags, kubelet_words, merge
from doctor.kubelet.kubelet import KubeletReading, Route, decide_endpoint
from doctor.kubelet.read_kubelet import read_kubelet
from doctor.kubelet.unit import Word
from doctor.runtime import CgroupDrivers, RuntimeReading, decide_cgroup_driver
from lading.checks.model import Finding, Verdict
from lading.errors import ConfigError
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.fakes import systemctl
from tests.unit.doctor.verdicts import only

OURS = "unix:///run/lading/cri.sock"
ARG = f"container-runtime-endpoint={OURS}"
CONFIG, DROP_IN = "etc/rancher/k3s/config.yaml", "etc/rancher/k3s/config.yaml.d/99-lading.yaml"
RKE2 = "etc/rancher/rke2/config.yaml"
UNIT, AGENT = "etc/systemd/system/k3s.service", "etc/systemd/system/k3s-agent.service"
RKE2_UNIT = "usr/local/lib/systemd/system/rke2-server.service"
KUBELETS = "var/lib/rancher/k3s/agent/etc/kubelet.conf.d"
WRITTEN = f"{KUBELETS}/00-k3s-defaults.conf"
DEFAULT = (f"unix://{CONTAINERD}", "k3s's default")

INSTALLED = {UNIT: "[Service]\nEnvironmentFile=-/etc/default/%N\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\n"}
SERVER = ("/usr/local/bin/k3s server", "", "")  # K3s overwrites its command line so
RKE2_SERVER = ("/usr/local/bin/rke2 server",)
RKE2_KUBELET = ("/var/lib/rancher/rke2/bin/kubelet", "--node-labels=")


def node(root: Path, files: dict[str, str], *processes: Sequence[str]) -> KubeletReading:
    """Write the files, and a process for each command line; a K3s or RKE2 without a unit in `files` gets its usual one."""
    pids = {}
    for pid, argv in enumerate(processes, start=100):
        (root / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
        (root / f"proc/{pid}/cmdline").write_text("".join(f"{word}\0" for word in argv))
        for program, unit in (("k3s", UNIT), ("rke2", RKE2_UNIT)):
            if Path(" ".join(argv).split()[0]).name == program:
                units = [Path(name).name for name in files if name.endswith(".service")]
                files = files if units else files | {unit: f"ExecStart=/usr/local/bin/{' '.join(argv)}"}
                pids[units[0] if units else Path(unit).name] = pid
    (root / "proc").mkdir(exist_ok=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return read_again(root, pids)


def read_again(root: Path, pids: Mapping[str, int], *, ago_s: float = -60) -> KubeletReading:
    """Read the node with units that were started so many seconds ago, by default after all files were written."""
    return read_kubelet(root, systemctl.show_all(root, pids, started_s=time.monotonic() - ago_s))


def judged(reading: KubeletReading, *, runtime: str = CONTAINERD) -> Finding:
    return only(decide_endpoint(Route(kubelet=reading, proxy="/run/lading/cri.sock", runtime=runtime)))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (INSTALLED, DEFAULT),
        (INSTALLED | {CONFIG: f"kubelet-arg:\n- v=2\n- {ARG}\n"}, (OURS, f"/{CONFIG}")),
        (INSTALLED | {CONFIG: f"kubelet-arg: {ARG}\n"}, (OURS, f"/{CONFIG}")),
        (INSTALLED | {CONFIG: "kubelet-arg: [v=2]", DROP_IN: f"kubelet-arg+:\n- {ARG}\n"}, (OURS, f"/{DROP_IN}")),
        (INSTALLED | {CONFIG: f"kubelet-arg: [{ARG}]", DROP_IN: "kubelet-arg: [v=2]"}, DEFAULT),
        (INSTALLED | {DROP_IN.replace(".yaml", ".txt"): f"kubelet-arg: [{ARG}]"}, DEFAULT),
        (INSTALLED | {CONFIG: "container-runtime-endpoint: /run/c.sock"}, ("/run/c.sock", f"/{CONFIG}")),
        (INSTALLED | {CONFIG: f"container-runtime-endpoint: /run/c.sock\nkubelet-arg: [{ARG}]"}, (OURS, f"/{CONFIG}")),
        (INSTALLED | {CONFIG: "docker: true"}, ("unix:///run/k3s/cri-dockerd/cri-dockerd.sock", f"/{CONFIG}")),
        ({UNIT: f"ExecStart=k3s server --docker --kubelet-arg {ARG}"}, (OURS, f"/{UNIT}")),
        ({UNIT: "ExecStart=k3s server -c /c.yaml", "c.yaml": f"kubelet-arg: {ARG}"}, (OURS, "/c.yaml")),
        (INSTALLED | {"etc/default/k3s": "K3S_CONFIG_FILE=/c.yaml\n", "c.yaml": f"kubelet-arg: {ARG}"}, (OURS, "/c.yaml")),
        # The file that K3s writes for kubelet at its start is no setting; a file that a person puts beside it is one.
        (INSTALLED | {WRITTEN: "containerRuntimeEndpoint: unix:///x"}, DEFAULT),
        (
            INSTALLED | {WRITTEN: "a: b", f"{KUBELETS}/50-x.conf": f"containerRuntimeEndpoint: {OURS}"},
            (OURS, f"/{KUBELETS}/50-x.conf"),
        ),
    ],
)
def test_where_the_endpoint_is_from(tmp_path: Path, files: dict[str, str], expected: tuple[str, str]) -> None:
    result = node(tmp_path, files, SERVER).running
    assert result is not None
    assert (result.endpoint.value, result.endpoint.source) == expected


CHILD = (*RKE2_KUBELET, f"--{ARG}")


@pytest.mark.parametrize(
    ("files", "processes", "state", "mend"),
    [
        (INSTALLED, [SERVER], Verdict.FAILED, "systemctl restart k3s"),
        (INSTALLED, [("/usr/local/bin/k3s", "server")], Verdict.FAILED, "systemctl restart k3s"),
        ({AGENT: "ExecStart=k3s agent"}, [("/usr/local/bin/k3s agent",)], Verdict.FAILED, "systemctl restart k3s-agent"),
        (INSTALLED | {CONFIG: f"kubelet-arg: [{ARG}]"}, [SERVER], Verdict.OK, ""),
        # Installed, and it does not run.
        (INSTALLED, [], Verdict.FAILED, "config.yaml.d/99-lading.yaml"),
        (INSTALLED | {CONFIG: f"kubelet-arg: [{ARG}]"}, [], Verdict.OK, ""),
        # Where the flag is given already, it is changed there.
        (
            INSTALLED | {CONFIG: "kubelet-arg: [container-runtime-endpoint=unix:///x]"},
            [SERVER],
            Verdict.FAILED,
            f"in /{CONFIG}",
        ),
        ({UNIT: "ExecStart=k3s server --kubelet-arg=container-runtime-endpoint=/x"}, [SERVER], Verdict.FAILED, "daemon-reload"),
        # RKE2: kubelet is a child, which shows its command line.
        ({RKE2_UNIT: "ExecStart=rke2 server"}, [RKE2_SERVER, RKE2_KUBELET], Verdict.FAILED, f"/{RKE2}.d/99-lading.yaml"),
        ({RKE2: f"kubelet-arg: {ARG}"}, [RKE2_SERVER, CHILD], Verdict.OK, ""),
        ({RKE2: f"kubelet-arg: {ARG}"}, [RKE2_SERVER, RKE2_KUBELET], Verdict.FAILED, "systemctl restart rke2-server"),
        ({}, [RKE2_SERVER, CHILD], Verdict.WARNING, "systemctl restart rke2-server"),
        ({RKE2_UNIT: "ExecStart=rke2 server"}, [RKE2_SERVER], Verdict.FAILED, "systemctl restart rke2-server"),
        # A kubelet of its own, beside a K3s in some container.
        (INSTALLED, [SERVER, ("/usr/bin/kubelet", f"--{ARG}")], Verdict.OK, ""),
        # Something else of K3s'.
        ({UNIT: "ExecStart=k3s kubectl get"}, [("/usr/local/bin/k3s", "kubectl", "get"), ("k3s",)], Verdict.SKIPPED, ""),
    ],
)
def test_past_the_proxy(
    tmp_path: Path, files: dict[str, str], processes: list[Sequence[str]], state: Verdict, mend: str
) -> None:
    verdict = judged(node(tmp_path, files, *processes))
    assert verdict.verdict is state, verdict
    assert mend in verdict.mend


@pytest.mark.parametrize("before", ["", "kubelet-arg:\n- v=2\n", "kubelet-arg: v=2\n"])
def test_its_mend_mends(tmp_path: Path, before: str) -> None:
    files = INSTALLED | ({CONFIG: before} if before else {})
    mend = judged(node(tmp_path, files, SERVER)).mend
    commands, _, restart = mend.replace("/etc/", f"{tmp_path}/etc/").rpartition("; ")
    assert restart == "systemctl restart k3s"
    subprocess.run(["sh", "-c", commands], check=True)
    result = read_again(tmp_path, {"k3s.service": 100})
    assert judged(result).verdict is Verdict.OK
    assert result.running is not None
    assert ("--v=2" in [word.text for word in result.running.words]) is bool(before)  # the mend keeps the earlier setting


def test_the_runtime_behind_the_proxy_is_the_distributions(tmp_path: Path) -> None:
    past = judged(node(tmp_path, INSTALLED, SERVER), runtime="/run/containerd/containerd.sock")
    assert past.mend.startswith(f'runtime_endpoint = "{CONTAINERD}"')
    proxied = node(tmp_path, {CONFIG: f"kubelet-arg: {ARG}"}, SERVER)
    assert judged(proxied).verdict is Verdict.OK
    elsewhere = judged(proxied, runtime="/run/containerd/containerd.sock")
    assert (elsewhere.verdict, CONTAINERD in elsewhere.mend) == (Verdict.FAILED, True)


def test_its_own_setting_turns_off_the_runtime_that_the_proxy_asks(tmp_path: Path) -> None:
    reading = node(tmp_path, INSTALLED | {CONFIG: f"container-runtime-endpoint: {OURS}"}, SERVER)
    verdict = judged(reading)
    assert verdict.verdict is Verdict.FAILED
    assert f"/{CONFIG}" in verdict.what
    assert judged(reading, runtime="/run/containerd/containerd.sock").verdict is Verdict.OK  # one of the machine's own


def test_a_setting_of_after_its_start_may_not_count_yet(tmp_path: Path) -> None:
    node(tmp_path, INSTALLED | {CONFIG: f"kubelet-arg: [{ARG}]"}, SERVER)
    reading = read_again(tmp_path, {"k3s.service": 100}, ago_s=100)
    assert reading.service is not None
    assert reading.service.changed in {f"/{CONFIG}", f"/{UNIT}"}
    verdict = judged(reading)
    assert (verdict.verdict, verdict.mend) == (Verdict.WARNING, "systemctl restart k3s")
    for name in (CONFIG, UNIT):
        os.utime(tmp_path / name, (time.time() - 200, time.time() - 200))
    assert judged(read_again(tmp_path, {"k3s.service": 100}, ago_s=100)).verdict is Verdict.OK


def test_kubelet_itself_knows_whether_a_later_setting_counts(tmp_path: Path) -> None:
    node(tmp_path, INSTALLED | {CONFIG: f"kubelet-arg: [{ARG}]"}, SERVER)
    reading = read_again(tmp_path, {"k3s.service": 100}, ago_s=100)
    assert reading.running is not None
    for endpoint, verdict in ((OURS, Verdict.OK), (f"unix://{CONTAINERD}", Verdict.FAILED)):
        running = replace(reading.running, configz={"containerRuntimeEndpoint": endpoint})
        result = judged(replace(reading, running=running))
        assert result.verdict is verdict
        assert result.mend == ("" if verdict is Verdict.OK else "systemctl restart k3s")


def test_a_unit_with_a_name_of_its_own(tmp_path: Path) -> None:
    files = {"etc/systemd/system/k3s-lab.service": "ExecStart=/usr/local/bin/k3s server"}
    assert "systemctl restart k3s-lab" in judged(node(tmp_path, files, SERVER)).mend


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({}, "vm"),
        ({CONFIG: "node-name: N1"}, "n1"),
        (INSTALLED | {"etc/default/k3s": "K3S_NODE_NAME=n2"}, "n2"),
        (INSTALLED | {"etc/default/k3s": "K3S_NODE_NAME=n2", CONFIG: "node-name: n3"}, "n3"),
        ({CONFIG: "node-name: n3\nkubelet-arg: hostname-override=n4"}, "n4"),
    ],
)
def test_the_nodes_name(tmp_path: Path, files: dict[str, str], name: str) -> None:
    assert node(tmp_path, files, SERVER).command.node_name("vm") == name


def test_the_cgroup_driver(tmp_path: Path) -> None:
    runtime = RuntimeReading(endpoint=Path(CONTAINERD), version=cri.VersionResponse(), status=cri.StatusResponse())
    unknown = node(tmp_path, INSTALLED, SERVER)
    verdict = only(decide_cgroup_driver(CgroupDrivers(kubelet=unknown, runtime=runtime)))
    assert verdict.verdict is Verdict.SKIPPED
    assert "k3s" in verdict.what
    kubelet = node(tmp_path, {WRITTEN: "cgroupDriver: systemd"}, SERVER)
    assert kubelet.running is not None
    assert kubelet.running.cgroup_driver.value == "systemd"


def test_a_configuration_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        node(tmp_path, {CONFIG: "a: [b"}, SERVER)


def test_files_are_merged() -> None:
    merged = merge([("/a", {"x": 1, "y": ["b"], "z": True}), ("/b", {"x": None, "y+": "c", "w+": ["d"]})])
    assert merged == (
        Option("x", "", "/b"),
        Option("y", "b", "/a"),
        Option("y", "c", "/b"),
        Option("z", "true", "/a"),
        Option("w", "d", "/b"),
    )


def test_flags_and_kubelets_words() -> None:
    message = ["k3s", "agent", "--kubelet-arg=v=2", "--docker", "-d", "/data", "--kubelet-arg", "x+=1"]
    given = flags([Word(text, "/u") for text in message])
    result = [(one.key, one.value) for one in given]
    assert result == [("kubelet-arg", "v=2"), ("docker", "true"), ("data-dir", "/data"), ("kubelet-arg", "x+=1")]
    assert [word.text for word in kubelet_words(given)] == ["--v=2", "--x=1"]
