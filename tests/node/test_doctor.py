"""Run the doctor on a node with both daemons and a real containerd: first healthy, then with one fault at a time.

What a simulated node cannot have is skipped, and never failed: systemd's units, cgroups below its host root, the kernel's RDMA
mode, an API server. Its containerd may lock little memory here, so `rdma_ipc_lock` is on.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simnode.control_plane import free_port
from simnode.daemons import LadingNode
from tests.node.conftest import StartLading
from tests.node.site import eventually

pytestmark = pytest.mark.node

Found = dict[str, list[tuple[str, str]]]  # check → (state, mend) of each of its findings
Break = Callable[[LadingNode], contextlib.AbstractContextManager[object]]

PROGRAM = Path(sys.executable).with_name("lading-doctor")
SKIPPED = {"units", "cgroup-driver", "rdma-mode", "cgroups", "api"}
KUBELET = "proc/812/cmdline"


def doctor(node: LadingNode, *argv: str) -> subprocess.CompletedProcess[str]:
    configs = ["--hooks-config", node.hooks.config, "--proxy-config", node.proxy.config]
    env = {**os.environ, "FAKE_NVML_STATE": str(node.node.nvml_state)}
    command = [PROGRAM, *configs, *argv]
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, check=False)


def found(node: LadingNode, *argv: str) -> Found:
    done = doctor(node, "-o", "json", *argv)
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if answer["counts"]["failed"] else 0)
    checks: Found = {}
    for finding in answer["findings"]:
        assert finding["why"]
        assert finding["mend"] or finding["state"] in ("ok", "skipped"), finding
        checks.setdefault(finding["check"], []).append((finding["state"], finding["mend"]))
    return checks


def states(checks: Found, state: str) -> set[str]:
    return {check for check, findings in checks.items() if any(one == state for one, _ in findings)}


@pytest.fixture(scope="module")
def node(share_lading: StartLading) -> LadingNode:
    """Start a node with a kubelet that talks to the proxy, as far as /proc shows it."""
    hooks = {"metrics": f"127.0.0.1:{free_port()}", "rdma_ipc_lock": True}
    running = share_lading(hooks=hooks, proxy={"metrics": f"127.0.0.1:{free_port()}"})
    kubelet = running.node.root / KUBELET
    kubelet.parent.mkdir(parents=True)
    write_kubelet(running, str(running.cri_socket))
    return running


def write_kubelet(node: LadingNode, endpoint: str) -> None:
    command = f"/usr/bin/kubelet\0--container-runtime-endpoint=unix://{endpoint}\0--hostname-override=demo\0"
    (node.node.root / KUBELET).write_text(command)


def test_a_node_that_is_well(node: LadingNode) -> None:
    def well() -> None:
        checks = found(node)
        assert states(checks, "failed") == set()  # ready, once ledger and runtime were compared
        assert states(checks, "skipped") <= SKIPPED
        assert checks["kubelet-endpoint"] == checks["driver"] == checks["gpu-nodes"] == checks["vfs"] == [("ok", "")]
        assert checks["hooks-dir"] == checks["hooks"] == checks["connections"] == [("ok", "")]
        assert checks["socket"] == checks["config"] == [("ok", ""), ("ok", "")]

    eventually(well)


def test_a_daemon_that_is_not_installed_is_not_missed(node: LadingNode) -> None:
    argv = [PROGRAM, "--proxy-config", node.proxy.config, "--host-root", node.node.root, "-o", "json"]
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False)
    checks = {finding["check"] for finding in json.loads(done.stdout)["findings"]}
    assert checks >= {"config", "socket", "hooks-dir", "kubelet-endpoint", "runtime"}
    assert not checks & {"keys", "ledger", "driver"}


def test_a_person_reads_the_same(node: LadingNode) -> None:
    done = doctor(node, "--only", "ledger,node-name")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "2 ok"
    assert "\x1b" not in done.stdout


def test_arguments_that_are_wrong(node: LadingNode) -> None:
    assert doctor(node, "--only", "everything").returncode == 2


# ---- broken on purpose: what is broken, which check finds it, how bad it is, and what its mend says. tests/unit/doctor has the
# verdict of each check on every reading.


@contextlib.contextmanager
def kubelet_bypasses(node: LadingNode) -> Iterator[None]:
    write_kubelet(node, "/run/containerd/containerd.sock")
    yield
    write_kubelet(node, str(node.cri_socket))


@contextlib.contextmanager
def moved_away(path: Path) -> Iterator[None]:
    path.rename(path.with_name("moved-away"))
    yield
    path.with_name("moved-away").rename(path)


def no_card_node(node: LadingNode) -> contextlib.AbstractContextManager[None]:
    return moved_away(node.node.root / "dev/nvidia3")


def no_uvm_node(node: LadingNode) -> contextlib.AbstractContextManager[None]:
    return moved_away(node.node.root / "dev/nvidia-uvm")


@contextlib.contextmanager
def rewritten(path: Path, text: str) -> Iterator[None]:
    before = path.read_text()
    path.write_text(text)
    yield
    path.write_text(before)


def damaged_registration(node: LadingNode) -> contextlib.AbstractContextManager[None]:
    return rewritten(node.hooks_dir / "50-lading.json", "{")


def other_registration(node: LadingNode) -> contextlib.AbstractContextManager[None]:
    """Rewrite the registration as an older configuration had it."""
    path = node.hooks_dir / "50-lading.json"
    return rewritten(path, json.dumps(json.loads(path.read_text()) | {"failure-policy": "Ignore"}))


def other_module(node: LadingNode) -> contextlib.AbstractContextManager[None]:
    path = node.node.root / "proc/driver/nvidia/version"
    return rewritten(path, path.read_text().replace("550.127.05", "550.90.07"))


def unknown_key(node: LadingNode) -> contextlib.AbstractContextManager[None]:
    return rewritten(node.hooks.config, node.hooks.config.read_text() + "nod_name = 'x'\n")


def renamed_node(node: LadingNode) -> contextlib.AbstractContextManager[None]:
    text = node.hooks.config.read_text()
    return rewritten(node.hooks.config, text.replace('node_name = "demo"', 'node_name = "other"'))


@contextlib.contextmanager
def owned_by(path: Path, uid: int) -> Iterator[None]:
    os.chown(path, uid, -1, follow_symlinks=False)
    yield
    os.chown(path, 0, -1, follow_symlinks=False)


def somebodys_socket(node: LadingNode) -> contextlib.AbstractContextManager[None]:
    return owned_by(node.hooks.socket, 1000)


def somebodys_folder(node: LadingNode) -> contextlib.AbstractContextManager[None]:
    return owned_by(node.folder / "state", 1000)


@contextlib.contextmanager
def read_only_disk(node: LadingNode) -> Iterator[None]:
    """Mount another disk over the ledger's folder, for this command only; the daemon has its file open."""
    state = node.folder / "state"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=0700", "tmpfs", str(state)], check=True)
    yield
    subprocess.run(["umount", str(state)], check=True)


