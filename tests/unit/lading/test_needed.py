import os
from pathlib import Path

import pytest

from lading.needed import Needed, find_denied


def said(path: str, mode: int = os.R_OK, *, optional: bool = False) -> str:
    return "".join(find_denied([Needed(path=Path(path), what="kubeconfig", mode=mode, optional=optional)]))


def test_what_can_be_opened_is_not_named() -> None:
    assert not said("/dev/null", os.R_OK | os.W_OK)
    assert not said("/home/none", optional=True)


@pytest.mark.parametrize(
    ("path", "setting"),
    [
        ("/home/none", "ProtectHome=no"),
        ("/tmp/none-here", "PrivateTmp=no"),
        ("/dev/none", "PrivateDevices=no"),
        ("/etc/none", "no InaccessiblePaths="),
    ],
)
def test_a_missing_file(path: str, setting: str) -> None:
    assert said(path).startswith(f"{path} (kubeconfig): No such file or directory (in the unit: {setting}")


@pytest.mark.parametrize(
    ("path", "read_only", "error", "setting"),
    [
        ("/dev/null", False, "Operation not permitted", "DeviceAllow=/dev/null"),
        ("/etc/passwd", False, "Permission denied", "CAP_DAC_OVERRIDE"),
        ("/etc", True, "Read-only file system", "ReadWritePaths=/etc"),
    ],
)
def test_a_denied_file(monkeypatch: pytest.MonkeyPatch, path: str, read_only: bool, error: str, setting: str) -> None:
    class Mount:
        f_flag = os.ST_RDONLY if read_only else 0

    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: Mount)
    assert error in said(path, os.W_OK)
    assert setting in said(path, os.W_OK)
