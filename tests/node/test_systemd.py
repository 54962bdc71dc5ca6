"""Check the unit files by systemd's own tools, and run them by a real systemd."""

import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from lading.log import Event
from simnode.daemons import render_flat_toml
from tests.fakes.counting_runtime import COUNTED
from tests.fakes.needs import need
from tests.fakes.private_systemd import ROOT, UNITS, PrivateSystemd, beside_runtime, private_folder
from tests.node.site import eventually

PROXY, HOOKS = "lading-runtimeproxy.service", "lading-hooks.service"
UVM, GUIDS = "lading-nvidia-uvm.service", "lading-ib-guids.service"
SOCKETS = ("lading-runtimeproxy.socket", "lading-hooks.socket")
# Tenths; 0 is best. Root and the host's network are what is left of the proxy's; devices and pods' networks add the hooks'.
EXPOSURE = {PROXY: 17, HOOKS: 34}
RESTARTS = 3
NOTIFIES = "\nType=notify\n"
# A unit like kubeadm's; only its command line is seen.
KUBELET = "[Service]\nExecStart=/bin/sh -c 'while :; do sleep 3600; done' kubelet $KUBELET_EXTRA_ARGS\n"
ROLLBACK = re.compile(r"^rm /etc/systemd/.*$", re.MULTILINE)


@pytest.fixture
def analyze() -> str:
    need(shutil.which("systemd-analyze") is not None, "systemd-analyze (apt-get install systemd)")
    return "systemd-analyze"


def analysed(*argv: str, folder: Path) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder)
    return "" if done.returncode == 0 and not done.stderr else f"{done.returncode}: {done.stdout}{done.stderr}"


def with_commands_of_this_checkout(folder: Path) -> list[str]:
    """`verify` looks whether each command is there."""
    for path in UNITS.glob("lading-*"):
        text = path.read_text().replace("/opt/lading/bin", str(Path(sys.executable).parent))
        text = text.replace("/usr/bin/nvidia-modprobe", "/bin/true")
        (folder / path.name).write_text(text)
    return sorted(path.name for path in folder.iterdir())


def test_systemd_verifies_the_units(analyze: str, tmp_path: Path) -> None:
    names = with_commands_of_this_checkout(tmp_path)
    assert len(names) == 8
    assert analysed(analyze, "verify", "--man=no", *(f"./{name}" for name in names), folder=tmp_path) == ""


@pytest.mark.parametrize("unit", [PROXY, HOOKS])
def test_systemd_judges_the_hardening(analyze: str, tmp_path: Path, unit: str) -> None:
    with_commands_of_this_checkout(tmp_path)
    security = (analyze, "security", "--offline=true", "--no-pager")
    assert analysed(*security, f"--threshold={EXPOSURE[unit]}", f"./{unit}", folder=tmp_path) == ""
    assert analysed(
        *security, f"--threshold={EXPOSURE[unit] - 2}", f"./{unit}", folder=tmp_path
    )  # the threshold is a close one


@pytest.mark.parametrize("flavour", ["kubelet", "kubelet-plain"])
def test_systemd_verifies_the_drop_ins(analyze: str, tmp_path: Path, flavour: str) -> None:
    with_commands_of_this_checkout(tmp_path)
    (tmp_path / "kubelet.service").write_text("[Service]\nExecStart=/bin/true $KUBELET_EXTRA_ARGS\n")
    drop_in = (UNITS / f"{flavour}.service.d" / "10-lading.conf").read_text().replace("/usr/bin/kubelet", "/bin/true")
    (tmp_path / "kubelet.service.d").mkdir()
    (tmp_path / "kubelet.service.d" / "10-lading.conf").write_text(drop_in)
    assert analysed(analyze, "verify", "--man=no", "./kubelet.service", folder=tmp_path) == ""
    assert "--container-runtime-endpoint=unix:///run/lading/cri.sock" in drop_in


# ---- a real systemd


