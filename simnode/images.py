"""Build container images without a registry: OCI image layouts as tar files, made of a few static binaries.

`pause` holds a pod's namespaces. `busybox` has a shell, and two small programs: `pause` as a container that ends at
once on SIGTERM, and `try-open`, which prints the errno of opening a device. `cuda` adds the environment of CUDA images, the
CUDA program `gpu-work`, and the C library that it is linked with. The same inputs give the same bytes; images are built once
and kept in a cache folder. A machine without busybox, or without a C compiler with a static libc, is refused.
Source: OCI image-spec 1.0 (image-layout.md, manifest.md); containerd names an image by `io.containerd.image.name`.
"""

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lading.errors import HostError

PAUSE = "localhost/lading/pause:1"
BUSYBOX = "localhost/lading/busybox:1"
CUDA = "localhost/lading/cuda:1"

_INSTALL = "run: python -m simnode.install"
_PATH = "PATH=/bin:/usr/bin"
_GPU_WORK = Path(__file__).parent / "gpu_work.c"
WORK_PTX = Path(__file__).parent / "work.ptx"  # the kernel of gpu-work on a card
# glibc's names by which programs and libraries ask for it; before 2.34 threads and the rest were libraries of their own.
_GLIBC = ("libc.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

_PAUSE_C = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void down(int s) { (void)s; _exit(0); }
static void reap(int s) { (void)s; while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) {
  struct sigaction a = {0};
  a.sa_handler = down; sigaction(SIGINT, &a, 0); sigaction(SIGTERM, &a, 0);
  a.sa_handler = reap; a.sa_flags = SA_NOCLDSTOP; sigaction(SIGCHLD, &a, 0);
  for (;;) pause();
}
"""

_TRY_OPEN_C = """\
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    int fd = open(argv[i], O_RDWR | O_NONBLOCK);
    printf("%d\\n", fd < 0 ? errno : 0);
    if (fd >= 0) close(fd);
  }
  return 0;
}
"""

_ETC_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"  # noqa: S105 -- /etc/passwd, without one
_ETC_GROUP = "root:x:0:\nnobody:x:65534:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Represent one file of an image: a regular file, or a symbolic link to `link`."""

    content: bytes = b""
    mode: int = 0o644
    link: str = ""


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lading"


def build_images(cache: Path) -> list[Path]:
    """Return the image tars; build those that the cache folder lacks. Several processes may call it at once."""
    busybox = find_busybox(cache)
    recipe = _PAUSE_C + _TRY_OPEN_C + read_gpu_work() + platform.machine() + Path(__file__).read_text()
    key = hashlib.sha256(recipe.encode() + busybox.read_bytes()).hexdigest()[:16]
    tars = [cache / "images" / f"{name}-{key}.tar" for name in ("pause", "busybox", "cuda")]
    if not all(tar.exists() for tar in tars):
        pause, try_open = compile_c(_PAUSE_C), compile_c(_TRY_OPEN_C)
        pause_files = {"pause": Entry(content=pause, mode=0o755)}
        _write(tars[0], render_image(PAUSE, pause_files, {"Entrypoint": ["/pause"]}))
        files = _busybox_files(busybox, pause, try_open)
        _write(tars[1], render_image(BUSYBOX, files, {"Cmd": ["sh"]}))
        gpu_work = compile_c(read_gpu_work(), static=False)
        cuda = files | _glibc_files(gpu_work) | {"bin/gpu-work": Entry(content=gpu_work, mode=0o755)}
        _write(tars[2], render_image(CUDA, cuda, {"Cmd": ["sh"], "Env": [_PATH, "NVIDIA_VISIBLE_DEVICES=all"]}))
    return tars


def read_gpu_work() -> str:
    """Return the C source of gpu-work, with the text of its kernel."""
    return f"static const char kernel_ptx[] = {json.dumps(WORK_PTX.read_text())};\n{_GPU_WORK.read_text()}"


