"""Test where kubelet's endpoint is configured, in a folder like a node's; whether pods start without the proxy, and which
commands correct that."""

import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.kubelet.kubelet import KubeletReading, Route, Setting, decide_endpoint, same_socket
from doctor.kubelet.read_kubelet import read_kubelet
from lading.checks.model import Finding, Verdict
from lading.errors import ConfigError
from tests.fakes import systemctl
from tests.unit.doctor.verdicts import only

OURS, RUNTIMES = "unix:///run/lading/cri.sock", "unix:///run/containerd/containerd.sock"
TO_US, TO_RUNTIME = f"--container-runtime-endpoint={OURS}", f"--container-runtime-endpoint={RUNTIMES}"

UNIT = "usr/lib/systemd/system/kubelet.service"
KUBEADM = "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"
LADING = "etc/systemd/system/kubelet.service.d/10-lading.conf"
FLAGS, DEFAULT, CONFIG = "var/lib/kubelet/kubeadm-flags.env", "etc/default/kubelet", "var/lib/kubelet/config.yaml"

RESTART = "systemctl daemon-reload && systemctl restart kubelet"

# The files of kubeadm's package.
PACKAGE = {
    UNIT: "[Service]\nExecStart=/usr/bin/kubelet\n",
    KUBEADM: (
        '[Service]\nEnvironment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"\n'
        "EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\nEnvironmentFile=-/etc/default/kubelet\nExecStart=\n"
        "ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS\n"
    ),
    FLAGS: f'KUBELET_KUBEADM_ARGS="{TO_RUNTIME} --v=2"\n',
    CONFIG: "kind: KubeletConfiguration\ncgroupDriver: systemd\n",
}
DROP_IN = {LADING: f'[Service]\nEnvironment="KUBELET_EXTRA_ARGS={TO_US}"\n'}
AS_PLANNED = ("/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml")


def node(root: Path, files: dict[str, str], argv: Iterable[str] = ()) -> KubeletReading:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "proc/812").mkdir(parents=True)
    (root / "proc/812/cmdline").write_text("".join(f"{word}\0" for word in argv))
    return read_again(root)


def read_again(root: Path) -> KubeletReading:
    return read_kubelet(root, systemctl.show_all(root, {}))


@pytest.mark.parametrize(
    ("files", "argv", "endpoint", "source"),
    [
        ({}, ["kubelet"], RUNTIMES, "kubelet's default"),
        ({}, ["kubelet", TO_US], OURS, "its command line"),
        ({}, ["kubelet", "--container-runtime-endpoint", OURS], OURS, "its command line"),
        ({}, ["kubelet", TO_US, TO_RUNTIME], RUNTIMES, "its command line"),  # the last one
        (
            {"d/9.conf": f"containerRuntimeEndpoint: {OURS}"},
            ["kubelet", "--config=", "--config-dir="],
            RUNTIMES,
            "kubelet's default",
        ),
        ({"k.yaml": f"containerRuntimeEndpoint: {OURS}"}, ["kubelet", "--config=/k.yaml"], OURS, "/k.yaml"),
        (
            {"k.yaml": f"containerRuntimeEndpoint: {OURS}"},
            ["kubelet", "--config=/k.yaml", TO_RUNTIME],
            RUNTIMES,
            "its command line",
        ),
        (
            {"k.yaml": f"containerRuntimeEndpoint: {RUNTIMES}", "d/9.conf": f"containerRuntimeEndpoint: {OURS}"},
            ["kubelet", "--config=/k.yaml", "--config-dir=/d"],
            OURS,
            "/d/9.conf",
        ),
        (PACKAGE | DROP_IN, [*AS_PLANNED, TO_RUNTIME, "--v=2", TO_US], OURS, f"/{LADING}"),
        (PACKAGE, [*AS_PLANNED, TO_RUNTIME, "--v=2"], RUNTIMES, f"/{FLAGS}"),
    ],
)
def test_where_the_endpoint_is_from(tmp_path: Path, files: dict[str, str], argv: list[str], endpoint: str, source: str) -> None:
    result = node(tmp_path, files, argv).running
    assert result is not None
    assert (result.endpoint.value, result.endpoint.source) == (endpoint, source)


