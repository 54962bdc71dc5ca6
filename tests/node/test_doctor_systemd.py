"""Run the doctor where a real systemd runs the daemons and a kubelet: units, systemd's sockets, and kubelet's next start."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.kubelet.unit import PROPERTIES, parse_units
from simnode.control_plane import free_port
from simnode.daemons import render_flat_toml
from tests.fakes import systemctl
from tests.fakes.private_systemd import UNITS, PrivateSystemd, beside_runtime, private_folder
from tests.node.site import eventually

pytestmark = [pytest.mark.node, pytest.mark.long]

HOOKS, PROXY = "lading-hooks", "lading-runtimeproxy"
OURS = [f"{daemon}.{kind}" for daemon in (HOOKS, PROXY) for kind in ("socket", "service")]
DROP_IN = "/etc/systemd/system/kubelet.service.d/10-lading.conf"
DEFAULT = "/etc/default/kubelet"
HIDDEN = "/etc/hidden"  # from the hook server, by a drop-in


@pytest.fixture(scope="module")
def systemd() -> Iterator[PrivateSystemd]:
    with private_folder() as folder:
        hides = f"[Service]\nInaccessiblePaths=-{HIDDEN}\n"
        systemd = PrivateSystemd(folder, wanted=(*OURS, "kubelet.service"), drop_ins={f"{HOOKS}.service": hides})
        (systemd.etc.parent / "hidden").mkdir()
        (folder / "kubelet").symlink_to(Path(sys.executable).resolve())  # only its command line is seen
        stays = f"ExecStart={folder}/kubelet -c 'import time; time.sleep(3600)' $KUBELET_EXTRA_ARGS"
        (systemd.units / "kubelet.service").write_text(f"[Service]\nEnvironmentFile=-{DEFAULT}\n{stays}\n")
        shutil.copytree(UNITS / "kubelet.service.d", systemd.units / "kubelet.service.d")
        for name, settings in (("hooks", {"assignments": ["manual"]}), ("runtimeproxy", {})):
            text = render_flat_toml({**settings, "metrics": f"127.0.0.1:{free_port()}"})
            (systemd.etc / f"{name}.toml").write_text(text)
        with beside_runtime(systemd):
            yield systemd


def findings(systemd: PrivateSystemd, check: str) -> list[dict[str, str]]:
    answer = systemd.run("/opt/lading/bin/lading-doctor", "-o", "json", "--only", check, check=False)
    result: list[dict[str, str]] = json.loads(answer)["findings"]
    return result


def found(systemd: PrivateSystemd, check: str) -> list[tuple[str, str]]:
    return [(finding["state"], finding["mend"] or finding["what"]) for finding in findings(systemd, check)]


def states(systemd: PrivateSystemd, check: str) -> set[str]:
    return {state for state, _ in found(systemd, check)}


def test_units_that_run_and_would_not_after_a_boot(systemd: PrivateSystemd) -> None:
    findings = found(systemd, "units")
    assert findings == [("warning", f"systemctl enable {unit}") for unit in OURS]
    for _, mend in findings:
        systemd.run(*mend.split())
    assert states(systemd, "units") == {"ok"}


def test_units_that_do_not_run(systemd: PrivateSystemd) -> None:
    systemd.run("systemctl", "stop", f"{HOOKS}.service", f"{HOOKS}.socket")
    assert "failed" in states(systemd, "units")
    assert states(systemd, "socket") == {"failed", "ok"}
    systemd.run("systemctl", "restart", f"{HOOKS}.socket", f"{HOOKS}.service")  # the socket's mend
    assert states(systemd, "socket") == {"ok"}


def test_sockets_that_systemd_made(systemd: PrivateSystemd) -> None:
    """Check that both sockets are attributed to systemd, although asyncio calls listen() on the socket of lading-hooks again,
    and the kernel names the last process that did so."""
    (of_hooks, of_proxy) = findings(systemd, "socket")
    assert of_hooks["state"] == of_proxy["state"] == "ok"
    assert HOOKS in of_hooks["what"]
    assert "systemd (pid 1)" in of_proxy["what"]


def test_a_registration_that_was_never_written(systemd: PrivateSystemd) -> None:
    assert states(systemd, "hooks-dir") == {"failed"}
    ((state, mend),) = found(systemd, "registration")
    assert state == "failed"
    systemd.run("sh", "-c", f"PATH=/opt/lading/bin:$PATH; {mend}")
    assert states(systemd, "registration") == {"ok"}
    assert states(systemd, "hooks-dir") == states(systemd, "hooks") == {"ok"}


def test_what_kubelets_unit_will_start_is_what_systemd_starts(systemd: PrivateSystemd) -> None:
    ((state, what),) = found(systemd, "kubelet-endpoint")
    assert state == "ok"
    assert DROP_IN in what
    systemd.run("sh", "-c", f"mkdir -p /etc/default; echo KUBELET_EXTRA_ARGS=--v=3 > {DEFAULT}")
    ((state, mend),) = found(systemd, "kubelet-endpoint")  # it goes on as it was started
    assert state == "warning"
    assert DEFAULT in mend
    systemd.run("systemctl", "restart", "kubelet")
    eventually(lambda: _bypass(systemd))
    systemd.run("rm", DEFAULT)
    ((state, mend),) = found(systemd, "kubelet-endpoint")
    assert state == "failed"
    systemd.run("sh", "-c", mend)  # nothing but a restart is missing
    assert states(systemd, "kubelet-endpoint") == {"ok"}


def test_the_mend_of_a_bypass_mends(systemd: PrivateSystemd) -> None:
    systemd.run("sh", "-c", f"rm -f {DEFAULT} {DROP_IN}; systemctl daemon-reload && systemctl restart kubelet")
    eventually(lambda: _is_past_the_proxy(systemd))
    ((_, mend),) = found(systemd, "kubelet-endpoint")
    assert DROP_IN in mend
    systemd.run("sh", "-c", mend)
    assert states(systemd, "kubelet-endpoint") == {"ok"}


def _is_past_the_proxy(systemd: PrivateSystemd) -> None:
    assert states(systemd, "kubelet-endpoint") == {"failed"}


def test_a_drop_in_that_systemd_has_not_read(systemd: PrivateSystemd) -> None:
    drop_in = systemd.units / "kubelet.service.d/20-later.conf"
    drop_in.write_text("[Service]\nEnvironment=KUBELET_EXTRA_ARGS=--v=3\n")
    well, stale = found(systemd, "kubelet-endpoint")
    assert (well[0], stale[0]) == ("ok", "warning")
    systemd.run("sh", "-c", stale[1].partition(";")[0])
    assert [state for state, _ in found(systemd, "kubelet-endpoint")] == ["warning"]  # the next start bypasses the proxy
    drop_in.unlink()
    systemd.run("systemctl", "daemon-reload")
    assert states(systemd, "kubelet-endpoint") == {"ok"}


def test_the_fake_shows_a_unit_as_systemd_does(systemd: PrivateSystemd) -> None:
    def read(path: str) -> str | None:
        file = systemd.root / path[1:]
        return file.read_text() if file.is_file() else None

    systemd.run("sh", "-c", f"mkdir -p /etc/default; echo KUBELET_EXTRA_ARGS=--v=3 > {DEFAULT}")
    (real,) = parse_units(systemd.run("systemctl", "show", "--property", PROPERTIES, "kubelet.service"), read)
    (fake,) = parse_units(systemctl.show(systemd.root, "kubelet.service"), read)
    systemd.run("rm", DEFAULT)
    assert replace(real, pid=0, started_s=0.0) == fake
    assert fake.environment_file("KUBELET_EXTRA_ARGS") == DEFAULT
    assert DROP_IN in fake.files


def _bypass(systemd: PrivateSystemd) -> None:
    ((state, mend),) = found(systemd, "kubelet-endpoint")
    assert state == "failed"
    assert DEFAULT in mend


def test_a_daemon_that_is_started_over_and_over(systemd: PrivateSystemd) -> None:
    """Check a unit in a restart loop, which systemd shows as being started most of the time."""
    config = systemd.etc / "hooks.toml"
    before = config.read_text()
    config.write_text(f"nod_name = 'n1'\n{before}")
    systemd.run("systemctl", "restart", "--no-block", f"{HOOKS}.service")
    eventually(lambda: _is_not_up(systemd))
    config.write_text(before)
    systemd.run("systemctl", "restart", f"{HOOKS}.service")
    assert "failed" not in states(systemd, "units")


def _is_not_up(systemd: PrivateSystemd) -> None:
    mends = [mend for state, mend in found(systemd, "units") if state == "failed"]
    assert [mend for mend in mends if "--check-config" in mend]


# ---- what the units keep from the daemons


def test_a_file_that_the_unit_hides_is_reported_by_the_daemon(systemd: PrivateSystemd) -> None:
    """Hide the kubeconfig from the hook server only: the test's command can open it."""
    (systemd.etc.parent / "hidden/kubeconfig").write_text("{}")
    config = systemd.etc / "hooks.toml"
    before = config.read_text()
    config.write_text(f"report = true\nnode_name = 'n1'\nkubeconfig = '{HIDDEN}/kubeconfig'\n{before}")
    systemd.run("systemctl", "restart", f"{HOOKS}.service")
    text = [finding["what"] for finding in findings(systemd, "ready") if f"{HIDDEN}/kubeconfig" in finding["what"]]
    assert text
    assert "no InaccessiblePaths=" in text[0]
    config.write_text(before)
    systemd.run("systemctl", "restart", f"{HOOKS}.service")
    assert not [what for _, what in found(systemd, "ready") if HIDDEN in what]
