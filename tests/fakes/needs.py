"""What a test needs of the machine: without it the test is skipped, but in CI (CI=true) a skip is a failure."""

import os

import pytest


def need(there: bool, what: str) -> None:
    """`what` completes "needs …"."""
    if there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"needs {what}, and in CI nothing may be skipped")
    pytest.skip(f"needs {what}")