@pytest.mark.parametrize(
    ("files", "argv", "state", "mend"),
    [
        ({}, [], Verdict.SKIPPED, ""),
        (PACKAGE | DROP_IN, [*AS_PLANNED, TO_RUNTIME, TO_US], Verdict.OK, ""),
        ({}, ["kubelet", TO_US], Verdict.OK, ""),
        # It was not restarted.
        (PACKAGE | DROP_IN, [*AS_PLANNED, TO_RUNTIME], Verdict.FAILED, "systemctl restart kubelet"),
        # There is no drop-in.
        (PACKAGE, [*AS_PLANNED, TO_RUNTIME], Verdict.FAILED, TO_US),
        # An environment file wins over the drop-in, with an endpoint or without one.
        (PACKAGE | DROP_IN | {DEFAULT: "KUBELET_EXTRA_ARGS=--v=3\n"}, [*AS_PLANNED, TO_RUNTIME], Verdict.FAILED, f"/{DEFAULT}"),
        (
            PACKAGE | DROP_IN | {DEFAULT: f"KUBELET_EXTRA_ARGS={TO_RUNTIME}\n"},
            ["kubelet", TO_RUNTIME],
            Verdict.FAILED,
            f"/{DEFAULT}",
        ),
        # It runs well, and will not after its next start.
        (PACKAGE, [*AS_PLANNED, TO_RUNTIME, TO_US], Verdict.WARNING, f"/{LADING}"),
        # A unit without that variable has its flag changed.
        ({UNIT: f"ExecStart=kubelet {TO_RUNTIME}"}, ["kubelet", TO_RUNTIME], Verdict.FAILED, f"{TO_US} in /{UNIT}"),
        # It does not run.
        (PACKAGE, [], Verdict.FAILED, TO_US),
        (PACKAGE | DROP_IN, [], Verdict.OK, ""),
        # The configuration file of kubelet names the runtime.
        ({"k.yaml": f"containerRuntimeEndpoint: {RUNTIMES}"}, ["kubelet", "--config=/k.yaml"], Verdict.FAILED, "/k.yaml"),
        ({}, ["kubelet"], Verdict.FAILED, TO_US),
    ],
)
def test_past_the_proxy(tmp_path: Path, files: dict[str, str], argv: list[str], state: Verdict, mend: str) -> None:
    verdict = only(decide_endpoint(Route(kubelet=node(tmp_path, files, argv), proxy="/run/lading/cri.sock", runtime=RUNTIMES)))
    assert verdict.verdict is state, verdict
    assert mend in verdict.mend


@pytest.mark.parametrize(
    ("files", "argv", "states_found", "mend"),
    [
        (PACKAGE, [*AS_PLANNED, TO_RUNTIME], [Verdict.OK], ""),
        ({}, ["kubelet"], [Verdict.OK], ""),  # kubelet's default endpoint is the runtime's
        (PACKAGE | DROP_IN, [*AS_PLANNED, TO_RUNTIME], [Verdict.FAILED], "--container-runtime-endpoint=unix:///run/containerd"),
        (PACKAGE | DROP_IN, [*AS_PLANNED, TO_US], [Verdict.FAILED, Verdict.FAILED], f"/{LADING}"),
        ({UNIT: "ExecStart=kubelet --container-runtime-endpoint=unix:///x"}, [], [Verdict.FAILED], "runtime_endpoint in hooks"),
    ],
)
def test_past_the_runtime_where_there_is_no_proxy(
    tmp_path: Path, files: dict[str, str], argv: list[str], states_found: list[Verdict], mend: str
) -> None:
    kubelet = node(tmp_path, files, argv)
    result = [*decide_endpoint(Route(kubelet=kubelet, proxy="/run/lading/cri.sock", runtime=RUNTIMES, direct=True))]
    assert [one.verdict for one in result] == states_found, result
    assert mend in result[-1].mend


