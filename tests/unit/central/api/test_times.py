import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from central.api.times import micro_time_now, time_now


@pytest.mark.parametrize(("now", "fraction"), [(time_now, ""), (micro_time_now, r"\.\d{6}")])
def test_this_moment_in_utc(now: Callable[[], str], fraction: str) -> None:
    before = datetime.now(UTC)
    text = now()
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d{fraction}Z", text)
    assert before - timedelta(seconds=1) < datetime.fromisoformat(text) <= datetime.now(UTC)