@pytest.fixture(scope="module")
def systemd() -> Iterator[PrivateSystemd]:
    with private_folder() as folder:
        quick = "[Service]\nWatchdogSec=2\n"
        modprobe = (
            "[Unit]\nConditionPathExists=\n[Service]\nExecStart=\nExecStart=-/bin/sh -c 'sleep 1; touch /run/uvm; exit 1'\n"
        )
        anywhere = "[Unit]\nConditionDirectoryNotEmpty=\n"
        systemd = PrivateSystemd(
            folder, wanted=(*SOCKETS, PROXY), drop_ins={PROXY: quick, HOOKS: quick, UVM: modprobe, GUIDS: anywhere}
        )
        (systemd.etc / "hooks.d").mkdir()
        (systemd.units / "kubelet.service").write_text(KUBELET)
        shutil.copytree(UNITS / "kubelet.service.d", systemd.units / "kubelet.service.d")
        (systemd.etc / "hooks.toml").write_text(render_flat_toml({"assignments": ["manual"]}))
        with beside_runtime(systemd):
            yield systemd


def version(systemd: PrivateSystemd, request: bytes, *, timeout_s: float = 20) -> bytes:
    target = f"unix:{systemd.root}/run/lading/cri.sock"
    with grpc.insecure_channel(target, options=(("grpc.enable_retries", 0),)) as channel:
        answer: bytes = channel.unary_unary(COUNTED, bytes, bytes)(request, timeout=timeout_s)
        return answer


def journal(systemd: PrivateSystemd, *match: str) -> list[str]:
    return systemd.run("journalctl", "--no-pager", "--output=cat", *match, check=False).splitlines()


def test_both_daemons_come_up_and_serve(systemd: PrivateSystemd) -> None:
    for unit in (PROXY, HOOKS):
        eventually(lambda unit=unit: is_active(systemd, unit), within_s=60)  # type: ignore[misc]
    assert version(systemd, b"up") == b""


def test_the_uvm_nodes_are_made_before_the_hook_server_starts(systemd: PrivateSystemd) -> None:
    eventually(lambda: is_active(systemd, HOOKS), within_s=60)
    is_active(systemd, UVM)  # although its command failed, as on a node without cards
    systemd.run("test", "-e", "/run/uvm")
    made, started = systemd.show(UVM, "ExecMainExitTimestampMonotonic"), systemd.show(HOOKS, "ExecMainStartTimestampMonotonic")
    assert 0 < int(made) < int(started)  # microseconds


def test_guids_are_set_before_the_hook_server_starts(systemd: PrivateSystemd) -> None:
    eventually(lambda: is_active(systemd, HOOKS), within_s=60)
    is_active(systemd, GUIDS)
    assert journal(systemd, f"_SYSTEMD_UNIT={GUIDS}") == ["no InfiniBand VF is without a GUID"]
    set_at, started = (
        systemd.show(GUIDS, "ExecMainExitTimestampMonotonic"),
        systemd.show(HOOKS, "ExecMainStartTimestampMonotonic"),
    )
    assert 0 < int(set_at) < int(started)  # microseconds


def is_active(systemd: PrivateSystemd, unit: str) -> None:
    assert systemd.show(unit, "ActiveState") == "active"


@pytest.mark.parametrize(("name", "mode"), [("cri.sock", 0o660), ("hooks.sock", 0o600)])
def test_the_sockets_are_for_root_alone(systemd: PrivateSystemd, name: str, mode: int) -> None:
    found = (systemd.root / "run/lading" / name).stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, mode)
    assert stat.S_IMODE((systemd.root / "run/lading").stat().st_mode) == 0o700
    assert journal(systemd, f"LADING_EVENT={Event.SOCKET_ACCESS}") == []


