"""The installer under a real systemd: put in, upgraded and rolled back under load, failed half-way, taken out again."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hooks.ledger.store import Ledger
from simnode.control_plane import free_port
from simnode.daemons import render_flat_toml
from tests.fakes.holders import grant
from tests.fakes.private_systemd import PrivateSystemd, beside_runtime, private_folder
from tests.install.node_installer import ENDPOINT, SCRIPT, name_of, quick_wheel
from tests.node.site import eventually
from tests.node.test_activation import Load

pytestmark = pytest.mark.node

RUNTIME = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"
# A unit like kubeadm's, with the flag that kubeadm writes itself; only its command line is seen.
KUBELET = f"[Service]\nExecStart=/bin/sh -c 'while :; do sleep 3600; done' kubelet {RUNTIME} $KUBELET_EXTRA_ARGS\n"
DAEMONS = ("lading-hooks.service", "lading-runtimeproxy.service")
SHARES = "lading-shares.service"


@pytest.fixture
def node() -> Iterator[PrivateSystemd]:
    """A node as kubeadm leaves it: kubelet runs, and Lading was never there."""
    with private_folder() as folder:
        node = PrivateSystemd(folder, wanted=("kubelet.service",), installed=False)
        (node.units / "kubelet.service").write_text(KUBELET)
        shutil.copytree("/etc/alternatives", node.etc.parent / "alternatives", symlinks=True)  # awk is one
        with beside_runtime(node):
            yield node


@pytest.fixture
def configuration(tmp_path: Path) -> list[str]:
    """Ports of this test's own: the network is the machine's."""
    out = []
    for name, settings in (("hooks", {"assignments": ["manual"]}), ("runtimeproxy", {})):
        path = tmp_path / f"{name}.toml"
        path.write_text(render_flat_toml({**settings, "metrics": f"127.0.0.1:{free_port()}"}))
        out += ["--config", str(path)]
    return out


def install(node: PrivateSystemd, *argv: str | Path) -> str:
    return node.run(str(SCRIPT), *map(str, argv))


def kubelet_command(node: PrivateSystemd) -> list[str]:
    return node.run("cat", f"/proc/{node.show('kubelet.service', 'MainPID')}/cmdline").rstrip("\0").split("\0")


def version_of(node: PrivateSystemd, unit: str) -> str:
    return node.run("cat", f"/proc/{node.show(unit, 'MainPID')}/cmdline").split("\0")[0].split("/")[4]


def version_in_force(node: PrivateSystemd) -> set[str]:
    """Return the versions that the daemons' processes run, whatever the links point to."""
    return {version_of(node, unit) for unit in DAEMONS}


def no_unit_is_known(node: PrivateSystemd) -> None:
    """systemd forgets a unit whose file is gone, and that does not run, in its own time."""
    units = node.run("systemctl", "list-units", "--all", "--no-legend", "lading-*").splitlines()
    assert [unit for unit in units if "not-found inactive dead" not in " ".join(unit.split())] == []


def test_a_life_on_a_node(node: PrivateSystemd, wheels: tuple[Path, Path], configuration: list[str], tmp_path: Path) -> None:
    old, new = wheels
    before = kubelet_command(node)
    print(install(node, "--wheel", old, *configuration))
    assert kubelet_command(node)[-1] == ENDPOINT
    assert version_in_force(node) == {name_of(old)}
    kubelet = node.show("kubelet.service", "MainPID")
    assert node.show(SHARES, "ActiveState") == "inactive"  # only nodes that keep containers to their shares need it
    node.run("systemctl", "enable", "--now", SHARES)

    with Load(node.root / "run/lading/cri.sock", b"kubelet", retries=True) as load:
        eventually(lambda: in_the_middle(load, 0))
        print(install(node, "--wheel", new))
        assert {*version_in_force(node), version_of(node, SHARES)} == {name_of(new)}
        eventually(lambda calls=load.calls: in_the_middle(load, calls))  # type: ignore[misc]
        print(install(node, "--rollback"))
        assert {*version_in_force(node), version_of(node, SHARES)} == {name_of(old)}
        eventually(lambda calls=load.calls: in_the_middle(load, calls))  # type: ignore[misc]
    print(f"measured: {load.calls} calls during an upgrade and a rollback, {len(load.lost)} lost")
    assert load.lost == {}
    assert node.show("kubelet.service", "MainPID") == kubelet  # no one restarted it for that

    change_ledger(node, "PRAGMA user_version = 99")  # a version of years to come does this
    node.run(str(SCRIPT), "--rollback", check=False)
    assert version_in_force(node) == {name_of(old)}  # the other one would not start

    hold_a_card(node, tmp_path)
    node.run(str(SCRIPT), "--uninstall", check=False)
    assert kubelet_command(node)[-1] == ENDPOINT  # a pod's devices would be no one's any more
    change_ledger(node, "DELETE FROM grants")
    print(install(node, "--uninstall"))
    assert kubelet_command(node) == before
    no_unit_is_known(node)
    assert node.run("find", "/opt", "/etc", "-name", "*lading*", "-not", "-type", "d").split() == []


