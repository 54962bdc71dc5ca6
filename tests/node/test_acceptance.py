"""Run the step `shares` of deploy/acceptance/accept.sh on the fake driver, in real containers with the shares that the hook
gives. kubectl is a stand-in that runs in the container what the script has kubectl run; PyTorch and nvidia-smi are stand-ins
on the container's own libraries (stand_ins/).

How much each makes of the card depends on the machine: a program that waits for a CPU does not want the card meanwhile. So
the time for which each has a turn is compared with the time for which it wants one, and the table's limits do not count.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lading.sharestatus import ShareUse
from simnode.containerd import PrivateContainerd
from simnode.cuda import install_fake_cuda
from tests.fakes.needs import need
from tests.node.conftest import StartLading
from tests.node.share_site import HOST, ContainerSite, install_python
from tests.node.site import open_site

pytestmark = pytest.mark.node

SCRIPT: Final = Path(__file__).parents[2] / "deploy/acceptance/accept.sh"
STAND_INS: Final = Path(__file__).parent / "stand_ins"
SECONDS: Final = 3  # in place of the script's 20
LOOK_S: Final = 0.05
RUN: Final = HOST / "run"
PYTHON: Final = HOST / "python/bin" / Path(sys.executable).resolve().name
KUBECTL: Final = """#!/bin/bash
# kubectl -n NAMESPACE exec -i POD -- timeout SECONDS python3 - ARGUMENT...
[[ $3 == exec ]] || {{ cat >/dev/null; exit; }}
pod=$5
shift 10
exec {ctr} --address {socket} --namespace k8s.io tasks exec --exec-id "$pod-$$" "$(cat "{folder}/$pod")" \
  env LD_LIBRARY_PATH={run}/lib PYTHONPATH={run} PATH={run}:/bin {python} - "${{@/#20/{seconds}}}"
"""


@pytest.fixture
def site(start_lading: StartLading, containerd: PrivateContainerd, short_folder: Path) -> Iterator[ContainerSite]:
    lading = start_lading(tokens=True)
    driver = install_fake_cuda(lading.node)
    folder = short_folder / "run"
    install_python(folder)
    for name in ("torch.py", "nvidia_smi.py"):
        shutil.copy(STAND_INS / name, folder)
    program(folder / "nvidia-smi", f"#!/bin/sh\nexec {PYTHON} {RUN}/nvidia_smi.py\n")
    with open_site(lading, containerd) as node:
        site = ContainerSite(lading, driver, node, folder)
        yield site
        site.close()


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_two_pods_share_a_card_and_a_table_says_how(site: ContainerSite, containerd: PrivateContainerd, tmp_path: Path) -> None:
    ctr = containerd.binaries.folder / "ctr"
    need(ctr.exists(), str(ctr))
    for name, request in (("seventy", 70), ("thirty", 30)):
        running = site.container(name, mib=6144, request=request).running
        (tmp_path / f"accept-{name}").write_text(running.id)
    text = {"ctr": ctr, "socket": containerd.socket, "folder": tmp_path, "run": RUN, "python": PYTHON, "seconds": SECONDS}
    program(tmp_path / "kubectl", KUBECTL.format(**text))
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    both: list[ShareUse] = []
    command, pipe = [str(SCRIPT), "--image", "none", "shares"], subprocess.PIPE
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True) as script:
        while script.poll() is None:
            uses = site.uses()
            both = uses if all(use.processes for use in uses) else both
            time.sleep(LOOK_S)
        out, _ = script.communicate()
    rows = re.findall(r"^(.{52}) (.{14}) (\S+) +(ok|FAIL)$", out, re.MULTILINE)
    assert len(rows) == 6, out
    observed = {what.strip(): (value, outcome) for what, _, value, outcome in rows}
    assert observed["memory of the card, by CUDA, MiB"] == ("6144", "ok")
    assert observed["memory of the card, by nvidia-smi, MiB"] == ("6144", "ok")
    assert observed["allocated before CUDA refuses, MiB"] == ("6144", "ok")
    assert float(observed["both at work: part of seventy"][0]) > 0.4
    assert len(both) == 2
    for use in both:
        assert use.held_s / (use.held_s + use.waited_s) > use.request_percent / 100 - 0.06
    assert float(observed["thirty alone, of what seventy makes alone"][0]) > 0.5
