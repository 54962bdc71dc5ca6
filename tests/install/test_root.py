"""The installer below a throwaway root, as the image of a node is made: what it writes, keeps, gives back, and leaves alone."""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import ROOT
from tests.golden.recorded import assert_recorded
from tests.install.node_installer import ENDPOINT, PYTHON, install, name_of, quick_wheel, snapshot

GOLDEN = ROOT / "tests/golden/install"
ETC = "etc/systemd/system"
DROP_IN = f"{ETC}/kubelet.service.d/10-lading.conf"
KUBEADM = {
    f"{ETC}/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet\n",
    f"{ETC}/kubelet.service.d/10-kubeadm.conf": "[Service]\n"
    "EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\nEnvironmentFile=-/etc/default/kubelet\n"
    "ExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS \\\n    $KUBELET_EXTRA_ARGS\n",
}

OTHER = "--container-runtime-endpoint=unix:///run/crio/crio.sock"

Start = Callable[..., Path]


@pytest.fixture
def start(tmp_path: Path, built_versions: Path) -> Start:
    def start(files: dict[str, str] | None = None, *, built: bool = True) -> Path:
        root = tmp_path / "root"
        for name, text in (KUBEADM if files is None else files).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
            (root / name).chmod(0o640)
        if built:
            shutil.copytree(built_versions, root / "opt/lading/versions", symlinks=True, copy_function=os.link)
        return root

    return start


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "central-1.pub.pem"
    path.write_text("the public key\n")
    return path


def test_a_dry_run_says_every_step_and_changes_nothing(start: Start, wheels: tuple[Path, Path], key: Path) -> None:
    root = start(built=False)
    before = snapshot(root)
    done = install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1", "--dry-run")
    assert snapshot(root) == before
    message = done.out.replace(str(root), "ROOT").replace(name_of(wheels[0]), "VERSION").replace(str(PYTHON), "PYTHON")
    assert_recorded(GOLDEN / "dry-run.txt", message)


@pytest.mark.long
def test_every_step_of_the_dry_run_is_one_that_is_taken(start: Start, wheels: tuple[Path, Path], key: Path) -> None:
    root = start()
    argv = ("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    dry, real = (steps(install(*argv, *more).out) for more in (["--dry-run"], []))
    assert dry == real
    assert len(real) > 10


@pytest.mark.long
def test_a_dry_run_of_the_way_back_changes_nothing(start: Start, wheels: tuple[Path, Path], key: Path) -> None:
    root = start()
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    install("--root", root, "--wheel", wheels[1])
    before = snapshot(root, but="opt/lading/versions")
    for verb in ("--rollback", "--uninstall"):
        assert install("--root", root, verb, "--dry-run").out
        assert snapshot(root, but="opt/lading/versions") == before


def steps(text: str) -> list[str]:
    return re.findall(r"^(?:==> (?!done|dry).*|    write .*)$", text, re.MULTILINE)


KUBELETS = {
    "kubeadm": (KUBEADM, DROP_IN, f'Environment="KUBELET_EXTRA_ARGS={ENDPOINT}"'),
    "kubeadm-with-debians-file": (
        {**KUBEADM, "etc/default/kubelet": "# mine\nKUBELET_EXTRA_ARGS=\nOTHER=1\n"},
        "etc/default/kubelet",
        f'# mine\nKUBELET_EXTRA_ARGS="{ENDPOINT}"\nOTHER=1\n',
    ),
    "kubeadm-with-flags-in-it": (
        {**KUBEADM, "etc/default/kubelet": f"KUBELET_EXTRA_ARGS='--node-ip=192.0.2.7 {OTHER} -v 2'\n"},
        "etc/default/kubelet",
        f'KUBELET_EXTRA_ARGS="--node-ip=192.0.2.7 -v 2 {ENDPOINT}"\n',
    ),
    "kubeadm-with-another-drop-in": (
        {**KUBEADM, f"{ETC}/kubelet.service.d/05-ip.conf": '[Service]\nEnvironment="KUBELET_EXTRA_ARGS=--node-ip=192.0.2.7"\n'},
        DROP_IN,
        f'Environment="KUBELET_EXTRA_ARGS=--node-ip=192.0.2.7 {ENDPOINT}"',
    ),
    "plain-flags": (
        {
            "usr/lib/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet --config=/k.yaml \\\n"
            "    --container-runtime-endpoint unix:///run/containerd/containerd.sock --v=2\n"
        },
        DROP_IN,
        f"ExecStart=\nExecStart=/usr/bin/kubelet --config=/k.yaml --v=2 {ENDPOINT}\n",
    ),
}


@pytest.mark.parametrize(("files", "path", "text"), KUBELETS.values(), ids=KUBELETS.keys())
def test_kubelet_is_pointed_at_the_proxy_and_the_root_is_given_back_as_it_was(
    start: Start, wheels: tuple[Path, Path], key: Path, files: dict[str, str], path: str, text: str
) -> None:
    root = start(files)
    before = snapshot(root, but="opt/")
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    assert text in (root / path).read_text()
    if path != DROP_IN:
        assert (root / path).stat().st_mode & 0o777 == 0o640
    install("--root", root, "--uninstall")
    assert snapshot(root) == before


def folders(root: Path) -> set[str]:
    """All that are not part of a version."""
    result = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir())
    return {name for name in result if not name.startswith("opt/lading/versions/")}