@contextlib.contextmanager
def stopped_hooks(node: LadingNode) -> Iterator[None]:
    node.hooks.stop()
    yield
    node.hooks.start()


@contextlib.contextmanager
def a_damaged_ledger(node: LadingNode) -> Iterator[None]:
    with stopped_hooks(node):
        path = node.folder / "state/node.db"
        whole = path.read_bytes()
        path.write_bytes(b"damaged")
        yield
        path.write_bytes(whole)


@contextlib.contextmanager
def stopped_proxy(node: LadingNode) -> Iterator[None]:
    node.proxy.stop()
    yield
    node.proxy.start()


BROKEN: list[tuple[Break, str, str, str]] = [
    (kubelet_bypasses, "kubelet-endpoint", "failed", "--container-runtime-endpoint=unix:///"),
    (no_card_node, "gpu-nodes", "failed", "nvidia-modprobe -c 3"),
    (no_uvm_node, "gpu-nodes", "failed", "nvidia-modprobe -c 0 -u"),
    (other_module, "driver", "failed", "modprobe nvidia"),
    (damaged_registration, "registration", "failed", "hooks.d/50-lading.json"),
    (damaged_registration, "hooks-dir", "failed", "--write"),
    (other_registration, "registration", "warning", "hooks.d/50-lading.json"),
    (unknown_key, "config", "failed", "known keys"),
    (renamed_node, "node-name", "warning", "kubectl get nodes"),
    (somebodys_socket, "socket", "failed", "chown 0:0"),
    (somebodys_socket, "hooks", "failed", "restart lading-hooks.socket"),
    (somebodys_folder, "disk", "failed", "chown root"),
    (read_only_disk, "disk", "failed", "findmnt"),
    (stopped_hooks, "socket", "failed", "restart lading-hooks.socket"),
    (stopped_hooks, "hooks", "failed", "restart lading-hooks.socket"),
    (stopped_proxy, "socket", "failed", "restart lading-runtimeproxy.socket"),
    (a_damaged_ledger, "ledger", "failed", "rebuild-ledger"),
]