def test_the_hardening_is_in_force(systemd: PrivateSystemd) -> None:
    net_admin, sys_admin, mknod, syslog = 1 << 12, 1 << 21, 1 << 27, 1 << 34
    for unit, capabilities in ((PROXY, 0), (HOOKS, net_admin | sys_admin | mknod | syslog)):
        status = systemd.status_of(unit)
        assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == capabilities
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_of_the_kernel_settings_only_those_of_networks_can_be_written(systemd: PrivateSystemd) -> None:
    mounts = systemd.run("cat", f"/proc/{systemd.show(HOOKS, 'MainPID')}/mountinfo").splitlines()
    flags = {point: options.split(",")[0] for _, _, _, _, point, options, *_ in map(str.split, mounts)}
    assert (flags["/proc/sys"], flags["/proc/sys/net"]) == ("ro", "rw")


def test_cdi_specs_can_be_written_where_runtimes_search_and_read_by_every_user(systemd: PrivateSystemd) -> None:
    eventually(lambda: is_active(systemd, HOOKS), within_s=60)
    mounts = systemd.run("cat", f"/proc/{systemd.show(HOOKS, 'MainPID')}/mountinfo").splitlines()
    flags = {point: options.split(",")[0] for _, _, _, _, point, options, *_ in map(str.split, mounts)}
    assert flags["/run/cdi"] == "rw"
    assert stat.S_IMODE((systemd.root / "run/cdi").stat().st_mode) == 0o755


def test_the_ledger_is_in_the_state_directory(systemd: PrivateSystemd) -> None:
    ledger = systemd.root / "var/lib/lading/node.db"
    assert ledger.exists()
    assert stat.S_IMODE(ledger.parent.stat().st_mode) == 0o700


def test_records_are_in_the_journal_with_their_fields(systemd: PrivateSystemd) -> None:
    for unit, identifier in ((PROXY, "lading-runtimeproxy"), (HOOKS, "lading-hooks")):
        assert journal(systemd, "-t", identifier, f"LADING_EVENT={Event.DAEMON_STARTED}", f"_SYSTEMD_UNIT={unit}")


def test_a_restart_keeps_the_socket_and_what_waits_in_it(systemd: PrivateSystemd) -> None:
    inode = (systemd.root / "run/lading/cri.sock").stat().st_ino
    for number in range(RESTARTS):
        systemd.run("systemctl", "stop", PROXY)  # the next call starts it again
        assert version(systemd, b"restart %d" % number) == b""
    assert (systemd.root / "run/lading/cri.sock").stat().st_ino == inode


def test_a_daemon_that_is_killed_is_back_at_once(systemd: PrivateSystemd) -> None:
    before = int(systemd.show(PROXY, "NRestarts"))
    systemd.run("systemctl", "kill", "--signal=KILL", PROXY)
    assert version(systemd, b"killed") == b""
    assert int(systemd.show(PROXY, "NRestarts")) == before + 1


@pytest.mark.parametrize("unit", [PROXY, HOOKS])
def test_the_watchdog_ends_a_daemon_that_hangs_and_no_other(systemd: PrivateSystemd, unit: str) -> None:
    eventually(lambda: is_active(systemd, unit), within_s=60)
    other = HOOKS if unit == PROXY else PROXY
    pid, others = systemd.show(unit, "MainPID"), systemd.show(other, "MainPID")
    systemd.run("kill", f"-{signal.SIGSTOP}", pid)
    eventually(lambda: is_another(systemd, unit, pid), within_s=60)
    assert systemd.show(other, "MainPID") == others  # it was fed for all that time
    assert version(systemd, f"after {unit}".encode()) == b""


def is_another(systemd: PrivateSystemd, unit: str, pid: str) -> None:
    assert systemd.show(unit, "ActiveState") == "active"
    assert systemd.show(unit, "MainPID") not in {pid, "0"}


def test_a_proxy_that_cannot_start_does_not_cost_the_socket(systemd: PrivateSystemd) -> None:
    """Nor is it given up: once the mistake is mended, the calls that waited are served."""
    config = systemd.etc / "runtimeproxy.toml"
    config.write_text("listne = 1\n")
    try:
        systemd.run("systemctl", "restart", PROXY, check=False)
        eventually(lambda: restarted(systemd, 8), within_s=60)
        assert systemd.show(SOCKETS[0], "ActiveState") == "active"
    finally:
        config.unlink()
    assert version(systemd, b"mended") == b""


