import shutil
from pathlib import Path

import pytest

from lading.errors import HostError
from simnode import install
from simnode.containerd import Binaries

EVERYTHING = {program for need in install.NEEDS for program in need.programs}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the programs that this machine has."""
    programs = set(EVERYTHING)

    def which(program: str, path: str = "") -> str | None:
        return f"/usr/bin/{program}" if program in programs else None

    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setattr(install, "_links_statically", lambda: True)
    return programs


def test_a_machine_that_has_everything_gets_nothing(there: set[str]) -> None:
    assert install.missing_packages() == []


def test_a_bare_machine_gets_debians_containerd(there: set[str]) -> None:
    there.clear()
    assert set(install.missing_packages()) >= {"containerd", "runc", "gcc", "libc6-dev", "iproute2"}


def test_a_containerd_that_is_there_is_never_replaced(there: set[str]) -> None:
    there -= {"runc", "cc"}
    assert "containerd" not in install.missing_packages()
    there -= {"ctr"}
    with pytest.raises(HostError, match="ctr"):
        install.missing_packages()


def test_a_compiler_without_a_static_libc_is_not_enough(there: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_links_statically", lambda: False)
    assert install.missing_packages() == ["libc6-dev"]


def test_without_apt_it_says_what_is_missing(there: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there -= {"runc"}
    monkeypatch.setattr(install, "_has_busybox", lambda: True)
    with pytest.raises(HostError, match="runc"):
        install.install()


def test_a_containerd_that_was_unpacked_before_is_found_again(tmp_path: Path) -> None:
    program = tmp_path / "containerd-1.7.24~ds1/usr/bin/containerd"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho containerd example 1.7.24~ds1 1.7.24~ds1-6\n")
    program.chmod(0o755)
    result = install.newer_containerd("1.7", tmp_path)
    assert isinstance(result, Binaries)
    assert (result.version, result.folder) == ("1.7.24", program.parent)
