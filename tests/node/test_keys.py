"""Exchange signing keys and revoke one: check new pods, running pods, and their restarts."""

import json
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from central.daemon.keys import Signer, load_signer, write_pair
from lading.log import Event
from lading.reasons import Reason
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE
from simnode.cri import Container, Pod
from simnode.daemons import LadingNode
from tests.node.conftest import StartSite
from tests.node.site import Refused, Site, eventually

pytestmark = pytest.mark.node


def key_of(folder: Path, key_id: str) -> tuple[Signer, str]:
    """Return a signer for central, and the line that makes the nodes trust it."""
    private, public = write_pair(folder, key_id)
    return load_signer(private, key_id), f'keys.{key_id} = "{public}"\n'


def trust(lading: LadingNode, lines: str) -> None:
    """Replace the keys in hooks.toml, then restart lading-hooks, as docs/install.md says."""
    others = [line for line in lading.hooks.config.read_text().splitlines() if not line.startswith("keys.")]
    lading.hooks.config.write_text("\n".join([*others, lines]))
    lading.hooks.restart()


def run_signed(site: Site, signer: Signer, card: int) -> Pod:
    uid = str(uuid4())
    containers = {"main": {"gpus": [{"uuid": site.gpu(card)}]}}
    text = json.dumps({"v": 1, "pod": uid, "node": "n1", "gen": 1, "containers": containers})
    annotations = {ASSIGNMENT: text, ASSIGNMENT_SIGNATURE: signer.sign(text)}
    return site.kubelet.run_pod(f"pod-{card}", uid=uid, annotations=annotations)


def started(pod: Pod, attempt: int = 0) -> Container:
    """Try again while the hooks have only just started, as kubelet does."""
    return eventually(partial(pod.run_container, attempt=attempt))


def reason_once_reconciled(site: Site, pod: Pod, attempt: int = 0) -> Reason:
    def check() -> Reason:
        answer = site.create(pod, attempt=attempt)
        assert isinstance(answer, Refused), "the container was made"
        assert answer.reason is not Reason.NOT_RECONCILED
        return answer.reason

    return eventually(check)


def test_keys_are_exchanged_and_one_is_revoked(start_site: StartSite, tmp_path: Path) -> None:
    (old, old_line), (new, new_line) = key_of(tmp_path, "k1"), key_of(tmp_path, "k2")
    site = start_site(hooks={"assignments": ["signed"], "node_name": "n1"} | line_as_setting(old_line))
    first = run_signed(site, old, 0)
    container = started(first)

    # Exchange: the nodes have both, then central signs with the new one; what it signed before still starts.
    bound_before = run_signed(site, old, 1)
    trust(site.lading, old_line + new_line)
    assert site.see(started(run_signed(site, new, 2))).gpus == (site.gpu(2),)
    assert site.see(started(bound_before)).gpus == (site.gpu(1),)
    assert not [line for line in site.logged(site.lading.hooks, Event.GRANT_REFUSED) if "reason=signature-" in line]

    # Revoked: what was signed with it does not start any more, not even again; what runs keeps running, and keeps its devices.
    bound_late = run_signed(site, old, 3)
    trust(site.lading, new_line)
    assert reason_once_reconciled(site, bound_late) is Reason.SIGNATURE_KEY_UNKNOWN
    assert reason_once_reconciled(site, first, attempt=1) is Reason.SIGNATURE_KEY_UNKNOWN
    assert site.see(container).gpus == (site.gpu(0),)
    assert reason_once_reconciled(site, run_signed(site, new, 0)) is Reason.DEVICE_HELD
    assert site.see(started(run_signed(site, new, 4))).gpus == (site.gpu(4),)


def line_as_setting(line: str) -> dict[str, object]:
    key, _, path = line.strip().partition(" = ")
    return {key: path.strip('"')}
