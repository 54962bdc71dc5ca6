"""Run the compiled hook on made-up roots, and read the caches that it makes with glibc's own ldconfig and loader."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from hooks.host.ldcache import list_libraries, make_hook, without_compat
from hooks.model.cdi import Hook
from hooks.vendors.nvidia.ldcache.build import build
from lading.compiling import find_compiler
from tests.fakes.guard import SANITIZED, sanitizers_work
from tests.fakes.needs import need

LDCONFIG: Final = shutil.which("ldconfig", path="/sbin:/usr/sbin") or ""
LOADER: Final = Path("lib64/ld-linux-x86-64.so.2")
LIB: Final = "/usr/lib/x86_64-linux-gnu"
CUDA: Final = f"{LIB}/libcuda.so.1"
DRIVER: Final = "550.127.05"
MAGIC: Final = b"glibc-ld.so.cache1.1"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the hook, with sanitizers if the compiler has them: an invalid memory access then ends the program."""
    need(shutil.which("cc") is not None, "a C compiler")
    need(os.uname().machine == "x86_64" and bool(LDCONFIG), "glibc's ldconfig of x86-64")
    folder = tmp_path_factory.mktemp("ldcache")
    build(folder / "hook", find_compiler(), flags=SANITIZED if sanitizers_work(folder) else ("-O1",))
    return folder / "hook"


class Bundle:
    """Make a container's root, and run the hook on it as a runtime does."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.program = folder, program
        self.root = folder / "rootfs"
        (self.root / "etc").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"root": {"readonly": True, "path": "rootfs"}, "mounts": [{"a": 1}]}))
        self.cache = self.root / "etc/ld.so.cache"

    def add_loader(self) -> None:
        (self.root / LOADER.parent).mkdir(exist_ok=True)
        (self.root / LOADER).touch()

    def run(
        self, *arguments: str, state: bytes | None = None, before: Sequence[str] = ()
    ) -> "subprocess.CompletedProcess[bytes]":
        given = json.dumps({"ociVersion": "1.0.2", "pid": 1, "bundle": str(self.folder)}).encode() if state is None else state
        command = [*before, str(self.program), *(arguments or ("--driver", DRIVER, CUDA))]
        env = {"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0"}  # the kernel frees the memory at the end
        return subprocess.run(command, input=given, capture_output=True, check=False, timeout=60, env=env)

    def complete(self, *arguments: str, before: Sequence[str] = ()) -> None:
        done = self.run(*arguments, before=before)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def bundle(tmp_path: Path, program: Path) -> Bundle:
    return Bundle(tmp_path, program)


def listed(cache: Path) -> list[tuple[str, str]]:
    """Return the names and paths of a cache, in its order, as ldconfig prints them."""
    output = subprocess.run([LDCONFIG, "-p", "-C", cache], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^\t(\S+) \(.*\) => (\S+)$", output, re.MULTILINE)


def make_cache(path: Path, *options: str) -> bytes:
    """Make a cache of some of this machine's libraries, in one of ldconfig's formats."""
    subprocess.run([LDCONFIG, *options, "-X", "-C", path, "-f", "/dev/null", LIB], capture_output=True, check=True)
    return path.read_bytes()


@pytest.mark.parametrize("style", ["new", "compat"])
def test_the_drivers_libraries_come_first_and_the_images_stay_in_the_loaders_order(bundle: Bundle, style: str) -> None:
    make_cache(bundle.cache, "-c", style)
    before = listed(bundle.cache)
    assert len(before) > 20
    names = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libc.so.6", "libz.so.1", "lib2.so.10", "lib2.so.9")
    ours = [f"/driver/{name}" for name in names]
    bundle.complete("--driver", DRIVER, *ours)
    after = listed(bundle.cache)
    assert sorted(after) == sorted([*before, *zip(names, ours, strict=True)])
    assert next(path for name, path in after if name == "libc.so.6") == "/driver/libc.so.6"
    bundle.complete("--driver", DRIVER, *ours)  # the container is started again
    assert listed(bundle.cache) == after
    assert bundle.cache.stat().st_mode & 0o777 == 0o644


def find_in(cache: Path, names: Sequence[str]) -> dict[str, str]:
    """Ask this machine's loader for libraries with another cache: return the paths at which it tries them first."""
    source = "import ctypes,sys\nfor name in sys.argv[1:]:\n    try: ctypes.CDLL(name)\n    except OSError: pass\n"
    script = f"mount --bind {cache} /etc/ld.so.cache && exec env LD_DEBUG=libs python3 -c '{source}' {' '.join(names)}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=True)
    found = {}
    for block in done.stderr.split("find library=")[1:]:
        name = block.partition(" ")[0]
        match = re.search(r"search cache=\S+\n(?:.*\n)?.*trying file=(\S+)", block)
        found[name] = match[1] if match else ""
    return {name: found[name] for name in names}


