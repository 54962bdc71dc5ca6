from pathlib import Path

import pytest

from simnode.profile import PROFILES
from simnode.reported import FILES, build_reported, read_status
from tests.conftest import BuildNode

NAMES = sorted(path.stem for path in PROFILES.glob("*.json"))


@pytest.mark.parametrize("profile", NAMES)
def test_a_file_is_what_the_nodes_code_reports(profile: str, build_node: BuildNode, fake_nvml: Path) -> None:
    """Check the files that `python -m simnode.reported` writes."""
    assert build_reported(build_node(profile), fake_nvml) == read_status(profile)


def test_no_file_is_without_a_profile() -> None:
    assert sorted(path.stem for path in FILES.glob("*.json")) == NAMES
