"""Test that pods wait which are created while a part of `deploy/node` is replaced or stopped, and that none starts without its
devices."""

import json
import subprocess
import time
from collections.abc import Callable
from typing import Final

import pytest

from tests.cluster.daemonset.referee import Referee
from tests.cluster.daemonset.site import NODES, NodeSite
from tests.cluster.pods import Pods

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

EVERY_S: Final = 0.1  # ten pods a second
# Pods of a load: cards 0 to 3 whole, of which two pods ask for 0 and two for 1; shares of cards 4 to 6, ten on each; the rest
# asks for nothing. No pod asks for card 7.
RIVALS: Final = (("whole-0", "rival-0"), ("whole-1", "rival-1"))
ASKS: Final = {
    **{f"whole-{card}": str(card) for card in range(4)},
    **{f"rival-{card}": str(card) for card in range(2)},
    **{f"share-{card}-{number}": f"{card}:memory=7Gi" for card in range(4, 7) for number in range(10)},
    **{f"plain-{number}": "" for number in range(14)},
}


@pytest.fixture
def referee(site: NodeSite, pods: Pods) -> Referee:
    return Referee(site=site, pods=pods)


@pytest.fixture(scope="module", autouse=True)
def installed(site: NodeSite) -> None:
    site.apply()
    site.label("nri")
    site.await_ready("lading-guard", "lading-node")


def mixed(asks: dict[str, str]) -> list[tuple[str, str]]:
    """Return them with the kinds interleaved."""
    return sorted(asks.items(), key=lambda one: one[0][::-1])


def create(referee: Referee, asks: dict[str, str]) -> None:
    for name, ask in mixed(asks):
        referee.create(name, ask)
        time.sleep(EVERY_S)  # the rate of the load


def retag(site: NodeSite) -> None:
    """Update lading-node, and the guard with it, to another tag of their image, as an upgrade does."""
    ctr = [str(site.runtime.binaries.folder / "ctr"), "--address", str(site.runtime.socket), "--namespace", "k8s.io", "images"]
    stored = subprocess.run([*ctr, "ls", "-q"], check=True, capture_output=True, text=True).stdout.split()
    (image,) = (name for name in stored if "/lading-node:" in name)
    site.tag = f"{image.rpartition(':')[2]}-next"
    subprocess.run([*ctr, "tag", "--force", image, f"{image}-next"], check=True, capture_output=True)
    site.apply()


def restart(name: str) -> Callable[[NodeSite], None]:
    def update(site: NodeSite) -> None:
        done = site.cluster.kubectl("rollout", "restart", "-n", NODES, f"daemonset/{name}")
        assert done.returncode == 0, done.stderr

    return update


UPDATES: Final[dict[str, tuple[Callable[[NodeSite], None], set[str]]]] = {
    "lading-node": (restart("lading-node"), {"lading-node"}),
    "lading-guard": (restart("lading-guard"), {"lading-guard"}),
    "the image of both": (retag, {"lading-node", "lading-guard"}),
}


@pytest.mark.parametrize("update", UPDATES)
def test_fifty_pods_start_during_an_update(site: NodeSite, referee: Referee, pods: Pods, update: str) -> None:
    site.cluster.api.call("DELETE", "/api/v1/namespaces/default/events")  # those of pods of the same names
    begin, changed = UPDATES[update]
    before = {name: uids(site, name) for name in changed}
    began = time.monotonic()
    half = len(ASKS) // 2
    create(referee, dict(mixed(ASKS)[:half]))
    begin(site)
    create(referee, dict(mixed(ASKS)[half:]))
    created = time.monotonic() - began
    for name in changed:
        site.cluster.eventually(
            lambda name=name: uids(site, name).isdisjoint(before[name]) and site.ready(name),  # type: ignore[misc]
            f"the new pod of {name}, and the end of the old one",
            within_s=180.0,
        )
    updated = time.monotonic() - began
    referee.await_ready(*(name for pair in RIVALS for name in pair))
    refused = sum(any("ungranted" in event for event in site.cluster.api.pod_events(name)) for name in referee.asked)
    referee.check([name for name in referee.asked if name not in {name for pair in RIVALS for name in pair}])
    for pair in RIVALS:
        site.cluster.eventually(lambda pair=pair: bool(referee.ready() & {*pair}), f"one of {pair}", within_s=120.0)  # type: ignore[misc]
        (holder,) = [name for name in pair if referee.opened(name)]
        referee.check([holder])
        pods.delete(holder)
        del referee.asked[holder]
    referee.await_ready()
    print(
        f"\n{update}: {len(ASKS)} pods created after {created:.1f} s, updated after {updated:.1f} s, all ready after"
        f" {time.monotonic() - began:.1f} s; refused for a while: {refused}"
    )
    referee.check()
    assert "container.bypassed" not in site.cluster.kubectl("logs", "-n", NODES, "daemonset/lading-node", "-c", "hooks").stdout


def uids(site: NodeSite, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in site.pods(name)}


AWAY: Final = {
    **{f"whole-{card}": str(card) for card in range(4)},
    **{f"share-{card}-{number}": f"{card}:memory=7Gi" for card in (4, 5) for number in range(3)},
    **{f"plain-{number}": "" for number in range(10)},
}


def test_twenty_pods_start_while_the_hooks_are_away(site: NodeSite, referee: Referee) -> None:
    """Stop lading-hooks for good, so that it writes no taint: kube-scheduler places the pods there, and the guard refuses their
    containers."""
    site.keep_away("lading-node")
    create(referee, AWAY)
    waiting = {name for name, ask in AWAY.items() if ask}
    referee.await_ready(*waiting)
    cluster = site.cluster
    cluster.eventually(
        lambda: all(any("ungranted" in event for event in cluster.api.pod_events(name)) for name in waiting),
        "a refusal of each pod with devices",
    )
    assert not any(referee.opened(name) for name in waiting)
    site.keep_away("lading-node", False)
    began = time.monotonic()
    site.await_ready("lading-node")
    referee.await_ready()
    print(f"\nall run {time.monotonic() - began:.1f} s after the hooks were let back")
    referee.check()
    held = json.loads(site.in_hooks("lading-hooks", "ledger", "-o", "json"))["devices"]
    assert sum(len(device["holders"]) for device in held) == len(waiting)