def test_the_loader_finds_each_name_by_its_binary_search(bundle: Bundle) -> None:
    need(os.geteuid() == 0, "root")
    make_cache(bundle.cache)
    numbers = random.Random(1)  # noqa: S311 -- names of a test
    names = sorted({f"lib{numbers.choice('abcuz')}{numbers.randrange(300)}-x{numbers.randrange(9)}.so.{n}" for n in range(120)})
    names += ["libcuda.so.1", "lib99999999999.so", "libz.so.10", "libz.so.9"]
    bundle.complete("--driver", DRIVER, *(f"/driver/{name}" for name in names))
    assert find_in(bundle.cache, names) == {name: f"/driver/{name}" for name in names}


def test_the_names_of_hwcaps_stay_with_their_libraries(bundle: Bundle) -> None:
    folder = bundle.folder / "libraries"
    inner = folder / "glibc-hwcaps/x86-64-v2"
    inner.mkdir(parents=True)
    for place in (folder, inner):
        shutil.copy(Path(LIB, "libz.so.1").resolve(), place / "libz.so.1")
    subprocess.run([LDCONFIG, "-C", bundle.cache, "-f", "/dev/null", folder], capture_output=True, check=True)
    bundle.complete()
    output = subprocess.run([LDCONFIG, "-p", "-C", bundle.cache], capture_output=True, text=True, check=True).stdout
    assert f'libz.so.1 (libc6,x86-64, hwcap: "x86-64-v2") => {inner}/libz.so.1' in output
    assert ("libcuda.so.1", CUDA) in listed(bundle.cache)


def test_a_damaged_cache_keeps_its_readable_entries(bundle: Bundle) -> None:
    whole = make_cache(bundle.cache)
    before = listed(bundle.cache)
    bundle.cache.write_bytes(whole[:52] + b"\xff\xff\xff\x7f" + whole[56:])  # the first entry's name
    bundle.complete()
    assert sorted(listed(bundle.cache)) == sorted([*before[1:], ("libcuda.so.1", CUDA)])


def header(count: int, *, size: int = 0) -> bytes:
    return MAGIC + struct.pack("<IIBxxxI12x", count, size, 2, 0)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, b"garbage" * 99, header(9), header(2**31), b"ld.so-1.7.0\0\xff\xff\xff\xff" + b"\0" * 99, MAGIC],
)
def test_garbage_is_replaced_by_the_drivers_libraries_alone(bundle: Bundle, content: bytes) -> None:
    bundle.cache.write_bytes(content)
    bundle.complete()
    assert listed(bundle.cache) == [("libcuda.so.1", CUDA)]