def compile_c(source: str, *, static: bool = True) -> bytes:
    """Compile one C file to an executable."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise HostError("cannot build the images: there is no C compiler", hint=_INSTALL)
    linking = ["-static"] if static else []
    with tempfile.TemporaryDirectory(prefix="lading-cc-") as folder:
        # -Wl,--build-id=none and a fixed file name: the same bytes every time
        done = subprocess.run(  # noqa: S603 -- the compiler of this machine on the text above
            [compiler, *linking, "-Os", "-s", "-Wl,--build-id=none", "-x", "c", "-", "-o", f"{folder}/program"],
            input=source.encode(),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise HostError(f"cannot build the images: {done.stderr.decode(errors='replace').strip()}", hint=_INSTALL)
        return Path(folder, "program").read_bytes()


def render_image(name: str, files: Mapping[str, Entry], config: Mapping[str, object]) -> bytes:
    """Render an OCI image layout as a tar: one uncompressed layer, everything owned by root, every date zero."""
    layer = _render_layer(files)
    blobs: dict[str, bytes] = {}

    def add(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(content)}

    target = {"architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
    layer_ref = add(layer, "layer.v1.tar")
    image = {
        **target,
        "config": {"Env": [_PATH], **config},
        "rootfs": {"type": "layers", "diff_ids": [layer_ref["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add(_json(image), "config.v1+json"),
        "layers": [layer_ref],
    }
    named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {
        "schemaVersion": 2,
        "manifests": [{**add(_json(manifest), "manifest.v1+json"), "platform": target, "annotations": named}],
    }
    layout = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": _json(index)}
    layout |= {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    return _render_tar({path: Entry(content=content) for path, content in layout.items()}, folders=())


def _busybox_files(busybox: Path, pause: bytes, try_open: bytes) -> dict[str, Entry]:
    applets = subprocess.run([str(busybox), "--list"], capture_output=True, check=True, text=True)  # noqa: S603
    files = {f"bin/{name}": Entry(link="busybox") for name in applets.stdout.split()}
    return files | {
        "bin/busybox": Entry(content=busybox.read_bytes(), mode=0o755),
        "bin/pause": Entry(content=pause, mode=0o755),
        "bin/try-open": Entry(content=try_open, mode=0o755),
        "etc/passwd": Entry(content=_ETC_PASSWD.encode()),
        "etc/group": Entry(content=_ETC_GROUP.encode()),
    }


def _glibc_files(program: bytes) -> dict[str, Entry]:
    """Return the C library of this machine, in the folders where its own loader looks for it, and the program's loader."""
    loader = re.search(rb"/lib(?:64)?/ld-linux[-\w]*\.so\.\d", program)
    folder = Path(_ask_compiler("-print-file-name=libc.so.6")).resolve().parent
    if loader is None or not folder.is_absolute():
        raise HostError("cannot build the images: the C compiler does not link with glibc", hint=_INSTALL)
    at = Path(loader[0].decode())
    libraries = {f"lib/{_ask_compiler('-print-multiarch')}/{name}": folder / name for name in _GLIBC}
    return {path: Entry(content=file.read_bytes(), mode=0o755) for path, file in {str(at)[1:]: at, **libraries}.items()}


def _ask_compiler(option: str) -> str:
    return subprocess.run(["cc", option], capture_output=True, check=True, text=True).stdout.strip()  # noqa: S603, S607


def find_busybox(cache: Path) -> Path:
    """Return a static busybox: the machine's, or the one that `simnode.install` unpacked."""
    installed = shutil.which("busybox")
    for busybox in (*([Path(installed)] if installed else []), *cache.glob("busybox-static/**/bin/busybox")):
        # An ELF file that names a program interpreter needs shared libraries, which the image does not have.
        if not any(interpreter in busybox.read_bytes() for interpreter in (b"/ld-linux", b"/ld-musl")):
            return busybox
    raise HostError("cannot build the images: there is no static busybox", hint=_INSTALL)


def _render_layer(files: Mapping[str, Entry]) -> bytes:
    folders = {str(parent) for path in files for parent in Path(path).parents if str(parent) != "."}
    return _render_tar(files, folders=sorted(folders | {"dev", "etc", "proc", "root", "sys", "tmp"}))


def _render_tar(files: Mapping[str, Entry], *, folders: tuple[str, ...] | list[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in folders:
            info = tarfile.TarInfo(path)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755
            tar.addfile(info)
        for path, entry in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.mode, info.size = entry.mode, len(entry.content)
            if entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            tar.addfile(info, io.BytesIO(entry.content))
    return out.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _write(path: Path, content: bytes) -> None:
    """Write by rename, so that another process never reads half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as out:
        out.write(content)
    Path(out.name).replace(path)