def restarted(systemd: PrivateSystemd, times: int) -> None:
    assert int(systemd.show(PROXY, "NRestarts")) >= times


def test_systemd_leaves_a_start_on_a_slow_node_its_time() -> None:
    """On two emulated processors beside twelve busy processes, the proxy took 27 s to start, and lading-hooks 153 s. What is
    ended meanwhile begins anew, and would never start."""
    texts = {path.name: path.read_text() for path in UNITS.glob("*.service")}
    limits = {
        name: re.findall(r"^TimeoutStartSec=(.*)", text, re.MULTILINE) for name, text in texts.items() if NOTIFIES in text
    }
    assert limits == {name: ["300"] for name in (PROXY, HOOKS, "lading-shares.service")}


def test_no_unit_waits_for_the_start_of_a_daemon() -> None:
    """Check the order of units: only the guard may be ordered before kubelet, because its start is over at once."""
    daemons = {path.name for path in UNITS.glob("*.service") if NOTIFIES in path.read_text()}
    assert len(daemons) == 3
    for path in (path for path in UNITS.rglob("*") if path.is_file()):
        ordered = dict(re.findall(r"^(After|Before)=(.*)", path.read_text(), re.MULTILINE))
        assert not daemons & {*ordered.get("After", "").split()}, path
        assert path.name not in daemons or "Before" not in ordered, path


@pytest.mark.parametrize("command", ["/bin/sleep 3600", "/bin/false"])
@pytest.mark.parametrize(("unit", "others"), [(HOOKS, (PROXY, "kubelet.service")), (PROXY, ("kubelet.service",))])
def test_a_daemon_that_cannot_start_delays_no_unit_that_works_without_it(
    systemd: PrivateSystemd, unit: str, others: tuple[str, ...], command: str
) -> None:
    drop_in = systemd.units / f"{unit}.d" / "60-cannot-start.conf"
    drop_in.write_text(f"[Service]\nExecStart=\nExecStart={command}\nTimeoutStartSec=infinity\n")
    systemd.run("systemctl", "daemon-reload")
    systemd.run("systemctl", "stop", *others, unit)
    try:
        systemd.run("systemctl", "start", "--no-block", unit, *others)  # one transaction, as at boot
        for other in others:
            eventually(lambda other=other: is_active(systemd, other), within_s=60)  # type: ignore[misc]
            before = systemd.show(other, "MainPID")
            systemd.run("systemctl", "restart", "--no-block", other)
            eventually(lambda other=other, before=before: is_another(systemd, other, before), within_s=60)  # type: ignore[misc]
        assert systemd.show(unit, "ActiveState") != "active"
        if unit == HOOKS:
            assert version(systemd, f"{command} {unit}".encode()) == b""
    finally:
        drop_in.unlink()
        systemd.run("systemctl", "daemon-reload")
        systemd.run("systemctl", "stop", unit)
        systemd.run("systemctl", "start", unit)


def test_the_drop_in_points_kubelet_at_the_proxy_and_one_command_takes_it_back(systemd: PrivateSystemd) -> None:
    endpoint = "--container-runtime-endpoint=unix:///run/lading/cri.sock"
    systemd.run("systemctl", "start", "kubelet")
    assert endpoint in kubelet_command(systemd)
    (documented,) = {
        command for name in ("README.md", "docs/operations.md") for command in ROLLBACK.findall((ROOT / name).read_text())
    }
    systemd.run("sh", "-c", documented)
    assert endpoint not in kubelet_command(systemd)
    assert systemd.show("kubelet.service", "ActiveState") == "active"


def kubelet_command(systemd: PrivateSystemd) -> list[str]:
    return systemd.run("cat", f"/proc/{systemd.show('kubelet.service', 'MainPID')}/cmdline").split("\0")
