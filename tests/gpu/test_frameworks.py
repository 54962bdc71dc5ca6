"""Frameworks under a share of the machine's card: they see it, fill it, and make what they make on a card of their own.

Each is run by the first Python that has it: this one, or a `python3` of PATH. NVIDIA's limits of what a share can do are in
docs/isolation.md.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes.needs import need
from tests.shares.site import MIB, Site

PROGRAM: Final = Path(__file__).with_name("frameworks.py")
SHARE: Final = 8192 * MIB
LEAST: Final = 5000 * MIB  # contexts, and what libraries keep for themselves, take a part of the share
BOUND_S: Final = 100


def own_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the folder of packages that the tests may have: a framework has its own."""
    return {name: value for name, value in given.items() if name != "PYTHONPATH"}


@cache
def find_python(package: str) -> str:
    """Return the path of a Python that has the package; empty if there is none."""
    folders = os.environ["PATH"].split(":")
    pythons = [sys.executable, *(f"{folder}/python3" for folder in folders if Path(folder, "python3").exists())]
    look = f"import importlib.util; raise SystemExit(importlib.util.find_spec({package!r}) is None)"
    env = own_environment(os.environ)
    found = (python for python in pythons if not subprocess.run([python, "-c", look], env=env, check=False).returncode)
    return next(found, "")


def work(site: Site, name: str) -> dict[str, Any]:
    """Do a piece of work of frameworks.py in a container with a share. Return what it printed."""
    package = name.partition("_")[0]
    python = find_python(package)
    need(bool(python), f"{package}, in this Python or a python3 of PATH")
    container = site.container("a", mib=SHARE // MIB)
    program = site.launch(container.folder, [python, str(PROGRAM), name], own_environment(site.environment()))
    try:
        out, errors = program.communicate(timeout=BOUND_S)
    finally:
        program.kill()
    assert program.returncode == 0, errors[-3000:]
    made: dict[str, Any] = json.loads(out.splitlines()[-1])
    return made


@pytest.mark.parametrize("name", ["torch_memory", "torch_memory_of_cudaMallocAsync", "torch_memory_in_expandable_segments"])
def test_pytorch_fills_its_share_and_goes_on(site: Site, name: str) -> None:
    made = work(site, name)
    assert made["total"] == SHARE
    assert all(LEAST <= filled <= SHARE for filled in made["filled"])
    assert made["sum"] == 512.0**3


def test_pytorch_trains(site: Site) -> None:
    made = work(site, "torch_training")
    assert made["last"] < 0.9 * made["first"]


@pytest.mark.parametrize("name", ["torch_graph", "torch_graphs_beside_a_thread_that_launches"])
def test_pytorch_captures_graphs_beside_another_container(site: Site, name: str) -> None:
    other = site.container("b").start()
    other.call("begin", 5000, 1)
    made = work(site, name)
    assert made["captures"] > 0
    assert made["value"] == 1024.0


def test_nccl_adds(site: Site) -> None:
    assert work(site, "torch_nccl")["value"] == 3.0


def test_jax_computes_within_its_share(site: Site) -> None:
    made = work(site, "jax_matrices")
    assert made["value"] == 1.0
    assert made["limit"] < SHARE


def test_cupy_computes_and_sees_its_share(site: Site) -> None:
    assert work(site, "cupy_matrices") == {"value": 1.0, "async": 1000.0, "total": SHARE}


def test_pynvml_shows_the_share(site: Site) -> None:
    assert work(site, "pynvml_memory") == {"total": SHARE}