@pytest.mark.parametrize("there", [[], ["etc/lading/hooks.d", "etc/lading/keys", "usr/local/sbin", "opt/lading/mine"]])
def test_uninstall_removes_the_folders_that_it_made_and_no_other(
    start: Start, wheels: tuple[Path, Path], key: Path, there: list[str]
) -> None:
    root = start()
    for name in there:
        (root / name).mkdir(parents=True)
    before = folders(root)
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    install("--root", root, "--uninstall")
    assert folders(root) - {"var", "var/lib", "var/lib/lading"} == before


@pytest.mark.parametrize("files", [files for files, _, _ in KUBELETS.values()], ids=KUBELETS.keys())
def test_kubelet_is_started_after_the_sockets(
    start: Start, wheels: tuple[Path, Path], key: Path, files: dict[str, str]
) -> None:
    root = start(files)
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    unit = (root / DROP_IN).read_text()
    for setting in ("Wants", "After"):
        assert f"{setting}=lading-hooks.socket lading-runtimeproxy.socket\n" in unit


@pytest.mark.parametrize(
    ("server", "resolver", "allowed"),
    [
        ("https://192.0.2.10:6443", "", ["192.0.2.10"]),
        ("https://[2001:db8::7]:6443", "", ["2001:db8::7"]),
        ("https://localhost:6443", "nameserver 192.0.2.53\n", ["127.0.0.1", "192.0.2.53"]),
    ],
)
def test_a_node_that_reports_may_reach_the_api_server(
    start: Start, wheels: tuple[Path, Path], key: Path, server: str, resolver: str, allowed: list[str]
) -> None:
    kubeconfig = f"clusters:\n- cluster:\n    server: {server}\n"
    root = start({**KUBEADM, "etc/kubernetes/kubelet.conf": kubeconfig, "etc/resolv.conf": resolver})
    before = snapshot(root, but="opt/")
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1", "--report")
    drop_in = (root / ETC / "lading-hooks.service.d/10-report.conf").read_text().splitlines()
    assert drop_in[0] == "[Service]"
    assert {f"IPAddressAllow={address}" for address in allowed} <= set(drop_in)
    hooks = tomllib.loads((root / "etc/lading/hooks.toml").read_text())
    assert (hooks["report"], hooks["kubeconfig"]) == (True, "/etc/kubernetes/kubelet.conf")
    install("--root", root, "--uninstall")
    assert snapshot(root) == before


def test_a_node_that_is_to_report_where_no_one_knows_to_whom(start: Start, wheels: tuple[Path, Path], key: Path) -> None:
    root = start(built=False)
    before = snapshot(root)
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1", "--report", status=1)
    assert snapshot(root) == before


