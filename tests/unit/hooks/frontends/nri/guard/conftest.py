import shutil
from pathlib import Path

import pytest

from hooks.frontends.nri.guard.build import build
from lading.compiling import find_compiler
from tests.fakes.guard import SANITIZED, sanitizers_work
from tests.fakes.needs import need


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the guard, with sanitizers if the compiler has them: an invalid memory access then ends the program."""
    need(shutil.which("cc") is not None, "a C compiler")
    folder = tmp_path_factory.mktemp("guard")
    build(folder / "ladingguard", find_compiler(), flags=SANITIZED if sanitizers_work(folder) else ("-O1",))
    return folder / "ladingguard"
