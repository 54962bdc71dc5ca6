"""Skip a test whose needs the machine does not meet. In CI (CI=true) the test fails instead."""

import os

import pytest


def need(there: bool, what: str) -> None:
    """Skip the test unless the condition holds; in CI, fail. `what` completes the text "needs …"."""
    if there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"needs {what}, and in CI nothing may be skipped")
    pytest.skip(f"needs {what}")