@pytest.mark.long
def test_a_second_time_changes_nothing(start: Start, wheels: tuple[Path, Path], key: Path) -> None:
    root = start()
    argv = ("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    install(*argv)
    before = snapshot(root, but="opt/lading/versions")
    install(*argv)
    assert snapshot(root, but="opt/lading/versions") == before


def test_upgrade_and_rollback(start: Start, wheels: tuple[Path, Path], key: Path) -> None:
    old, new = wheels
    root = start()
    install("--root", root, "--wheel", old, "--config", key, "--node-name", "n1")
    install("--root", root, "--rollback", status=1)  # there is nothing to go back to
    install("--root", root, "--wheel", new)
    assert (root / "opt/lading/bin").resolve().parent.name == name_of(new)
    for expected in (old, new):
        install("--root", root, "--rollback")
        assert (root / "opt/lading/bin").resolve().parent.name == name_of(expected)
        assert (root / "opt/lading/bin/lading-hooks").read_text().splitlines()[0].startswith("#!/opt/lading/versions/")
    versions = {path.name for path in (root / "opt/lading/versions").iterdir()}
    assert versions == {name_of(old), name_of(new)}


@pytest.mark.long
def test_what_a_person_wrote_is_not_overwritten(start: Start, wheels: tuple[Path, Path], key: Path, tmp_path: Path) -> None:
    mine = 'node_name = "mine"\n'
    root = start({**KUBEADM, "etc/lading/hooks.toml": mine})
    given = tmp_path / "hooks.toml"
    given.write_text('node_name = "given"\n')
    before = snapshot(root, but="opt/")
    install("--root", root, "--wheel", wheels[0], "--config", given)
    assert (root / "etc/lading/hooks.toml").read_text() == mine
    install("--root", root, "--uninstall")
    assert snapshot(root) == before


@pytest.mark.long
def test_a_configuration_of_all_nodes_gets_the_name_of_this_one(
    start: Start, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    root, given = start(), tmp_path / "hooks.toml"
    for text, name in (("report = false\n[keys]\n", "n1"), ('node_name = "its-own"\n', "its-own")):
        given.write_text(text)
        install("--root", root, "--wheel", wheels[0], "--config", given, "--node-name", "n1")
        hooks = root / "etc/lading/hooks.toml"
        assert tomllib.loads(hooks.read_text())["node_name"] == name
    install("--root", root, "--wheel", wheels[0], "--config", given)
    assert hooks.read_text() == text


@pytest.mark.long
def test_what_a_person_changed_since_is_left_and_what_was_there_before_too(
    start: Start, wheels: tuple[Path, Path], key: Path
) -> None:
    file, unit = "etc/default/kubelet", f"{ETC}/lading-hooks.service"
    was = "KUBELET_EXTRA_ARGS=--was\n"
    root = start({**KUBEADM, file: was})
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    for name in (file, unit):
        with (root / name).open("a") as changed:
            changed.write("# changed\n")
    theirs = {name: (root / name).read_text() for name in (file, unit)}
    install("--root", root, "--wheel", wheels[1])
    assert {name: (root / name).read_text() for name in (file, unit)} == theirs
    install("--root", root, "--uninstall")
    assert {name: (root / name).read_text() for name in (file, unit)} == theirs
    assert (root / f"{file}.before-lading").read_text() == was


@pytest.mark.long
def test_a_step_that_fails_is_taken_back(start: Start, wheels: tuple[Path, Path], key: Path) -> None:
    """Here the last one: an environment file that is not for a script to edit."""
    root = start({**KUBEADM, "etc/default/kubelet": 'KUBELET_EXTRA_ARGS="--a=1 \\\n--b=2"\n'}, built=False)
    before, made = snapshot(root), folders(root)
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1", status=1)
    assert snapshot(root) == before
    assert folders(root) - {"var", "var/lib", "var/lib/lading"} == made


@pytest.mark.long
def test_an_upgrade_whose_packages_are_not_what_was_pinned_leaves_the_old_version(
    start: Start, wheels: tuple[Path, Path], key: Path, tmp_path: Path
) -> None:
    root = start()
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    before = snapshot(root, but="opt/lading/versions")
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copy(wheels[1], packages)
    pinned = quick_wheel(tmp_path, "0.3.0", requirements="lading==0.1.1 --hash=sha256:" + "0" * 64 + "\n")
    install("--root", root, "--wheel", pinned, "--packages", packages, status=1)
    assert snapshot(root, but="opt/lading/versions") == before
    assert not (root / "opt/lading/versions" / name_of(pinned)).exists()


@pytest.mark.parametrize(
    "argv", [["--wheel"], ["--wheel", "/no/such.whl"], ["--no-such-option"]], ids=["no-value", "no-file", "unknown"]
)
def test_wrong_usage(argv: list[str], tmp_path: Path) -> None:
    install("--root", tmp_path, *argv, status=2)
    assert list(tmp_path.iterdir()) == []


def test_without_a_configuration_nothing_is_begun(start: Start, wheels: tuple[Path, Path]) -> None:
    root = start(built=False)
    before = snapshot(root)
    install("--root", root, "--wheel", wheels[0], status=1)
    assert snapshot(root) == before


def test_the_image_of_a_node_does_not_get_the_name_of_the_machine_that_makes_it(
    start: Start, wheels: tuple[Path, Path], key: Path
) -> None:
    root = start(built=False)
    before = snapshot(root)
    for argv in (("--config", key), ("--manual",)):
        assert "--node-name" in install("--root", root, "--wheel", wheels[0], *argv, status=1).err
        assert snapshot(root) == before


@pytest.mark.parametrize("unit", ["lading-nri-guard.service", "lading-shares.service"])
@pytest.mark.parametrize("copied", ["before", "after", "never"])
def test_an_optional_unit_is_installed_and_goes_with_lading_also_one_that_a_person_copied(
    start: Start, wheels: tuple[Path, Path], key: Path, unit: str, copied: str
) -> None:
    path, text = f"{ETC}/{unit}", (ROOT / "systemd" / unit).read_text()
    root = start({**KUBEADM, path: text + "# copied\n"} if copied == "before" else None)
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    assert (root / path).read_text() == text
    if copied == "after":
        (root / path).write_text(text + "# copied\n")
    subprocess.run(["systemctl", f"--root={root}", "--quiet", "enable", unit], check=True)
    install("--root", root, "--uninstall")
    assert not [*(root / ETC).rglob(unit)]


def test_the_commands_are_on_the_path_until_it_goes(start: Start, wheels: tuple[Path, Path], key: Path) -> None:
    root = start({**KUBEADM, "usr/local/sbin/lading-central": "somebody else's\n"})
    folder = root / "usr/local/sbin"
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    assert (folder / "lading-hooks").readlink() == Path("/opt/lading/bin/lading-hooks")
    install("--root", root, "--uninstall")
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("lading-central", "somebody else's\n")]


def test_a_registration_that_was_made_anew_goes_too(start: Start, wheels: tuple[Path, Path], key: Path) -> None:
    """After a change of the settings `lading-doctor` advises to make it anew. The settings stay: a person wrote them."""
    root = start()
    install("--root", root, "--wheel", wheels[0], "--config", key, "--node-name", "n1")
    settings, registration = root / "etc/lading/hooks.toml", root / "etc/lading/hooks.d/50-lading.json"
    settings.write_text("attach_deadline = 40\n" + settings.read_text())
    before = registration.read_bytes()
    python = root / "opt/lading/versions" / name_of(wheels[0]) / "bin/python"
    argv = [str(python), "-I", "-m", "hooks.main", "registration", "--config", str(settings)]
    registration.write_bytes(subprocess.run(argv, capture_output=True, check=True).stdout)
    assert registration.read_bytes() != before
    done = install("--root", root, "--uninstall")
    assert not registration.exists()
    assert settings.exists()
    assert "/etc/lading/hooks.toml" in done.out.splitlines()[-1]
