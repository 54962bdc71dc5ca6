"""Install what the demo and the node tests need: `python -m simnode.install` uses what is there and gets the rest.

It takes a Debian machine. It installs containerd, runc, a static busybox, a C compiler, ip and nsenter. A containerd that is
there is never replaced (installing Debian's beside Docker's would remove Docker's), and no package is ever removed. It needs
root and apt-get. `newer_containerd` unpacks a later Debian's containerd and installs nothing. Source: apt-get(8) (indextargets,
--no-remove), apt.conf(5), sources.list(5).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lading.errors import HostError, LadingError, die
from simnode import progress
from simnode.containerd import Binaries, find_unpacked, read_version, search_path
from simnode.images import compile_c, default_cache, find_busybox

_SUITES = ("trixie", "sid")  # Debian 13 has containerd 1.7, sid has 2.x
_ARCHIVE_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_BUSYBOX = "busybox-static"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    programs: tuple[str, ...]
    packages: tuple[str, ...]


NEEDS = (
    Need(programs=("containerd", "ctr", "containerd-shim-runc-v2"), packages=("containerd",)),
    Need(programs=("runc",), packages=("runc",)),
    Need(programs=("cc",), packages=("gcc", "libc6-dev")),
    Need(programs=("ip",), packages=("iproute2",)),
    Need(programs=("nsenter", "mount"), packages=("util-linux", "mount")),
)

TEST_NEEDS = (
    # Not started, only run: systemd and journald in namespaces of their own, and what checks unit files.
    Need(programs=("systemctl", "systemd-analyze", "journalctl"), packages=("systemd",)),
    Need(programs=("jq",), packages=("jq",)),  # docs/install.md mentions it
    Need(programs=("strace",), packages=("strace",)),  # shows what ip(8) sends
    Need(programs=("promtool",), packages=("prometheus",)),  # checks rules, and tries them
    Need(programs=("debootstrap",), packages=("debootstrap",)),  # makes roots of other Debian suites
    Need(programs=("chromium", "chromedriver"), packages=("chromium", "chromium-driver")),  # opens central's page
)

VM_NEEDS = (
    Need(programs=("debootstrap",), packages=("debootstrap",)),  # makes a guest's root, and one with QEMU
    Need(programs=("mke2fs",), packages=("e2fsprogs",)),
    Need(programs=("ssh", "ssh-keygen"), packages=("openssh-client",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """Report why the requested version of containerd is not available."""

    cause: str


def missing_packages(needs: Sequence[Need] = NEEDS) -> list[str]:
    there = {program for need in needs for program in need.programs if shutil.which(program, path=search_path())}
    if "containerd" in there and not there.issuperset(NEEDS[0].programs):
        raise HostError(
            "cannot use the containerd of this machine: its ctr or containerd-shim-runc-v2 is missing",
            hint="install them from where this containerd came from; Debian's package would replace it",
        )
    packages = [package for need in needs if not there.issuperset(need.programs) for package in need.packages]
    if "cc" in there and not _links_statically():
        packages.append("libc6-dev")
    return packages


def install(needs: Sequence[Need] = NEEDS) -> None:
    """Install the packages. May be called again: what is there is not touched."""
    packages, busybox = missing_packages(needs), not _has_busybox()
    if not packages and not busybox:
        return
    wanted = ", ".join([*packages, *([_BUSYBOX] if busybox else [])])
    if shutil.which("apt-get") is None:
        raise HostError(f"cannot get {wanted}: this machine has no apt-get", hint="install their equivalents by hand")
    if os.geteuid() != 0:
        raise HostError(f"cannot get {wanted}: that needs root", hint="run the same command as root")
    _apt_get("reading the lists of Debian's packages", "update")
    if packages:
        _apt_get(f"installing {', '.join(packages)}", "install", "--yes", "--no-install-recommends", "--no-remove", *packages)
    if busybox:
        _unpack_package(_BUSYBOX, [], default_cache() / _BUSYBOX)  # an installation would replace an existing busybox


def newer_containerd(version_prefix: str, cache: Path | None = None) -> Binaries | Unavailable:
    """Return a containerd of that version from a later Debian, unpacked below the cache folder; or why there is none.

    Nothing is installed and the machine's package lists stay as they are. The second call finds what the first unpacked."""
    cache = cache or default_cache()
    unpacked = find_unpacked(version_prefix, cache)
    if unpacked:
        return unpacked
    try:
        with TemporaryDirectory(prefix="lading-apt-") as folder:
            return _unpack(version_prefix, cache, Path(folder))
    except (HostError, OSError) as e:
        return Unavailable(cause=str(e))


