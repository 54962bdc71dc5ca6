"""Build the images of central and of the nodes without a registry and without a daemon: `python deploy/image/build.py --wheel
FILE` prints the path of the one tar that has both.

It takes a Debian machine's apt, the wheel, and a package index (or --packages DIR). It writes a tar that is an OCI layout and
that `docker load` reads, in three layers: Debian's Python, the pinned packages, Lading, so that another version of Lading is a
small layer. Both images have these layers, and differ in what they run and as which user. They have no shell, and run with a
read-only root. The same inputs give the same bytes: sorted paths, one date, fixed modes. It needs apt-get and dpkg-deb, and no
root.
Source: OCI image-spec 1.0 (image-layout.md, manifest.md, layer.md); what `docker save` writes since 25; /var/lib/dpkg/status.d
as in distroless images, where scanners look.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

# Their dependencies are added; libstdc++ is for numpy and grpcio, base-files says which Debian this is.
DEBIAN = ("base-files", "python3-minimal", "libpython3-stdlib", "libstdc++6")
# Packages that apt adds for scripts that run at an installation; here no such script runs.
NOT_NEEDED = ("perl-base", "dpkg", "tar", "debconf", "mawk")
LEFT_OUT = ("usr/share/man", "usr/share/locale", "usr/share/lintian", "usr/share/info", "var/cache")
VENV = "opt/lading"
SHARED = "share/lading"  # units and the installer, for `lading-hooks install-proxy`
USER = "65532"  # the user in deploy/central/deployment.yaml
IMAGES = {"lading-central": USER, "lading-node": "0"}  # and their users; on a node only root reaches devices and the runtime
ENTRYPOINTS = {"lading-central": "lading-central", "lading-node": "lading-hooks"}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
FIRST_DATE = 315532800  # 1980, without SOURCE_DATE_EPOCH

ETC = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\nlading:x:{USER}:{USER}:lading:/:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nlading:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
SCRIPT = "#!/{venv}/bin/python3\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    wheel: Path
    packages: Path | None  # a folder of wheels, in place of an index
    date: int


def build(sources: Sources, out: Path) -> Path:
    version = sources.wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory(prefix="lading-image-") as folder:
        root = Path(folder, "root")
        observed: set[str] = set()
        layers = []
        for number, fill in enumerate((fill_debian, fill_packages, fill_lading)):
            fill(root, sources)
            layer = Path(folder, f"{number}.tar")
            write_layer(layer, root, but=observed, date=sources.date)
            observed |= {path.relative_to(root).as_posix() for path in root.rglob("*")}
            layers.append(layer)
        out.mkdir(parents=True, exist_ok=True)
        archive = out / f"lading-images-{version}.tar"
        write_images(archive, layers, version=version, date=sources.date)
    return archive


# ---- what goes in


def fill_debian(root: Path, sources: Sources) -> None:
    for name in ("bin", "sbin", "lib", "lib64"):  # every Debian since 12 has these links
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory(prefix="lading-debs-") as folder:
        for deb in download(Path(folder)):
            files = Path(folder, "files.tar")
            with files.open("wb") as out:
                subprocess.run(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=out, check=True)  # noqa: S603, S607
            run("tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(root), "-f", str(files))
            status = root / "var/lib/dpkg/status.d" / deb.name.split("_")[0]
            status.parent.mkdir(parents=True, exist_ok=True)
            status.write_text(run("dpkg-deb", "--field", str(deb)))
    for name in LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    for path in (root / "usr/share/doc").rglob("*"):  # only the licenses stay of the documentation
        if path.name != "copyright" and not path.is_dir():
            path.unlink()
    for name, text in ETC.items():
        (root / name).write_text(text)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    compile_modules(root, "usr/lib/python3*")


def download(folder: Path) -> list[Path]:
    """Download the packages and all their dependencies, as for a machine that has none. Install nothing; return the files."""
    (folder / "partial").mkdir()
    (folder / "status").write_text("")
    options = {"Dir::State::status": folder / "status", "Dir::Cache::archives": folder, "Debug::NoLocking": "1"}
    settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    if os.geteuid() == 0:
        settings += ["-o", "APT::Sandbox::User=root"]  # apt's own user cannot write in this folder
    asked = [
        "apt-get",
        *settings,
        "install",
        "--yes",
        "--quiet",
        "--quiet",
        "--download-only",
        "--no-install-recommends",
        *DEBIAN,
    ]
    if subprocess.run(asked, check=False, capture_output=True).returncode:  # noqa: S603 -- the lists are old or missing
        run("apt-get", "update", "--quiet", "--quiet")
        run(*asked)
    return [deb for deb in sorted(folder.glob("*.deb")) if deb.name.split("_")[0] not in NOT_NEEDED]


def fill_packages(root: Path, sources: Sources) -> None:
    """Create a virtual environment as `python3 -m venv` does, but without pip."""
    version = python_of(root)
    (root / VENV / "bin").mkdir(parents=True)
    (root / VENV / "bin/python3").symlink_to("/usr/bin/python3")
    (root / VENV / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    with tempfile.TemporaryDirectory(prefix="lading-wheel-") as folder:
        shutil.unpack_archive(sources.wheel, folder, "zip")
        (requirements,) = Path(folder).glob("*.data/data/share/lading/requirements.txt")
        index = ["--no-index", "--find-links", str(sources.packages)] if sources.packages else []
        install(root, "--require-hashes", "--only-binary=:all:", "--python-version", version, *index, "-r", str(requirements))
    compile_modules(root, VENV)


def fill_lading(root: Path, sources: Sources) -> None:
    site = install(root, "--no-deps", str(sources.wheel))
    (entry_points,) = site.glob("lading-*.dist-info/entry_points.txt")
    for line in entry_points.read_text().splitlines():
        command, _, target = line.partition(" = ")
        if target:
            module, _, function = target.partition(":")
            (root / VENV / "bin" / command).write_text(SCRIPT.format(venv=VENV, module=module, function=function))
            (root / VENV / "bin" / command).chmod(0o755)
    packages = (entry_points.parent / "top_level.txt").read_text().split()
    compile_modules(root, f"{VENV}/lib/python*/site-packages/[a-z]*", packages=packages)


def install(root: Path, *what: str) -> Path:
    site = root / VENV / "lib" / f"python{python_of(root)}" / "site-packages"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile")
    run(*pip, "--target", str(site), *what)
    if (site / SHARED).exists():
        (root / VENV / SHARED).parent.mkdir()
        (site / SHARED).rename(root / VENV / SHARED)
    for name in ("bin", "share"):  # for the machine that pip runs on
        shutil.rmtree(site / name, ignore_errors=True)
    for record in site.glob("*.dist-info/*"):  # where pip found it, and when
        if record.name in ("direct_url.json", "INSTALLER", "REQUESTED", "RECORD"):
            record.unlink()
    return site


def python_of(root: Path) -> str:
    return (root / "usr/bin/python3").readlink().name.removeprefix("python")


def compile_modules(root: Path, pattern: str, *, packages: Sequence[str] = ()) -> None:
    """Compile with the image's own Python and loader: with a read-only root a start could not store what it compiles."""
    (loader,) = (path for path in root.glob("usr/lib/*/ld-linux-*.so.*") if not path.is_symlink())
    folders = [str(path) for path in sorted(root.glob(pattern)) if not packages or path.name in packages]
    python = [str(loader), "--library-path", f"{loader.parent}:{root}/usr/lib", str(root / f"usr/bin/python{python_of(root)}")]
    # unchecked-hash: the compiled files contain no date
    modes = ["-qq", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
    argv = [*python, "-m", "compileall", *modes, *folders]
    # PYTHONDONTWRITEBYTECODE: what this Python imports meanwhile must not be written either.
    env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0", "PATH": os.environ["PATH"]}
    # Without check: a package may contain templates that are not valid Python; they stay as they are.
    subprocess.run(argv, check=False, env=env, stdout=subprocess.DEVNULL)  # noqa: S603 -- the Python unpacked above


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 -- tools of this machine
    if done.returncode:
        sys.exit(f"error: cannot build the images: {' '.join(argv[:3])}: {done.stderr.strip()}")
    return str(done.stdout)


# ---- writing it


def write_layer(path: Path, root: Path, *, but: set[str], date: int) -> None:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for entry in sorted(root.rglob("*")):
            name = entry.relative_to(root).as_posix()
            if name in but:
                continue
            info = tar.gettarinfo(str(entry), name)
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = date
            if info.islnk():
                info.type, info.size = tarfile.REGTYPE, entry.stat().st_size
            if info.isreg():
                with entry.open("rb") as content:
                    tar.addfile(info, content)
            else:
                tar.addfile(info)


def write_images(path: Path, layers: list[Path], *, version: str, date: int) -> None:
    blobs: dict[str, bytes | Path] = {}

    def add(content: bytes | Path, media_type: str) -> dict[str, object]:
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": size}

    target = {"architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
    media_type = "application/vnd.oci.image.manifest.v1+json"
    tars = [add(layer, "layer.v1.tar") for layer in layers]
    manifests, for_docker = [], []
    for name, user in IMAGES.items():
        config = add(
            as_json(
                {
                    **target,
                    "created": datetime.fromtimestamp(date, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "config": {
                        "User": f"{user}:{user}",
                        "WorkingDir": "/",
                        "Entrypoint": [f"/{VENV}/bin/{ENTRYPOINTS[name]}"],
                        "Env": [f"PATH=/{VENV}/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"],
                        "Labels": {"org.opencontainers.image.title": name, "org.opencontainers.image.version": version},
                    },
                    "rootfs": {"type": "layers", "diff_ids": [tar["digest"] for tar in tars]},
                }
            ),
            "config.v1+json",
        )
        manifest = add(
            as_json({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": tars}), "manifest.v1+json"
        )
        full = f"docker.io/library/{name}:{version}"  # the full form of the short name for kubelet and docker
        named = {"io.containerd.image.name": full, "org.opencontainers.image.ref.name": version}
        manifests.append({**manifest, "platform": target, "annotations": named})
        for_docker.append(
            {"Config": blob_of(config), "RepoTags": [f"{name}:{version}"], "Layers": [blob_of(tar) for tar in tars]}
        )
    files: dict[str, bytes | Path] = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": as_json({"schemaVersion": 2, "manifests": manifests}),
        "manifest.json": as_json(for_docker),
        **blobs,
    }
    write_archive(path, files, date)


def write_archive(path: Path, files: Mapping[str, bytes | Path], date: int) -> None:
    part = path.with_suffix(".part")
    with tarfile.open(part, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = content.stat().st_size if isinstance(content, Path) else len(content)
            info.mtime = date
            with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as file:
                tar.addfile(info, file)
    part.replace(path)


def as_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def blob_of(descriptor: Mapping[str, object]) -> str:
    return f"blobs/{str(descriptor['digest']).replace(':', '/')}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the images of central and of the nodes as one tar, and print its path.")
    parser.add_argument("--wheel", type=Path, required=True, help="lading-VERSION-py3-none-any.whl, from deploy/wheel.py")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where the tar goes (default: dist)")
    parser.add_argument("--packages", type=Path, help="a folder of wheels to take in place of a package index")
    args = parser.parse_args()
    for program in ("apt-get", "dpkg-deb", "tar"):
        if shutil.which(program) is None:
            sys.exit(
                f"error: cannot build the images: there is no {program}\nhint:  build it on Debian, or from any Python image "
                "with pip: docs/install.md"
            )
    os.umask(0o022)  # the layers contain the modes
    date = int(os.environ.get("SOURCE_DATE_EPOCH", FIRST_DATE))
    print(build(Sources(wheel=args.wheel, packages=args.packages, date=date), args.out))


if __name__ == "__main__":
    main()
