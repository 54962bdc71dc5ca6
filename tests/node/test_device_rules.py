"""Check what keeps a container from the devices that it was not given, and what does not."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.node


def test_sys_admin_alone_takes_away_the_device_rules_of_its_cgroup_v2(tmp_path: Path) -> None:
    """Check why containers with SYS_ADMIN are refused devices, like privileged ones (tests/unit/hooks/grant/test_pod.py)."""
    script = Path(__file__).with_name("detach_device_rules.py")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["False", "True"], "")
