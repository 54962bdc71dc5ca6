"""Name the folders in which distributions have the NVIDIA driver's libraries, and find NVML there.

Source: NVIDIA/nvidia-container-toolkit, internal/lookup/library.go.

Tests: tests/unit/hooks/vendors/nvidia/test_vendor.py
"""

import platform
from pathlib import Path
from typing import Final

NVML: Final = "libnvidia-ml.so.1"
MULTIARCH: Final = f"usr/lib/{platform.machine()}-linux-gnu"
# The first of these folders below the driver root with a library is used: Debian's (multiarch, alternatives), Red Hat's, COS's,
# Arch's.
LIBRARY_FOLDERS: Final = (MULTIARCH, f"{MULTIARCH}/nvidia/current", "usr/lib64", "lib64", "usr/lib")


def find_nvml(driver_root: Path) -> Path | None:
    """Return the path of the driver's NVML below this folder; None if it has none."""
    found = (driver_root / folder / NVML for folder in LIBRARY_FOLDERS)
    return next(filter(Path.is_file, found), None)
