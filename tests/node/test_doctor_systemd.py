"""Both doctors where a real systemd runs the daemons and a kubelet: units, sockets that systemd holds, and what kubelet's unit
will start, as systemd itself starts it."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from simnode import leftovers
from simnode.control_plane import free_port
from simnode.daemons import render_flat_toml
from tests.fakes import private_systemd
from tests.fakes.counting_runtime import CountingRuntime
from tests.fakes.needs import need
from tests.fakes.private_systemd import UNITS, PrivateSystemd
from tests.node.site import eventually

pytestmark = pytest.mark.node

HOOKS, PROXY = "lading-hooks", "lading-runtimeproxy"
OURS = [f"{daemon}.{kind}" for daemon in (HOOKS, PROXY) for kind in ("socket", "service")]
DROP_IN = "/etc/systemd/system/kubelet.service.d/10-lading.conf"
DEFAULT = "/etc/default/kubelet"
HIDDEN = "/etc/hidden"  # from the hook server, by a drop-in


@pytest.fixture(scope="module")
def systemd() -> Iterator[PrivateSystemd]:
    without = private_systemd.missing()
    need(not without, without)
    folder = Path(tempfile.mkdtemp(prefix="lading-"))
    hides = f"[Service]\nInaccessiblePaths=-{HIDDEN}\n"
    systemd = PrivateSystemd(folder, wanted=(*OURS, "kubelet.service"), drop_ins={f"{HOOKS}.service": hides})
    (systemd.etc.parent / "hidden").mkdir()
    (folder / "kubelet").symlink_to(Path(sys.executable).resolve())  # what is seen of it is its command line
    stays = f"ExecStart={folder}/kubelet -c 'import time; time.sleep(3600)' $KUBELET_EXTRA_ARGS"
    (systemd.units / "kubelet.service").write_text(f"[Service]\nEnvironmentFile=-{DEFAULT}\n{stays}\n")
    shutil.copytree(UNITS / "kubelet.service.d", systemd.units / "kubelet.service.d")
    for name, settings in (("hooks", {"assignments": ["manual"]}), ("runtimeproxy", {})):
        text = render_flat_toml({**settings, "metrics": f"127.0.0.1:{free_port()}"})
        (systemd.etc / f"{name}.toml").write_text(text)
    with CountingRuntime(systemd.containerd / "containerd.sock") as runtime:
        runtime.path.chmod(0o660)  # as containerd's
        with systemd:
            yield systemd
    leftovers.remove_tree(folder)


def found(systemd: PrivateSystemd, daemon: str, check: str, *argv: str) -> list[tuple[str, str]]:
    answer = systemd.run(f"/opt/lading/bin/{daemon}", "doctor", "-o", "json", "--only", check, *argv, check=False)
    return [(finding["state"], finding["mend"] or finding["what"]) for finding in json.loads(answer)["findings"]]


def states(systemd: PrivateSystemd, daemon: str, check: str) -> list[str]:
    return [state for state, _ in found(systemd, daemon, check)]


@pytest.mark.parametrize("daemon", [HOOKS, PROXY])
def test_units_that_run_and_would_not_after_a_boot(systemd: PrivateSystemd, daemon: str) -> None:
    findings = found(systemd, daemon, "units")
    assert findings == [("warning", f"systemctl enable {daemon}.{kind}") for kind in ("socket", "service")]
    for _, mend in findings:
        systemd.run(*mend.split())
    assert states(systemd, daemon, "units") == ["ok"]


def test_units_that_do_not_run(systemd: PrivateSystemd) -> None:
    systemd.run("systemctl", "stop", f"{HOOKS}.service", f"{HOOKS}.socket")
    assert states(systemd, HOOKS, "units")[0] == "failed"
    assert states(systemd, HOOKS, "socket") == ["failed"]
    systemd.run("systemctl", "restart", f"{HOOKS}.socket", f"{HOOKS}.service")  # the socket's mend
    assert states(systemd, HOOKS, "socket") == ["ok"]


@pytest.mark.parametrize(("daemon", "holder"), [(HOOKS, HOOKS), (PROXY, "systemd (pid 1)")])
def test_a_socket_that_systemd_made(systemd: PrivateSystemd, daemon: str, holder: str) -> None:
    """asyncio calls listen() on it once more, and the kernel names who did so last."""
    ((state, what),) = found(systemd, daemon, "socket")
    assert state == "ok"
    assert holder in what


def test_a_registration_that_was_never_written(systemd: PrivateSystemd) -> None:
    assert states(systemd, PROXY, "hooks-dir") == ["failed"]
    ((state, mend),) = found(systemd, HOOKS, "registration")
    assert state == "failed"
    systemd.run("sh", "-c", f"PATH=/opt/lading/bin:$PATH; {mend}")
    assert states(systemd, HOOKS, "registration") == ["ok"]
    assert states(systemd, PROXY, "hooks-dir") == states(systemd, PROXY, "hooks") == ["ok"]


def test_what_kubelets_unit_will_start_is_what_systemd_starts(systemd: PrivateSystemd) -> None:
    ((state, what),) = found(systemd, PROXY, "kubelet-endpoint")
    assert state == "ok"
    assert DROP_IN in what
    systemd.run("sh", "-c", f"mkdir -p /etc/default; echo KUBELET_EXTRA_ARGS=--v=3 > {DEFAULT}")
    ((state, mend),) = found(systemd, PROXY, "kubelet-endpoint")  # it goes on as it was started
    assert state == "warning"
    assert DEFAULT in mend
    systemd.run("systemctl", "restart", "kubelet")
    eventually(lambda: _bypass(systemd))
    systemd.run("rm", DEFAULT)
    ((state, mend),) = found(systemd, HOOKS, "kubelet-endpoint")
    assert state == "failed"
    systemd.run("sh", "-c", mend)  # nothing but a restart is missing
    assert states(systemd, HOOKS, "kubelet-endpoint") == ["ok"]


def _bypass(systemd: PrivateSystemd) -> None:
    ((state, mend),) = found(systemd, PROXY, "kubelet-endpoint")
    assert state == "failed"
    assert DEFAULT in mend


def test_a_daemon_that_is_started_over_and_over(systemd: PrivateSystemd) -> None:
    """systemd shows it as being started, most of the time."""
    config = systemd.etc / "hooks.toml"
    before = config.read_text()
    config.write_text(f"nod_name = 'n1'\n{before}")
    systemd.run("systemctl", "restart", "--no-block", f"{HOOKS}.service")
    eventually(lambda: _is_not_up(systemd))
    config.write_text(before)
    systemd.run("systemctl", "restart", f"{HOOKS}.service")
    assert "failed" not in states(systemd, HOOKS, "units")


def _is_not_up(systemd: PrivateSystemd) -> None:
    mends = [mend for state, mend in found(systemd, HOOKS, "units") if state == "failed"]
    assert [mend for mend in mends if "--check-config" in mend]


# ---- what the units keep from the daemons


def write_kubeconfig(systemd: PrivateSystemd, server: str) -> str:
    """Return its path, which this test's command sees and the hook server does not."""
    user = {"name": "u", "user": {"token": "t"}}
    context = {"name": "c", "context": {"cluster": "k", "user": "u"}}
    cluster = {"name": "k", "cluster": {"server": server}}
    content = {"current-context": "c", "contexts": [context], "clusters": [cluster], "users": [user]}
    (systemd.etc.parent / "hidden/kubeconfig").write_text(json.dumps(content))
    return f"{HIDDEN}/kubeconfig"


