"""However a program finds the functions that launch and allocate, it gets the library's."""

import re
from pathlib import Path
from typing import Final

import pytest

from shares.library.build import HERE
from tests.shares.site import Site

_HOOKED: Final = re.search(r"#define HOOKED\(X\)(.*?)\n/\*", (HERE / "library.h").read_text(), re.DOTALL)
assert _HOOKED
NAMES: Final = re.findall(r"X\((\w+)\)", _HOOKED[1])


def test_the_names_are_read() -> None:
    assert {"cuLaunchKernel", "cuMemCreate", "cuGetProcAddress_v2"} < set(NAMES)


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", "{folder}/libcuda.so.1"])
@pytest.mark.parametrize("way", ["local", "global", "deepbind", "dlmopen"])
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


def test_what_the_library_does_not_have_is_the_drivers(site: Site, library: Path) -> None:
    process = site.container("a").start(init=False)
    (file,) = process.call("find_files", "local libcuda.so.1", ["cuModuleLoadData"])
    assert Path(file).resolve() == library.parents[1] / "real" / "libcuda.so.1"