@pytest.mark.parametrize(("broken", "check", "state", "mend"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN])
def test_what_is_broken_is_found(node: LadingNode, broken: Break, check: str, state: str, mend: str) -> None:
    with broken(node):
        findings = found(node, "--only", check)[check]
    assert [one for one in findings if one[0] == state and mend in one[1]], findings
    assert set(found(node, "--only", check)[check]) == {("ok", "")}


@contextlib.contextmanager
def another_runtime(node: LadingNode, endpoint: Path) -> Iterator[None]:
    """Name another runtime in both configurations; the daemons keep the one that they have."""
    with contextlib.ExitStack() as stack:
        for config in (node.hooks.config, node.proxy.config):
            text = re.sub(r'runtime_endpoint = ".*"', f'runtime_endpoint = "{endpoint}"', config.read_text())
            stack.enter_context(rewritten(config, text))
        yield


def test_a_runtime_that_is_away_is_reported_once(node: LadingNode) -> None:
    with another_runtime(node, Path("/none.sock")):
        checks = found(node, "--only", "runtime,cdi,nri,memlock,cgroup-driver")
    assert [state for state, _ in checks["runtime"]] == ["failed"]
    assert states(checks, "failed") == {"runtime"}
    assert states(checks, "skipped") == {"cdi", "nri", "memlock", "cgroup-driver"}


def test_a_runtime_that_hangs_holds_up_no_one(node: LadingNode, short_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as hung, another_runtime(node, short_folder / "s"):
        hung.bind(str(short_folder / "s"))
        hung.listen()
        checks = found(node, "--deadline", "2")
    assert states(checks, "failed") >= {"runtime", "cdi"}
    assert checks["ledger"] == checks["driver"] == [("ok", "")]


def test_what_may_not_be_read_is_skipped(node: LadingNode) -> None:
    """Run as root without the capabilities by which root may read the files of other users."""
    without = "-dac_override,-dac_read_search"
    argv = ["setpriv", "--bounding-set", without, "--inh-caps", without, str(PROGRAM), "-o", "json"]
    argv += ["--hooks-config", str(node.hooks.config), "--only", "socket,ledger"]
    state = node.folder / "state"
    with contextlib.ExitStack() as stack:
        for path in (node.hooks.socket, state):
            stack.enter_context(owned_by(path, 1000))
            path.chmod(0o700 if path is state else 0o600)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert {finding["check"]: finding["state"] for finding in findings} == {"socket": "skipped", "ledger": "skipped"}


def test_a_damaged_ledger_says_nothing_of_vfs(node: LadingNode) -> None:
    with a_damaged_ledger(node):
        checks = found(node, "--only", "ledger,vfs")
    assert (states(checks, "failed"), states(checks, "ok")) == ({"ledger"}, {"vfs"})