def change_ledger(node: PrivateSystemd, *statements: str) -> None:
    script = "import sqlite3, sys\ndb = sqlite3.connect('/var/lib/lading/node.db', isolation_level=None)\n"
    node.run("/usr/bin/python3", "-c", script + "for statement in sys.argv[1:]: db.execute(statement)", *statements)


def hold_a_card(node: PrivateSystemd, folder: Path) -> None:
    with Ledger.open(folder / "state/node.db") as ledger:
        ledger.record(grant())
    change_ledger(node, f"ATTACH '{folder}/state/node.db' AS other", "INSERT INTO grants SELECT * FROM other.grants")


def in_the_middle(load: Load, before: int) -> None:
    assert load.calls > before + 20


@pytest.mark.long
def test_an_upgrade_that_does_not_come_up_is_taken_back(
    node: PrivateSystemd, wheels: tuple[Path, Path], configuration: list[str], tmp_path: Path
) -> None:
    install(node, "--wheel", wheels[0], *configuration)
    broken = quick_wheel(tmp_path, "0.2.0", breaks='raise SystemExit("broken")')
    with Load(node.root / "run/lading/cri.sock", b"kubelet", retries=True) as load:
        eventually(lambda: in_the_middle(load, 0))
        done = node.run(str(SCRIPT), "--wheel", str(broken), check=False)
        assert "done" not in done
        eventually(lambda calls=load.calls: in_the_middle(load, calls))  # type: ignore[misc]
    assert load.lost == {}
    assert version_in_force(node) == {name_of(wheels[0])}
    assert node.run("ls", "/opt/lading/versions").split() == [name_of(wheels[0])]


@pytest.mark.long
def test_kubelets_runtime_and_the_proxys_are_one(
    node: PrivateSystemd, wheels: tuple[Path, Path], configuration: list[str]
) -> None:
    (node.containerd / "other.sock").symlink_to("containerd.sock")
    (node.units / "kubelet.service").write_text(KUBELET.replace("containerd.sock", "other.sock"))
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", "kubelet")
    node.run(str(SCRIPT), "--wheel", str(wheels[0]), *configuration, check=False)
    assert kubelet_command(node)[-1].endswith("other.sock")
    assert not (node.root / "opt/lading").exists()
    for path in configuration[1::2]:
        with Path(path).open("a") as file:
            file.write('runtime_endpoint = "/run/containerd/other.sock"\n')
    install(node, "--wheel", wheels[0], *configuration)
    assert kubelet_command(node)[-1] == ENDPOINT


@pytest.mark.long
def test_a_first_installation_that_fails_leaves_the_node_as_it_was(
    node: PrivateSystemd, wheels: tuple[Path, Path], configuration: list[str]
) -> None:
    """Here at the last step: a drop-in that is read after ours keeps kubelet at its runtime."""
    later = node.units / "kubelet.service.d/20-later.conf"
    later.parent.mkdir()
    later.write_text(f'[Service]\nEnvironment="KUBELET_EXTRA_ARGS={RUNTIME}"\n')
    node.run("systemctl", "daemon-reload")
    before = node.run("find", "/etc", "/opt", "/var/lib", "-type", "f")
    node.run(str(SCRIPT), "--wheel", str(wheels[0]), *configuration, check=False)
    assert node.run("find", "/etc", "/opt", "/var/lib", "-type", "f", "-not", "-name", "node.db*") == before
    assert kubelet_command(node)[-1] != ENDPOINT
    assert node.show("kubelet.service", "ActiveState") == "active"
    assert node.run("systemctl", "list-units", "--state=active", "--no-legend", "lading-*").strip() == ""