def _unpack(version_prefix: str, cache: Path, folder: Path) -> Binaries:
    options = _private_apt(folder)
    _run(["apt-get", *options, "update", "--quiet"])
    listed = _run(["apt-cache", *options, "madison", "containerd"])
    versions = [line.split("|")[1].strip() for line in listed.splitlines() if line.count("|") >= 2]
    wanted = next((v for v in versions if v.startswith(version_prefix)), None)
    if wanted is None:
        raise HostError(f"cannot find containerd {version_prefix}: the suites {', '.join(_SUITES)} have {', '.join(versions)}")
    target = cache / f"containerd-{wanted}"
    _unpack_package(f"containerd={wanted}", options, target)
    program = target / "usr/bin/containerd"
    version = read_version(program)
    if not version:
        shutil.rmtree(target)
        raise HostError(f"cannot use containerd {wanted}: it does not start on this machine")
    return Binaries(folder=program.parent, version=version)


def _unpack_package(package: str, options: list[str], target: Path) -> None:
    with TemporaryDirectory(prefix="lading-deb-") as folder:
        _run(["apt-get", *options, "-o", "APT::Sandbox::User=root", "download", "--quiet", package], folder=Path(folder))
        target.mkdir(parents=True, exist_ok=True)
        _run(["dpkg", "-x", *(str(deb) for deb in Path(folder).glob("*.deb")), str(target)])


def _has_busybox() -> bool:
    try:
        find_busybox(default_cache())
    except HostError:
        return False
    return True


def _links_statically() -> bool:
    try:
        compile_c("int main(void) { return 0; }")
    except HostError:
        return False
    return True


def _private_apt(folder: Path) -> list[str]:
    """Return apt's options for separate lists and sources, on the mirror that this machine's apt uses."""
    codename = _release().get("VERSION_CODENAME", "")
    targets = _run(["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)"])
    rows = (line.split() for line in targets.splitlines())
    mirror = next((row for row in rows if row[:2] == [codename, "main"]), None)
    if _release().get("ID") != "debian" or mirror is None:
        raise HostError("cannot find a newer containerd: this machine's apt has no Debian mirror")
    signed_by = f"[signed-by={_ARCHIVE_KEYS}] " if _ARCHIVE_KEYS.exists() else ""
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "cache/archives/partial").mkdir(parents=True)
    sources = folder / "sources.list"
    sources.write_text("".join(f"deb {signed_by}{mirror[2]} {suite} main\n" for suite in _SUITES))
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",  # apt's own user cannot write to this folder
        "APT::Update::Post-Invoke::": "",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _release() -> dict[str, str]:
    pairs = (line.partition("=") for line in Path("/etc/os-release").read_text().splitlines())
    return {key: value.strip('"') for key, _, value in pairs}


def _apt_get(what: str, *text: str) -> None:
    status = progress.run(what, ["apt-get", "--quiet", *text], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    if status:
        raise HostError(f"cannot install: apt-get {text[0]} ended with status {status}", hint="see its output above")


def _run(command: list[str], *, folder: Path | None = None) -> str:
    try:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout  # noqa: S603
    except FileNotFoundError as e:
        raise HostError(f"cannot run {command[0]}: it is not on this machine") from e
    except subprocess.CalledProcessError as e:
        raise HostError(f"cannot run {command[0]}: {e.stderr.strip()}") from e


def main() -> None:
    """Run `python -m simnode.install [--tests | --vm] [VERSION]`: what the demo (the tests, the guests) need; with a version,
    also that containerd."""
    more = {"--tests": TEST_NEEDS, "--vm": VM_NEEDS}
    try:
        install((*NEEDS, *(need for word in sys.argv[1:] for need in more.get(word, ()))))
        for version in (word for word in sys.argv[1:] if word not in more):
            result = newer_containerd(version)
            if isinstance(result, Unavailable):
                raise HostError(result.cause)
            print(f"containerd {result.version} in {result.folder}")
    except LadingError as e:
        die(e)


if __name__ == "__main__":
    main()
