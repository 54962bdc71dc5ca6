import pytest

from doctor.model import State
from doctor.versions import VersionsSeen, decide_versions
from tests.unit.doctor.verdicts import states


@pytest.mark.parametrize(
    ("hooks", "proxy", "expected"),
    [
        ("0.1.0", "0.1.0", [State.OK]),
        ("0.1.0", "0.2.0", [State.WARNING]),
        ("0.1.0", "", [State.OK]),
        ("0.1.0", "0.3.0", [State.FAILED, State.WARNING]),
        ("0.0.9", "0.1.0", [State.WARNING]),  # the hooks that run are older than the installed ones
        ("0.3.0", "0.1.0", [State.FAILED, State.WARNING]),
        ("", "", [State.SKIPPED]),
    ],
)
def test_versions(hooks: str, proxy: str, expected: list[State]) -> None:
    seen = VersionsSeen(installed="0.1.0", running={"lading-hooks": hooks, "lading-runtimeproxy": proxy})
    assert states(decide_versions(seen)) == expected