def test_a_cache_with_random_damage_never_breaks_the_hook_or_the_result(bundle: Bundle) -> None:
    """Damage bytes of a real cache, and cut it off. Each result has valid entries, with the driver's library among them."""
    whole = make_cache(bundle.cache, "-c", "compat")[:6000]
    numbers = random.Random(2)  # noqa: S311 -- damage that can be repeated
    for _ in range(60):
        content = bytearray(whole[: numbers.randrange(len(whole))] if numbers.random() < 0.3 else whole)
        for _ in range(numbers.choice([1, 4, 40])):
            if content:
                place = numbers.randrange(min(len(content), numbers.choice([64, 6000])))
                content[place] = numbers.choice([0, 1, 0xFF, numbers.randrange(256)])
        bundle.cache.write_bytes(content)
        bundle.complete()
        rendered = bundle.cache.read_bytes()
        (count,) = struct.unpack_from("<I", rendered, 20)
        entries = [struct.unpack_from("<iIII", rendered, 48 + 24 * i) for i in range(count)]
        texts = [rendered[at : rendered.index(0, at)] for entry in entries for at in entry[1:3]]
        assert CUDA.encode() in texts


@pytest.mark.parametrize(
    ("loader", "cache", "made"),
    [(False, False, False), (True, False, True), (False, True, True)],
    ids=["musl or static", "distroless", "no loader of this name"],
)
def test_an_image_without_glibc_stays_as_it_is(bundle: Bundle, loader: bool, cache: bool, made: bool) -> None:
    if loader:
        bundle.add_loader()
    if cache:
        make_cache(bundle.cache)
    bundle.complete()
    assert bundle.cache.exists() is made
    assert [path.name for path in (bundle.root / "etc").iterdir()] == (["ld.so.cache"] if made else [])


def test_an_image_without_etc_stays_as_it_is(bundle: Bundle) -> None:
    bundle.add_loader()
    (bundle.root / "etc").rmdir()
    bundle.complete()
    assert [path.name for path in bundle.root.iterdir()] == ["lib64"]


def test_no_symlink_of_the_image_leads_out_of_the_root(bundle: Bundle) -> None:
    outside = bundle.folder / "outside"
    outside.mkdir()
    host = make_cache(outside / "ld.so.cache")
    bundle.add_loader()
    (bundle.root / "etc").rmdir()
    for target in (outside, "/proc/self/root" + str(outside), "../../outside", "/"):
        link = bundle.root / "etc"
        link.symlink_to(target)
        bundle.run()
        link.unlink()
        assert [path.name for path in outside.iterdir()] == ["ld.so.cache"]
    (bundle.root / "etc").mkdir()
    bundle.cache.symlink_to(outside / "ld.so.cache")
    bundle.complete()
    assert (outside / "ld.so.cache").read_bytes() == host
    assert listed(bundle.cache) == [("libcuda.so.1", CUDA)]
    assert not bundle.cache.is_symlink()


def test_a_link_inside_the_root_is_followed_there(bundle: Bundle) -> None:
    bundle.add_loader()
    (bundle.root / "etc").rename(bundle.root / "real-etc")
    (bundle.root / "etc").symlink_to("/real-etc")
    bundle.complete()
    assert listed(bundle.root / "real-etc/ld.so.cache") == [("libcuda.so.1", CUDA)]


def test_a_volume_is_not_written_to(bundle: Bundle) -> None:
    need(os.geteuid() == 0, "root")
    bundle.add_loader()
    host = bundle.folder / "host-etc"
    host.mkdir()
    content = make_cache(host / "ld.so.cache")
    volume = ["unshare", "-m", "sh", "-c", f'mount --bind {host} {bundle.root}/etc && "$@"', "sh"]
    bundle.complete(before=volume)
    assert (host / "ld.so.cache").read_bytes() == content
    assert [path.name for path in host.iterdir()] == ["ld.so.cache"]
    make_cache(bundle.cache)
    file = ["unshare", "-m", "sh", "-c", f'mount --bind {host}/ld.so.cache {bundle.cache} && "$@"', "sh"]
    bundle.complete(before=file)
    assert (host / "ld.so.cache").read_bytes() == content


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (b"", b"cannot read the container's state on standard input: Invalid argument"),
        (b'{"bundle": "/no/such"}', b"cannot read /no/such/config.json: No such file or directory"),
        (b'{"bundle": "/no/such"', b"cannot read the container's state"),
        (b"[" * 100_000, b"cannot read the container's state"),
        (b" " * (17 << 20), b"cannot read the container's state on standard input: File too large"),
    ],
)
def test_an_error_names_its_place(bundle: Bundle, state: bytes, says: bytes) -> None:
    done = bundle.run(state=state)
    assert done.returncode == 1
    assert says in done.stderr


