"""What each check says that the daemon needs, by settings and kubeconfig."""

from pathlib import Path

import pytest
import yaml

from hooks.daemon.settings import Settings
from hooks.doctor.checks import CHECKS
from hooks.doctor.needs import (
    Kubeconfig,
    api_needs,
    cdi_needs,
    config_needs,
    driver_file_needs,
    driver_needs,
    find_elsewhere,
    key_needs,
    runtime_needs,
    socket_needs,
    state_needs,
)
from hooks.doctor.read import read_kubeconfig, read_server
from hooks.vendors.nvidia.inject import GpuMode
from lading.doctor.sandbox import Needed, Use
from runtimeproxy.doctor.checks import CHECKS as PROXY

KUBECONFIG = """
current-context: here
contexts:
- {name: there, context: {cluster: x, user: x}}
- {name: here, context: {cluster: c, user: u}}
clusters:
- {name: x, cluster: {server: "https://x"}}
- {name: c, cluster: {server: "https://192.0.2.10:6443", certificate-authority: pki/ca.crt}}
users:
- {name: u, user: {client-certificate: /pki/a.crt, client-key: /pki/a.key, tokenFile: /t, exec: {command: ./bin/plugin}}}
"""


def paths(needed: tuple[Needed, ...]) -> list[tuple[str, Use]]:
    return [(str(one.path), one.use) for one in needed]


def test_every_check_that_reads_for_the_daemon_asks_what_it_sees() -> None:
    asked = {check.name for check in CHECKS if check.inside}
    assert asked == {"config", "keys", "socket", "disk", "runtime", "driver", "driver-files", "cdi-specs", "api"}
    assert {check.name for check in PROXY if check.inside} == {"config", "socket", "runtime", "hooks-dir", "hooks"}


def test_of_settings() -> None:
    settings = Settings(
        keys={"k1": "/root/k1.pem"},
        state_dir="/data",
        driver_root="/run/driver",
        nvml_library="/opt/lib/ml.so",
        listen="/run/x/s",
    )
    assert paths(key_needs(settings)) == [("/root/k1.pem", Use.READ)]
    assert "/etc/lading/keys/k1.pem" in key_needs(settings)[0].elsewhere
    assert paths(state_needs(settings)) == [("/data", Use.WRITE)]
    assert paths(socket_needs(settings)) == [("/run/x", Use.WRITE)]
    assert paths(runtime_needs(settings)) == [("/run/containerd/containerd.sock", Use.CONNECT)]
    assert paths(driver_needs(settings)) == [("/opt/lib/ml.so", Use.READ)]
    assert paths(driver_file_needs(settings)) == [("/run/driver", Use.LIST)]
    assert cdi_needs(settings) == ()


def test_of_what_is_not_used() -> None:
    assert driver_needs(Settings()) == driver_file_needs(Settings()) == api_needs(Settings(kubeconfig="/k"), Kubeconfig()) == ()
    assert driver_needs(Settings(nvml_library="libnvidia-ml.so.1")) == ()
    assert paths(cdi_needs(Settings(gpu_mode=GpuMode.CDI))) == [("/etc/cdi", Use.LIST), ("/var/run/cdi", Use.LIST)]


def test_of_the_configuration() -> None:
    assert paths(config_needs(Settings(nvswitch_partitions="h100"), Path("/c"))) == [("/c", Use.READ)]
    assert paths(config_needs(Settings(nvswitch_partitions="/table"), Path("/c")))[1:] == [("/table", Use.READ)]


def test_of_a_kubeconfig(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    found = read_kubeconfig(path)
    assert found.server == "https://192.0.2.10:6443"
    settings = Settings(report=True, node_name="n1", kubeconfig=str(path))
    assert paths(api_needs(settings, found)) == [
        (str(path), Use.READ),
        (str(tmp_path / "pki/ca.crt"), Use.READ),
        ("/pki/a.crt", Use.READ),
        ("/pki/a.key", Use.READ),
        ("/t", Use.READ),
        (str(tmp_path / "bin/plugin"), Use.READ),
    ]
    assert "0755" in api_needs(settings, found)[-1].elsewhere
    assert all(str(path) in one.what for one in api_needs(settings, found)[1:])


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [b", "current-context: {}", "current-context: c\ncontexts: [1, {name: c, context: 7}]"]
)
def test_of_one_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    assert read_kubeconfig(path) == Kubeconfig()
    assert read_kubeconfig(tmp_path / "none") == Kubeconfig()


def test_a_proxy_is_what_is_talked_to() -> None:
    content = yaml.safe_load(KUBECONFIG)
    content["clusters"][1]["cluster"]["proxy-url"] = "http://192.0.2.1:3128"
    assert find_elsewhere(content, Path("/")).server == "http://192.0.2.1:3128"


def test_where_a_server_is() -> None:
    server = read_server("https://192.0.2.10:6443")
    assert (server.host, list(map(str, server.addresses)), server.resolvers) == ("192.0.2.10", ["192.0.2.10"], ())
    assert read_server("").addresses == read_server("https://[").addresses == ()
    assert read_server("https://localhost").resolvers == ()