def test_a_unit_of_etc_stands_in_for_that_of_usr(tmp_path: Path) -> None:
    files = {UNIT: "ExecStart=kubelet --a", "etc/systemd/system/kubelet.service": f"ExecStart=kubelet {TO_US}"}
    planned = node(tmp_path, files).planned
    assert planned is not None
    assert planned.endpoint.source == "/etc/systemd/system/kubelet.service"


@pytest.mark.parametrize(("argv", "verdict"), [([], Verdict.SKIPPED), (["kubelet", TO_US], Verdict.OK)])
def test_without_systemd_what_cannot_be_known_is_reported(tmp_path: Path, argv: list[str], verdict: Verdict) -> None:
    """Check a node with unit files but without systemd: without the running kubelet's arguments, its endpoint is unknown."""
    node(tmp_path, PACKAGE, argv)
    finding = judged(read_kubelet(tmp_path, None))
    assert finding.verdict is verdict
    assert "systemd" in finding.what
    assert ("configz" in finding.mend) is (verdict is Verdict.SKIPPED)


def judged(reading: KubeletReading) -> Finding:
    return only(decide_endpoint(Route(kubelet=reading, proxy="/run/lading/cri.sock", runtime=RUNTIMES)))


@pytest.mark.parametrize(
    ("effective", "source", "verdict"), [(OURS, "its command line", Verdict.OK), (RUNTIMES, "its /configz", Verdict.FAILED)]
)
def test_kubelets_own_word_counts_more_than_files(tmp_path: Path, effective: str, source: str, verdict: Verdict) -> None:
    reading = node(tmp_path, {}, ["kubelet", TO_US])
    assert reading.running is not None
    running = replace(reading.running, configz={"containerRuntimeEndpoint": effective})
    assert running.endpoint == Setting(value=effective, source=source)
    assert judged(replace(reading, running=running)).verdict is verdict


def test_other_settings(tmp_path: Path) -> None:
    reading = node(tmp_path, PACKAGE, [*AS_PLANNED, "--hostname-override=N1"])
    assert reading.running is not None
    assert reading.running.cgroup_driver.value == "systemd"
    assert reading.command.node_name("vm") == "n1"
    assert node(tmp_path / "other", {}).command.node_name("VM ") == "vm"


def test_drop_ins_that_may_not_be_read_are_not_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    node(tmp_path, {"d/9.conf": f"containerRuntimeEndpoint: {OURS}"}, ["kubelet", "--config-dir=/d"])
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(PermissionError):
        read_again(tmp_path)


def test_a_configuration_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"k\.yaml"):
        node(tmp_path, {"k.yaml": "a: [b"}, ["kubelet", "--config=/k.yaml"])


def test_files_that_systemd_has_not_read_again(tmp_path: Path) -> None:
    reading = node(tmp_path, PACKAGE | DROP_IN, [*AS_PLANNED, TO_RUNTIME, TO_US])
    stale = replace(reading, unit=replace(reading.unit, is_stale=True))
    well, warned = decide_endpoint(Route(kubelet=stale, proxy="/run/lading/cri.sock", runtime=RUNTIMES))
    assert (well.verdict, warned.verdict) == (Verdict.OK, Verdict.WARNING)
    assert warned.mend.startswith("systemctl daemon-reload")


def test_one_socket_has_several_names() -> None:
    assert same_socket("unix:///var/run/x.sock", "/run/x.sock")
    assert not same_socket("/run/x.sock", "/run/y.sock")


def test_its_mend_mends(tmp_path: Path) -> None:
    """Run the suggested commands in a shell, and check that the next kubelet talks to the proxy."""
    route = Route(kubelet=node(tmp_path, PACKAGE, [*AS_PLANNED, TO_RUNTIME]), proxy="/run/lading/cri.sock", runtime=RUNTIMES)
    commands = only(decide_endpoint(route)).mend.replace("/etc/", f"{tmp_path}/etc/").removesuffix(f"; {RESTART}")
    subprocess.run(["sh", "-c", commands], check=True)
    planned = read_again(tmp_path).planned
    assert planned is not None
    assert (planned.endpoint.value, planned.endpoint.source) == (OURS, f"/{LADING}")