def test_before_linux_5_6_only_a_container_with_a_share_is_refused(tmp_path: Path) -> None:
    """Compile the hook with a system call that this kernel does not have."""
    need(shutil.which("cc") is not None, "a C compiler")
    build(tmp_path / "hook", find_compiler(), flags=("-O1", "-DOPENAT2=100000"))
    bundle = Bundle(tmp_path / "bundle", tmp_path / "hook")
    content = make_cache(bundle.cache)
    for arguments, status in ((("--driver", DRIVER, CUDA), 0), (("--driver", DRIVER, "--no-compat", CUDA), 1)):
        done = bundle.run(*arguments)
        assert done.returncode == status
        assert done.stderr == b"lading-ldcache: cannot open folders of the image without openat2: Function not implemented\n"
    assert bundle.cache.read_bytes() == content


def test_arguments_are_checked(bundle: Bundle) -> None:
    for arguments in (("--driver",), ("--driver", ""), ("a", "b", "c"), ("--driver", DRIVER, "libcuda.so.1")):
        done = bundle.run(*arguments)
        assert (done.returncode, done.stderr[:6]) == (2, b"usage:")


# ---- CUDA Forward Compatibility


class Image(Bundle):
    """Make a root with CUDA, and run the hook in a mount namespace of its own."""

    def add_compat(self, cuda: str, version: str, *, below: str = "") -> None:
        folder = self.root / f"usr/local/{cuda}/compat" / below
        folder.mkdir(parents=True)
        for name in (f"libcuda.so.{version}", "libcuda.so.1", "libnvidia-nvvm.so.4", "NOTICE"):
            (folder / name).touch()
        (self.root / "usr/local/cuda").unlink(missing_ok=True)
        (self.root / "usr/local/cuda").symlink_to(cuda)

    def see(self, *arguments: str) -> set[str]:
        """Return the files of libcuda that the container sees."""
        script = f'"$@" </dev/stdin && find {self.root}/usr/local -type f -printf "/usr/local/%P\\n"'
        done = self.run(*arguments, before=["unshare", "-m", "sh", "-c", script, "sh"])
        assert (done.returncode, done.stderr) == (0, b"")
        return {line for line in done.stdout.decode().splitlines() if "libcuda" in line}


@pytest.fixture
def image(tmp_path: Path, program: Path) -> Image:
    need(os.geteuid() == 0, "root")
    image = Image(tmp_path, program)
    image.add_loader()
    return image


def files(cuda: str, version: str, below: str = "") -> set[str]:
    return {f"/usr/local/{cuda}/compat/{below}{name}" for name in (f"libcuda.so.{version}", "libcuda.so.1")}


def test_a_libcuda_that_is_not_newer_than_the_driver_is_hidden(image: Image) -> None:
    image.add_compat("cuda-12.4", "550.54.15")
    image.add_compat("cuda-12.2", "535.104.05", below="lib.real")
    assert image.see("--driver", DRIVER, CUDA) == set()
    assert listed(image.cache) == [("libcuda.so.1", CUDA)]
    assert (image.root / "usr/local/cuda-12.4/compat/libcuda.so.1").exists()  # the image is as it was


