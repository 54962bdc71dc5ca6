"""However a program finds the functions that launch and allocate, it gets the library's."""

import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from shares.library.build import HERE
from tests.fakes.needs import need
from tests.shares.site import Site

_HOOKED: Final = re.search(r"#define HOOKED\(X\)(.*?)\n/\*", (HERE / "driver.h").read_text(), re.DOTALL)
assert _HOOKED
NAMES: Final = re.findall(r"X\((\w+)\)", _HOOKED[1])


def test_the_names_are_read() -> None:
    assert {"cuLaunchKernel", "cuMemCreate", "cuGetProcAddress_v2"} < set(NAMES)


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", "{folder}/libcuda.so.1"])
@pytest.mark.parametrize(
    "way",
    [
        *("local", "global", "deepbind"),
        pytest.param("dlmopen", marks=pytest.mark.fake_card("a second copy of the driver in a process, which ends that")),
    ],
)
def test_by_the_loader(site: Site, library: Path, way: str, name: str) -> None:
    other = library.with_name("libcuda.so")
    if not other.exists():
        other.symlink_to(library)
    process = site.container("a").start(init=False)
    files = process.call("find_files", f"{way} {name.format(folder=library.parent)}", NAMES)
    assert {Path(file).resolve() for file in files} == {library}


@pytest.mark.parametrize("version", ["cuGetProcAddress", "cuGetProcAddress_v2"])
def test_by_the_driver(site: Site, library: Path, version: str) -> None:
    process = site.container("a").start(init=False)
    files = process.call("ask_for_files", version, NAMES)
    assert set(files) == {str(library)}


def test_what_the_library_does_not_have_is_the_drivers(site: Site, driver_folder: Path) -> None:
    process = site.container("a").start(init=False)
    (file,) = process.call("find_files", "local libcuda.so.1", ["cuModuleLoadData"])
    assert Path(file).resolve() == (driver_folder / "libcuda.so.1").resolve()


# NVIDIA's runtime libraries, of which this looks at what they ask a driver for; their code is not used otherwise.
RUNTIMES: Final = {
    "nvidia-cuda-runtime-cu12==12.9.79": "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
    "nvidia-cuda-runtime==13.5.37": "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
}


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Download one of them."""
    need(platform.machine() == "x86_64", "x86-64, for which the packages of CUDA's runtime are pinned")
    folder = tmp_path_factory.mktemp("runtime")
    (folder / "pinned.txt").write_text(f"{request.param} --hash=sha256:{RUNTIMES[request.param]}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    pip += ["download", "--no-deps", "--require-hashes", "-r", "pinned.txt"]
    done = subprocess.run(pip, cwd=folder, capture_output=True, text=True, check=False)
    need(done.returncode == 0, f"to download {request.param}: {done.stderr.strip()[-200:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if re.fullmatch(r".*/libcudart\.so\.\d+", name))
        return Path(packed.extract(name, folder))


@pytest.mark.fake_card("which functions it is asked for")
def test_by_cudas_own_runtime_library(site: Site, library: Path, runtime: Path, tmp_path: Path) -> None:
    process = site.container("a").start(init=False, FAKE_CUDA_ASKED=str(tmp_path / "asked"))
    process.call("start_runtime", str(runtime))  # it stops where the fake has no more of the driver's private tables
    asked = [line.split() for line in (tmp_path / "asked").read_text().splitlines() if not line.startswith(" ")]
    names = {name + ("_ptsz" if int(flags) & 2 else "") for name, flags in asked}
    hooked = sorted(full for name in names for full in (f"{name}_v2", name) if full in NAMES)
    assert len(hooked) > 25
    assert "is not known" not in site.errors.read_text()
    assert set(process.call("ask_for_files", "cuGetProcAddress_v2", hooked)) == {str(library)}
