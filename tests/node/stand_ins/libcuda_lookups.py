"""Print how programs find libcuda in this container, as JSON: Triton's lookup, and find_library of this Python's own library.

Triton's steps, in this order: the folder in TRITON_LIBCUDA_PATH (2.2 and newer); the folders of libcuda.so.1 that `ldconfig -p`
lists; the folders of LD_LIBRARY_PATH that have it. Triton stops if none of the folders has the file, or if ldconfig fails, as
in an image without a cache.

Source: triton-lang/triton, third_party/nvidia/backend/driver.py (libcuda_dirs); CPython, Lib/ctypes/util.py.
"""

import ctypes.util
import json
import os
import subprocess
import sys

NAME = "libcuda.so.1"


def _triton() -> list[str]:
    if given := os.environ.get("TRITON_LIBCUDA_PATH"):
        return [given]
    ldconfig = subprocess.run(["/sbin/ldconfig", "-p"], check=False, capture_output=True, text=True)
    if ldconfig.returncode:
        return []
    listed = ldconfig.stdout
    folders = [os.path.dirname(line.split()[-1]) for line in listed.splitlines() if NAME in line]  # noqa: PTH120
    searched = folders or os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [folder for folder in searched if folder and os.path.exists(f"{folder}/{NAME}")]  # noqa: PTH110


json.dump({"triton": _triton(), "find_library": ctypes.util.find_library("cuda")}, sys.stdout)