def test_the_newest_libcuda_of_the_image_goes_before_the_drivers(image: Image) -> None:
    image.add_compat("cuda-12.4", "550.54.15")
    image.add_compat("cuda-12.8", "570.86.10")
    image.add_compat("cuda-12.9", "575.51.03", below="lib.real")
    newer = {*files("cuda-12.8", "570.86.10"), *files("cuda-12.9", "575.51.03", "lib.real/")}
    assert image.see("--driver", DRIVER, CUDA) == newer
    first = dict(reversed(listed(image.cache)))
    assert Path(first["libcuda.so.1"]).parent.name == "lib.real"
    assert Path(first["libnvidia-nvvm.so.4"]).parent.name == "lib.real"
    assert [path for name, path in listed(image.cache) if name == "libcuda.so.1"][1] == CUDA


def test_where_the_cards_or_a_share_do_not_allow_it_each_is_hidden(image: Image) -> None:
    image.add_compat("cuda-12.9", "575.51.03")
    assert image.see("--driver", DRIVER, "--no-compat", CUDA) == set()
    assert listed(image.cache) == [("libcuda.so.1", CUDA)]


def test_a_card_that_does_not_allow_it_goes_before_one_that_does(image: Image) -> None:
    """Run the hook of a GeForce card after that of all cards, as runtimes do by CDI."""
    image.add_compat("cuda-12.9", "575.51.03")
    hook = f"{image.program} --driver {DRIVER}"
    script = (
        f'cat >{image.folder}/state; for more in "" --no-compat; do {hook} $more {CUDA} <{image.folder}/state || exit; done'
    )
    find = f'find {image.root}/usr/local -type f -name "libcuda*"'
    done = image.run(before=["unshare", "-m", "sh", "-c", f"{script}; {find}", "sh"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert next(path for name, path in listed(image.cache) if name == "libcuda.so.1") == CUDA


def test_an_image_without_cuda_gets_no_folder(image: Image) -> None:
    (image.root / "usr/local").mkdir(parents=True)
    image.complete("--driver", DRIVER, "--no-compat", CUDA)
    assert not any((image.root / "usr/local").iterdir())


def test_a_symlink_of_cuda_is_resolved_inside_the_root(image: Image) -> None:
    outside = image.folder / "outside/compat"
    outside.mkdir(parents=True)
    (outside / "libcuda.so.535.1").touch()
    (image.root / "usr/local").mkdir(parents=True)
    (image.root / "usr/local/cuda").symlink_to(outside.parent)
    script = f'"$@" </dev/stdin && ls {outside}'
    done = image.run("--driver", DRIVER, CUDA, before=["unshare", "-m", "sh", "-c", script, "sh"])
    assert done.stdout == b"libcuda.so.535.1\n"


# ---- arguments


def test_each_library_is_listed_once_by_the_names_that_ldconfig_lists() -> None:
    paths = [
        f"{LIB}/libcuda.so",
        f"{LIB}/libcuda.so.1",
        f"{LIB}/libcuda.so.{DRIVER}",
        f"{LIB}/libnvidia-glcore.so.{DRIVER}",
        "/usr/bin/nvidia-smi",
        f"{LIB}/gbm/nvidia-drm_gbm.so",
        "/usr/lib64/libcuda.so.1",
    ]
    assert list_libraries(paths, DRIVER) == (paths[0], paths[1], paths[3])


def test_a_share_hides_the_images_libraries_and_other_hooks_stay() -> None:
    hook = make_hook(Path("/opt/lading-ldcache"), [CUDA], DRIVER, compat=True)
    other = Hook(hook_name="createContainer", path="/x", args=("nvidia-cdi-hook", "chmod"), env=("A=b",))
    (changed, same) = without_compat((hook, other))
    assert changed.args == ("lading-ldcache", "--driver", DRIVER, "--no-compat", CUDA)
    assert same == other
    assert without_compat((changed,)) == (changed,)
    assert make_hook(Path("/opt/lading-ldcache"), [CUDA], DRIVER, compat=False) == changed
