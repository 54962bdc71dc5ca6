"""How slow a node is, by the start of a command."""

import subprocess
import sys

import pytest

from lading.slowness import MOST, START_S, decide_slowness, describe_slowness


@pytest.mark.parametrize(("start_s", "slowness"), [(0.1, 1), (START_S, 1), (4 * START_S, 4), (3600, MOST)])
def test_waits_grow_with_the_time_that_the_start_took(start_s: float, slowness: float) -> None:
    assert decide_slowness(start_s) == slowness


def test_the_start_of_this_process_is_measured() -> None:
    script = f"import time, lading.slowness as s; time.sleep({2 * START_S}); print(s.measure_slowness() >= 2)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"


def test_only_a_slow_node_is_called_slow() -> None:
    assert describe_slowness(1) == ""
    assert "4.2 times" in describe_slowness(4.2)
