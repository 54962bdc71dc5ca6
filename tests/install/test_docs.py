"""docs/install.md says what there is: options of the installer, make targets, and a question to the cluster that answers."""

import json
import re
import shutil
import subprocess

from tests.docs import ROOT
from tests.fakes.needs import need
from tests.install.node_installer import SCRIPT

PAGE = (ROOT / "docs/install.md").read_text()


def test_the_options_of_the_installer() -> None:
    usage = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"--[a-z-]+", usage))
    script = SCRIPT.read_text()
    accepted = set(re.findall(r"^    (--[a-z |-]+)\)", script, re.MULTILINE))
    assert options == set(re.findall(r"--[a-z-]+", " ".join(accepted)))
    shown = {
        option
        for line in re.findall(r"^.*install-node\.sh (.*)$", PAGE, re.MULTILINE)
        for option in re.findall(r"--[a-z-]+", line)
    }
    assert {"--wheel", "--rollback", "--uninstall", "--dry-run"} <= shown <= options


def test_the_make_targets() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", PAGE, re.MULTILINE)) <= targets


def test_the_question_which_pods_an_old_key_signed() -> None:
    need(shutil.which("jq") is not None, "jq")
    (question,) = re.findall(r"kubectl get pods -A -o json \| (jq .*?)\n```", PAGE, re.DOTALL)
    pods = {
        "old": ("ed25519:central-1:AAAA", "Running"),
        "waits": ("ed25519:central-1:AAAA", "Pending"),
        "over": ("ed25519:central-1:AAAA", "Succeeded"),
        "new": ("ed25519:central-12:AAAA", "Running"),
        "plain": (None, "Running"),
    }
    items = [
        {
            "metadata": {"namespace": "ns", "name": name}
            | ({"annotations": {"lading.dev/assignment-signature": signature}} if signature else {}),
            "status": {"phase": phase},
        }
        for name, (signature, phase) in pods.items()
    ]
    done = subprocess.run(
        ["sh", "-c", question], input=json.dumps({"items": items}), capture_output=True, text=True, check=True
    )
    assert [line.split("\t") for line in done.stdout.splitlines()] == [["ns", "old", "Running"], ["ns", "waits", "Pending"]]
