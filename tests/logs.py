"""List the logs of processes that tests start: a failed test prints the ends of the logs in `LOGS` (tests/conftest.py)."""

from pathlib import Path
from typing import Final

import pytest

LOGS: Final = pytest.StashKey[list[Path]]()  # key in pytest's configuration; fixtures that start processes put their logs there
