"""What a unit keeps from its daemon: by the root of the one that runs (a folder here), else by its properties."""

import asyncio
import ipaddress
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lading.doctor import read_sandbox
from lading.doctor.look import look as look_at
from lading.doctor.model import Check, State, Verdict, ok
from lading.doctor.read_sandbox import (
    DaemonView,
    Step,
    Subject,
    find_denial,
    look,
    planned_subject,
    reaches,
    read_subject,
    walk,
)
from lading.doctor.sandbox import (
    Identity,
    Needed,
    SandboxSeen,
    ServerSeen,
    Sight,
    Use,
    decide_network,
    decide_sandbox,
    hiding,
    writing_refused,
)
from tests.unit.lading.doctor.verdicts import only, states

PID = "42"
OURS = {"ProtectHome": "yes", "PrivateTmp": "yes", "ProtectSystem": "strict", "StateDirectory": "lading"}
STATUS = "Name:\tlading-hooks\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\nGroups:\t\nCapEff:\t{caps:016x}\n"


def needed(path: Path, use: Use = Use.READ) -> Needed:
    return Needed(path=path, use=use, what="kubeconfig", elsewhere=f"install {path} /etc/lading")


def seen(
    tmp_path: Path, path: Path, *, use: Use = Use.READ, properties: Mapping[str, str] = OURS, caps: int = 0
) -> tuple[Verdict, ...]:
    """By a daemon whose root is `tmp_path`/proc/42/root."""
    status = tmp_path / "proc" / PID / "status"
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text(STATUS.format(uid=os.geteuid(), caps=caps))
    found = look(tmp_path / "proc", "lading-hooks", {**properties, "MainPID": PID}, [needed(path, use)])
    return tuple(decide_sandbox(found))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The daemon's, that has everything at first: it is a link to ours, as without a mount namespace."""
    folder = tmp_path / "proc" / PID
    folder.mkdir(parents=True)
    (folder / "root").symlink_to("/")
    return folder / "root"


def shut(root: Path) -> None:
    """A namespace of its own with nothing in it."""
    root.unlink()
    root.mkdir()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text("x")
    path.chmod(0o600)
    return path


def test_what_the_daemon_sees_too(tmp_path: Path, root: Path, file: Path) -> None:
    assert seen(tmp_path, file) == ()  # whatever its unit would hide by now


def test_what_the_daemon_does_not_see(tmp_path: Path, root: Path, file: Path) -> None:
    shut(root)
    verdict = only(seen(tmp_path, file, properties={"TemporaryFileSystem": f"/other {tmp_path}:ro"}))
    assert verdict.state is State.FAILED
    assert f"TemporaryFileSystem={tmp_path}" in verdict.what
    assert str(file) in verdict.what
    unnamed = only(seen(tmp_path, file, properties={}))
    assert unnamed.state is State.FAILED
    assert f"findmnt -N {PID}" in unnamed.mend


def test_the_mend_of_a_file_below_home_is_another_place() -> None:
    sight = Sight(needed=needed(Path("/root/k")), here=Identity(1, 2))
    found = SandboxSeen(daemon="d", properties=OURS, inside=True, sights=(sight,))
    assert only(decide_sandbox(found)).mend == "install /root/k /etc/lading"


def test_another_file_at_the_same_path(tmp_path: Path, root: Path, file: Path) -> None:
    shut(root)
    other = root / str(file).lstrip("/")
    other.parent.mkdir(parents=True)
    other.write_text("y")
    assert only(seen(tmp_path, file, properties={})).state is State.WARNING
    assert only(seen(tmp_path, file, properties={"InaccessiblePaths": str(file)})).state is State.FAILED  # systemd's own node
    file.unlink()
    assert only(seen(tmp_path, file, properties={})).state is State.WARNING  # BindPaths=


def test_what_is_nowhere_is_said_by_the_check_itself(tmp_path: Path, root: Path) -> None:
    assert seen(tmp_path, tmp_path / "none") == ()


def test_a_link_is_followed_below_the_daemons_root(tmp_path: Path, root: Path) -> None:
    """The kernel would follow an absolute one into ours."""
    shut(root)
    real = tmp_path / "real"
    real.write_text("x")
    link = tmp_path / "link"
    link.symlink_to(real)
    there = root / str(link).lstrip("/")
    there.parent.mkdir(parents=True)
    there.symlink_to(real)
    assert only(seen(tmp_path, link, properties={})).state is State.FAILED
    os.link(real, root / str(real).lstrip("/"))
    assert seen(tmp_path, link, properties={}) == ()