@pytest.mark.parametrize("runs", [True, False])
def test_a_kubeconfig_that_only_this_command_sees(systemd: PrivateSystemd, runs: bool) -> None:
    """Through the daemon's root where it runs; else by its unit."""
    path = write_kubeconfig(systemd, "http://127.0.0.1:9")
    systemd.run("systemctl", "start" if runs else "stop", f"{HOOKS}.service")
    report = ["--report", "--node-name", "n1", "--kubeconfig", path]
    taken_out = f"systemctl cat {HOOKS}.service shows the file with this line"
    assert [mend for _, mend in found(systemd, HOOKS, "api", *report) if taken_out in mend]
    systemd.run("cp", path, "/etc/lading/kubeconfig")
    report[-1] = "/etc/lading/kubeconfig"
    assert not [mend for _, mend in found(systemd, HOOKS, "api", *report) if taken_out in mend]
    systemd.run("systemctl", "start", f"{HOOKS}.service")


def test_a_folder_that_the_daemon_may_not_write(systemd: PrivateSystemd) -> None:
    mends = [mend for state, mend in found(systemd, HOOKS, "disk", "--state-dir", "/etc/lading") if state == "failed"]
    assert [mend for mend in mends if "ReadWritePaths=/etc/lading" in mend]
    assert states(systemd, HOOKS, "disk") == ["ok"]


def test_an_api_server_that_the_unit_does_not_let_the_daemon_reach(systemd: PrivateSystemd) -> None:
    path = write_kubeconfig(systemd, "https://192.0.2.10:6443")
    report = ["--report", "--node-name", "n1", "--kubeconfig", path, "--deadline", "1"]
    assert [mend for _, mend in found(systemd, HOOKS, "api", *report) if "IPAddressAllow=192.0.2.10" in mend]
