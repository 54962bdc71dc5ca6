"""Test deploy/node: its settings are valid, probes and folders are those of the settings, and no container has more rights than
needed."""

import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hooks.daemon.handler_command import handler_program
from hooks.daemon.settings import Settings
from lading.driverfiles import DRIVER_CONTAINER
from lading.health import parse_address
from lading.selinux import SERVER_TYPE
from lading.settings import convert
from lading.sockets import parse_endpoint
from shares.settings import Settings as SharesSettings

NODE: Final = Path(__file__).parents[3] / "deploy/node"
NAMES: Final = ("node", "guard", "remove")


def settings() -> Settings:
    values = tomllib.loads((NODE / "hooks.toml").read_text())
    return convert(Settings, values, {}, "hooks.toml")


def shares() -> SharesSettings:
    return convert(SharesSettings, tomllib.loads((NODE / "shares.toml").read_text()), {}, "shares.toml")


def daemonset(name: str) -> Any:
    return yaml.safe_load((NODE / f"{name}.yaml").read_text())


def spec(name: str) -> Any:
    return daemonset(name)["spec"]["template"]["spec"]


def containers(name: str) -> dict[str, Any]:
    return {one["name"]: one for one in [*spec(name).get("initContainers", []), *spec(name)["containers"]]}


def seen(name: str, container: str) -> dict[str, str]:
    """Return the host's folders that a container has, by their paths in it."""
    paths = {one["name"]: one.get("hostPath", {}).get("path", "") for one in spec(name)["volumes"]}
    return {mount["mountPath"]: paths[mount["name"]] for mount in containers(name)[container]["volumeMounts"]}


def test_selinux_lets_containers_connect_to_the_share_server() -> None:
    for name in ("shares", "hooks"):
        assert containers("node")[name]["securityContext"]["seLinuxOptions"] == {"type": SERVER_TYPE, "level": "s0"}


def test_mounted_folders_are_those_of_the_settings() -> None:
    hooks, result = settings(), seen("node", "hooks")
    for path in (hooks.nri_socket, hooks.runtime_endpoint, hooks.listen):
        assert result[str(parse_endpoint(path).parent)] == str(parse_endpoint(path).parent)
    assert result[hooks.state_dir] == hooks.state_dir
    assert result[hooks.driver_mount] == seen("node", "shares")[shares().driver_mount] == "/"
    assert result[f"/{DRIVER_CONTAINER}".rpartition("/")[0]] == f"/{DRIVER_CONTAINER}".rpartition("/")[0]
    libraries = ["copy-libraries", "--host-root", hooks.driver_mount, hooks.share_libraries]
    assert containers("node")["libraries"]["args"] == libraries
    assert seen("node", "libraries")[hooks.driver_mount] == "/"
    assert Path("/var/lib/lading") in handler_program(hooks).parents
    assert "/var/lib/lading" in seen("node", "runtime-handler")
    socket = str(parse_endpoint(hooks.runtime_endpoint).parent)
    assert seen("remove", "remove")[socket] == socket
    assert seen("guard", "guard").keys() <= result.keys()
    assert [Path(path).parent for path in hooks.keys.values()] == [Path("/etc/lading")]


def test_probes_ask_at_the_addresses_of_the_settings() -> None:
    for container, address in (("hooks", settings().metrics), ("shares", SharesSettings().metrics)):
        host, port = parse_address(address) or ("", 0)
        probes = [one["httpGet"] for key, one in containers("node")[container].items() if key.endswith("Probe")]
        assert probes
        assert {(one["host"], one["port"]) for one in probes} == {(host, port)}
    assert containers("node")["hooks"]["readinessProbe"]["httpGet"]["path"] == "/readyz"


@pytest.mark.parametrize("name", NAMES)
def test_containers_have_no_capabilities_and_no_token_unless_they_need_them(name: str) -> None:
    for container in containers(name).values():
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        if "privileged" not in security:
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["allowPrivilegeEscalation"] is False
    assert spec(name)["automountServiceAccountToken"] is False
    privileged = [one for one, container in containers(name).items() if container["securityContext"].get("privileged")]
    assert privileged == (["hooks", "shares"] if name == "node" else [])


def test_an_update_runs_one_hooks_pod_at_a_time_and_always_a_guard() -> None:
    node, guard = (daemonset(name)["spec"]["updateStrategy"]["rollingUpdate"] for name in ("node", "guard"))
    assert (node["maxSurge"], guard["maxUnavailable"]) == (0, 0)
    assert guard["maxSurge"] == 1


def test_nothing_runs_on_a_node_that_was_not_chosen() -> None:
    labels = [spec(name)["nodeSelector"]["lading.dev/front-end"] for name in NAMES]
    assert labels == ["nri", "nri", "removed"]