def test_walking(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/loop").symlink_to("loop")
    (tmp_path / "a/up").symlink_to("../../../a/b")
    steps, is_there = walk(tmp_path, Path("/a/up"))
    assert ([str(step.path) for step in steps], is_there) == (["/", "/a", "/a/b"], True)
    assert not walk(tmp_path, Path("/a/loop"))[1]
    assert not walk(tmp_path, Path("/a/none/x"))[1]


# ---- modes


def steps(*modes: int, uid: int = 0, last: int = 0o100000) -> list[Step]:
    kinds = [0o040000] * (len(modes) - 1) + [last]
    made = [os.stat_result((kind | mode, 1, 1, 1, uid, 0, 0, 0, 0, 0)) for kind, mode in zip(kinds, modes, strict=True)]
    return [Step(Path(f"/{i}"), status) for i, status in enumerate(made)]


ROOT, NO_CAPS = Subject(), Subject(capabilities=0)


@pytest.mark.parametrize(
    ("way", "use", "subject", "at"),
    [
        (steps(0o755, 0o600), Use.READ, NO_CAPS, None),
        (steps(0o755, 0o600, uid=1000), Use.READ, NO_CAPS, "/1"),
        (steps(0o755, 0o640, uid=1000), Use.READ, NO_CAPS, None),  # by its group
        (steps(0o700, 0o644, uid=1000), Use.READ, NO_CAPS, "/0"),
        (steps(0o700, 0o600, uid=1000), Use.READ, ROOT, None),
        (steps(0o700, 0o600, uid=1000), Use.READ, Subject(capabilities=1 << 2), None),  # CAP_DAC_READ_SEARCH
        (steps(0o700, 0o600, uid=1000), Use.CONNECT, Subject(capabilities=1 << 2), "/1"),
        (steps(0o755, 0o755, uid=1000, last=0o040000), Use.WRITE, NO_CAPS, "/1"),
        (steps(0o755, 0o755, uid=1000, last=0o040000), Use.LIST, NO_CAPS, None),
        (steps(0o755, 0o660), Use.CONNECT, Subject(uid=7, groups=frozenset({7}), capabilities=0), "/1"),
    ],
)
def test_who_may_pass(way: Sequence[Step], use: Use, subject: Subject, at: str | None) -> None:
    denial = find_denial(way, use, subject)
    assert (denial and str(denial.path)) == at


def test_who_the_daemon_is() -> None:
    assert read_subject(STATUS.format(uid=7, caps=6)) == Subject(uid=7, capabilities=6)
    assert planned_subject({"CapabilityBoundingSet": "cap_net_admin cap_dac_override"}).capabilities == 1 << 1
    assert planned_subject({"CapabilityBoundingSet": "", "User": "daemon"}).uid != 0


def test_a_file_of_somebody_else(tmp_path: Path, root: Path, file: Path) -> None:
    file.chmod(0o000)
    verdict = only(seen(tmp_path, file))
    assert verdict.state is State.FAILED
    assert f"chown root {file}" in verdict.mend
    assert seen(tmp_path, file, caps=1 << 1) == ()


# ---- by the unit's properties


@pytest.mark.parametrize(
    ("properties", "path", "setting"),
    [
        (OURS, "/root/.kube/config", "ProtectHome=yes"),
        (OURS, "/run/user/0/x", "ProtectHome=yes"),
        (OURS, "/var/tmp/x", "PrivateTmp=yes"),
        (OURS, "/etc/lading/x", ""),
        (OURS, "/rootless", ""),
        ({"ProtectHome": "read-only"}, "/root/x", ""),
        ({"ProtectHome": "tmpfs", "BindReadOnlyPaths": "/root/k:/root/k:rbind"}, "/root/k", ""),
        ({"ProtectHome": "tmpfs", "BindReadOnlyPaths": "/root/k:/root/k:rbind"}, "/root/j", "ProtectHome=tmpfs"),
        ({"ProtectHome": "yes", "BindReadOnlyPaths": "/root/k:/root/k:rbind"}, "/root/k", "ProtectHome=yes"),
        ({"PrivateDevices": "yes"}, "/dev/x", "PrivateDevices=yes"),
        ({"InaccessiblePaths": '-/opt "/a b"'}, "/a b/c", "InaccessiblePaths=/a b"),
        ({"InaccessiblePaths": "-/opt"}, "/opt/x", "InaccessiblePaths=/opt"),
        ({"TemporaryFileSystem": "/var:ro"}, "/var/x", "TemporaryFileSystem=/var:ro"),
        ({"RootDirectory": "/srv/root", "BindPaths": "/a:/b:rbind"}, "/a", "RootDirectory=/srv/root"),
        ({"RootDirectory": "/srv/root", "BindPaths": "/a:/b:rbind"}, "/b", ""),
    ],
)
def test_the_setting_that_hides(properties: Mapping[str, str], path: str, setting: str) -> None:
    assert hiding(properties, Path(path)) == setting


@pytest.mark.parametrize(
    ("properties", "path", "setting"),
    [
        (OURS, "/data", "ProtectSystem=strict"),
        (OURS, "/var/lib/lading", ""),
        (OURS | {"ReadWritePaths": "-/data"}, "/data/x", ""),
        ({"ProtectSystem": "full"}, "/etc/x", "ProtectSystem=full"),
        ({"ProtectSystem": "yes"}, "/etc/x", ""),
        ({"ReadOnlyPaths": "/data", "ReadWritePaths": "/data/x"}, "/data/x/y", ""),
        ({"ReadOnlyPaths": "/data", "ReadWritePaths": "/data/x"}, "/data/y", "ReadOnlyPaths=/data"),
        ({"ProtectHome": "read-only"}, "/root/x", "ProtectHome=read-only"),
    ],
)
def test_the_setting_that_lets_nobody_write(properties: Mapping[str, str], path: str, setting: str) -> None:
    assert writing_refused(properties, Path(path)) == setting


def test_a_daemon_that_does_not_run_is_judged_by_its_unit(tmp_path: Path, file: Path) -> None:
    properties = {"MainPID": "0", "InaccessiblePaths": str(tmp_path), "CapabilityBoundingSet": ""}
    found = look(tmp_path / "proc", "lading-hooks", properties, [needed(file)])
    assert not found.inside
    assert "InaccessiblePaths" in only(decide_sandbox(found)).what
    written = look(tmp_path / "proc", "lading-hooks", OURS | {"PrivateTmp": "no"}, [needed(tmp_path, Use.WRITE)])
    assert "ReadWritePaths=" in only(decide_sandbox(written)).mend


# ---- the network

LOCAL = {"IPAddressDeny": "0.0.0.0/0 ::/0", "IPAddressAllow": "127.0.0.0/8 ::1/128"}
SERVER = ipaddress.ip_address("192.0.2.10")
RESOLVER = ipaddress.ip_address("192.0.2.53")


@pytest.mark.parametrize(
    ("properties", "server", "mend"),
    [
        (LOCAL, ServerSeen(host="192.0.2.10", addresses=(SERVER,)), "IPAddressAllow=192.0.2.10\\n"),
        (LOCAL, ServerSeen(host="api", addresses=(SERVER,), resolvers=(RESOLVER,)), "IPAddressAllow=192.0.2.10 192.0.2.53\\n"),
        (
            LOCAL | {"IPAddressAllow": "192.0.2.10/32"},
            ServerSeen(host="api", addresses=(SERVER,), resolvers=(RESOLVER,)),
            "IPAddressAllow=192.0.2.53\\n",
        ),
        (LOCAL | {"IPAddressAllow": "192.0.2.0/24"}, ServerSeen(host="api", addresses=(SERVER,), resolvers=(RESOLVER,)), None),
        (
            LOCAL | {"IPAddressAllow": "192.0.2.10/32"},
            ServerSeen(host="api", addresses=(SERVER, RESOLVER)),
            None,
        ),  # one will do
        (LOCAL, ServerSeen(host="localhost", addresses=(ipaddress.ip_address("::1"),)), None),
        ({}, ServerSeen(host="192.0.2.10", addresses=(SERVER,)), None),
        ({"PrivateNetwork": "yes"}, ServerSeen(host="192.0.2.10", addresses=(SERVER,)), "remove it there"),
        (LOCAL, ServerSeen(host="api", addresses=()), None),  # `api` says that there is no such name
    ],
)
def test_the_way_to_a_server(properties: Mapping[str, str], server: ServerSeen, mend: str | None) -> None:
    verdicts = list(decide_network(SandboxSeen(daemon="d", properties=properties, inside=True), server))
    assert [True for verdict in verdicts if mend and mend in verdict.mend] == [True] * len(verdicts)
    assert len(verdicts) == (mend is not None)


def test_its_mend_is_a_drop_in(tmp_path: Path) -> None:
    found = SandboxSeen(daemon="d", properties=LOCAL, inside=True)
    (verdict,) = decide_network(found, ServerSeen(host="192.0.2.10", addresses=(SERVER,)))
    commands = verdict.mend.replace("/etc/", f"{tmp_path}/etc/").partition("; systemctl")[0]
    for _ in range(2):  # with what is there already
        subprocess.run(["sh", "-c", commands], check=True)
    drop_in = tmp_path / "etc/systemd/system/d.service.d/20-ipaddressallow.conf"
    assert drop_in.read_text() == "[Service]\nIPAddressAllow=192.0.2.10\n" * 2


# ---- as a check


class _Host(DaemonView):
    async def well(self) -> Sequence[Verdict]:
        return [ok("here")]


@pytest.mark.parametrize(("properties", "expected"), [({}, [State.OK]), (None, [State.OK]), ({"hide": "1"}, [State.FAILED])])
def test_what_is_well_from_here_only_is_not_well(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str] | None, expected: list[State]
) -> None:
    given = None if properties is None else {"MainPID": "0", "InaccessiblePaths": str(file) if properties else ""}
    monkeypatch.setattr(read_sandbox, "read_properties", lambda _root, _unit: given)
    check: Check[_Host] = Check(
        name="c", group="g", what="w", why="y", look=lambda host: host.well(), inside=reaches(lambda _: [needed(file)])
    )

    async def scenario() -> list[State]:
        return [one.state for one in await look_at([check], _Host("lading-hooks", tmp_path), deadline_s=5)]

    assert asyncio.run(scenario()) == expected


def test_no_systemd_hides_nothing(tmp_path: Path) -> None:
    assert read_sandbox.read_properties(tmp_path, "lading-hooks.service") is None
    assert states(decide_sandbox(None)) == []
