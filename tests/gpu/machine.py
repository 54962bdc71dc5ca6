"""Prepare a run on the card of this machine, or of a simulated node that is taken for the machine.

Children find in their environment LADING_TEST_CARD and ROUNDS_PER_US (tests/shares/card.py and program.py), the paths of a
kit, and for a simulated node the variables of its fakes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lading.errors import HostError
from simnode.build import LIBRARIES, build
from simnode.cuda import compile_fake_hami, install_fake_cuda
from simnode.mps import install_fake_mps
from tests.gpu.kit import unpack
from tests.shares.card import CHOICE, DRIVER_LINK, KIT, MACHINE, MachineCard, find_card
from tests.shares.site import PROGRAM

ROOT: Final = "LADING_GPU_ROOT"  # the machine's root folder; a simulated node has another one than /
HAMI: Final = "LADING_HAMI"  # the path of HAMi-core's libvgpu.so


@contextmanager
def prepare(*, pretend: bool) -> Iterator[MachineCard]:
    """Have this process and its children use the card. Raise HostError without one."""
    with TemporaryDirectory(prefix="lading-") as folder:
        if pretend and ROOT not in os.environ:
            # The loader reads LD_LIBRARY_PATH when a program starts, so this program is started again.
            raise SystemExit(subprocess.run(sys.orig_argv, env=_pretend(Path(folder)), check=False).returncode)
        card = find_card()
        os.environ[CHOICE] = MACHINE
        if kit := unpack(Path(folder) / "kit"):
            own = {KIT: str(kit), "XDG_CACHE_HOME": str(kit / "cache"), "PATH": f"{kit / 'bin'}:{os.environ['PATH']}"}
            os.environ.update(own)
        os.environ["ROUNDS_PER_US"] = str(_calibrate(card, Path(folder)))
        yield card
        DRIVER_LINK.unlink(missing_ok=True)


def _pretend(folder: Path) -> dict[str, str]:
    """Build a simulated node. Return the environment in which its driver is the machine's."""
    node = build("demo-8gpu", folder / "node")
    state = install_fake_cuda(node).folder
    mps, hami = install_fake_mps(folder / "mps"), compile_fake_hami(folder / "hami")
    driver, uuids = node.root / LIBRARIES, ",".join(gpu.uuid for _, gpu in node.profile.gpus)
    paths = {ROOT: str(node.root), HAMI: str(hami), "PATH": f"{mps.parent}:{os.environ['PATH']}"}
    fakes = {"FAKE_CUDA_DIR": str(state), "FAKE_NVML_STATE": str(node.nvml_state), "NVIDIA_VISIBLE_DEVICES": uuids}
    return {**os.environ, **paths, **fakes, "LD_LIBRARY_PATH": str(driver)}


def _calibrate(card: MachineCard, folder: Path) -> int:
    """Return how many rounds of the kernel's loop take a microsecond."""
    calls = json.dumps([["init"], ["calibrate"]])
    program = [sys.executable, "-I", "-S", str(PROGRAM)]
    done = subprocess.run(
        program, input=calls, env=card.environment(folder), capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise HostError(f"cannot use the card {card}: {done.stderr.strip()[-500:]}")
    result, rounds = json.loads(done.stdout)
    small, large = (float(rounds[blocks]) for blocks in ("64", "1000"))
    if result:
        raise HostError(f"cannot use the card {card}: cuInit returned {result}")
    print(f"a microsecond of work: {large:.1f} rounds of the kernel's loop, {small:.1f} in grids of 64 blocks")
    return max(1, round(large))
