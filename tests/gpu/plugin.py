"""Skip, by name and with the reason, what a real card cannot answer and what there is no more time for.

`python -m tests.gpu` loads this plugin into pytest. A test that asks the fake card what no card tells has the marker
`fake_card`, whose argument says what that is.
"""

import os
import time
from typing import Final

import pytest

UNTIL: Final = "LADING_GPU_TESTS_UNTIL"  # a time of the monotonic clock


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    fake = item.get_closest_marker("fake_card")
    if fake:
        pytest.skip(f"needs the fake card: {fake.args[0]}")
    if time.monotonic() > float(os.environ[UNTIL]):
        pytest.skip("the time is over; more is given by --seconds")
