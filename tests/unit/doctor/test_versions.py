import pytest

from doctor.versions import VersionsReading, decide_versions
from lading.checks.model import Verdict
from tests.unit.doctor.verdicts import states


@pytest.mark.parametrize(
    ("hooks", "proxy", "expected"),
    [
        ("0.1.0", "0.1.0", [Verdict.OK]),
        ("0.1.0", "0.2.0", [Verdict.WARNING]),
        ("0.1.0", "", [Verdict.OK]),
        ("0.1.0", "0.3.0", [Verdict.FAILED, Verdict.WARNING]),
        ("0.0.9", "0.1.0", [Verdict.WARNING]),  # the hooks that run are older than the installed ones
        ("0.3.0", "0.1.0", [Verdict.FAILED, Verdict.WARNING]),
        ("", "", [Verdict.SKIPPED]),
    ],
)
def test_versions(hooks: str, proxy: str, expected: list[Verdict]) -> None:
    reading = VersionsReading(installed="0.1.0", running={"lading-hooks": hooks, "lading-runtimeproxy": proxy})
    assert states(decide_versions(reading)) == expected
