"""Share a log that can be read back between unit tests."""

import pytest

from lading.log import Log
from tests.fakes.records import Records


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture
def log(records: Records) -> Log:
    return records.log
