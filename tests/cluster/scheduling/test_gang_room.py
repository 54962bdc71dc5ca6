"""Test free capacity for whole gangs on a real control plane: reserved while small pods come and end, lent and taken back by
quotas."""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from central.decide.reservation import PATIENCES
from simnode.control_plane import ControlPlane
from tests.cluster.scheduling.fleet import CARDS
from tests.cluster.scheduling.gang_world import GangWorld, gang_world, of_gang
from tests.cluster.scheduling.kinds import OPEN, allow_quota, is_created, served_kind
from tests.logs import LOGS

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

NODES: Final = ("n0", "n1")
PATIENCE_S: Final = 3
QUOTA_DELAY_S: Final = 5
KOORDINATOR: Final = "scheduling.sigs.k8s.io"
QUOTAS: Final = f"/apis/{KOORDINATOR}/v1alpha1/namespaces/default/elasticquotas"
PREFIX: Final = "quota.scheduling.koordinator.sh"
GPU: Final = "lading.dev/gpu"
EVERY_S: Final = 0.5


@pytest.fixture(scope="module")
def whole(assets: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[GangWorld]:
    plane = ControlPlane(tmp_path_factory.mktemp("room"), assets=assets)
    logs = pytestconfig.stash.setdefault(LOGS, [])
    logs.extend(plane.logs)
    settings = {"patience": PATIENCE_S, "quota_delay": QUOTA_DELAY_S}
    with (
        plane,
        served_kind(plane.api, KOORDINATOR, "v1alpha1", "ElasticQuota", {"spec": OPEN, "status": OPEN}),
        gang_world(plane, NODES, settings) as world,
    ):
        logs.extend(world.scheduling.logs)
        yield world


@pytest.fixture
def world(whole: GangWorld) -> Iterator[GangWorld]:
    with whole.empty_in_the_end():
        yield whole


class Stream:
    """Create single pods that end after a while: at any time there are more of them than free cards."""

    def __init__(self, world: GangWorld, cards: int) -> None:
        self._world = world
        self._alive: deque[str] = deque()
        self._created = 0
        for _ in range(cards + 4):
            self._come()

    def move(self) -> None:
        """End the pod that is bound for longest, if there is one, and have another one come."""
        bound = self._world.bound()
        ending = next((name for name in self._alive if name in bound), None)
        if ending is not None:
            self._world.delete(ending)
            self._alive.remove(ending)
            self._come()

    def _come(self) -> None:
        name = f"single-{self._created}"
        self._created += 1
        self._world.create(name, 1)
        self._alive.append(name)


def test_a_gang_of_all_cards_starts_though_single_pods_take_each_one_that_becomes_free(world: GangWorld) -> None:
    """Check that the first gang gets a reservation while a second one waits without one."""
    with world.cordoned("n1"):
        stream = Stream(world, CARDS)
        world.plane.eventually(lambda: len(world.bound()) == CARDS, "no free card")
        big, later = world.create_gang("big", CARDS), world.create_gang("later", CARDS)
        kept: list[bool] = []
        until = time.monotonic() + PATIENCE_S + 120
        while not big <= world.bound() and time.monotonic() < until:
            stream.move()
            kept.append(bool(world.gang_of("big-0").get("nodes")))
            assert not world.gang_of("later-0").get("nodes")
            world.sit_out(EVERY_S)
        assert big <= world.bound()
        assert any(kept)
        assert not later & world.bound()


def test_room_for_a_gang_leaves_a_node_where_no_pod_ends(world: GangWorld) -> None:
    """Check the choice of nodes: on n0, a pod with all cards but one runs on; single pods come and end on the other cards."""
    with world.cordoned("n1"):
        world.run("hold", gpus=CARDS - 1)
    stream = Stream(world, CARDS + 1)
    world.plane.eventually(lambda: len(world.bound()) == CARDS + 2, "no free card")
    big = world.create_gang("big", CARDS)
    until = time.monotonic() + 2 * PATIENCES * PATIENCE_S + 120
    while not big <= world.bound() and time.monotonic() < until:
        stream.move()
        world.sit_out(EVERY_S)
    assert {"hold", *big} <= world.bound()


def give(world: GangWorld, name: str, *, least: int, most: int) -> None:
    """Create a quota, and wait until central says what it uses."""
    body = {"apiVersion": f"{KOORDINATOR}/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name}}
    body |= {"spec": {"min": {GPU: least}, "max": {GPU: most}}}
    world.plane.eventually(lambda: is_created(world.plane.api, QUOTAS, body), f"the quota {name}")
    allow_quota(world.plane.api, name)

    def said() -> bool:
        return "used" in world.plane.api.call("GET", f"{QUOTAS}/{name}").get("status", {})

    world.plane.eventually(said, f"what the quota {name} uses", within_s=150)


def in_quota(quota: str, gang: str, size: int) -> dict[str, Any]:
    return {"labels": {f"{PREFIX}/name": quota}, **of_gang(gang, size)}


def test_lent_cards_are_taken_back_in_whole_gangs_and_lent_again(world: GangWorld) -> None:
    """Lend and take back 16 cards, of which two quotas are guaranteed 8 each: one runs four gangs of 4 pods, and a gang of 6 of
    the other arrives."""
    for name in ("vision", "speech"):
        give(world, name, least=8, most=2 * CARDS)
    gangs = []
    for number in range(4):
        gang = f"v{number}"
        gangs.append(world.create_gang(gang, 4, metadata=in_quota("vision", gang, 4)))
        world.await_bound(gangs[-1])
        world.sit_out(1.1)  # the API server notes whole seconds, and who is the newest matters here
    speech = world.create_gang("s", 6, metadata=in_quota("speech", "s", 6))
    world.await_bound(speech, within_s=120)
    assert world.bound() == {*speech, *gangs[0], *gangs[1]}  # the newest went
    assert world.blamed("QuotaTakenBack") == {*gangs[2], *gangs[3]}

    more = [world.create_gang(gang, 4, metadata=in_quota("vision", gang, 4)) for gang in ("v4", "v5")]
    world.await_said("v4-0", "reason", "quota-exceeded")  # two cards are free, and 12 would be more than 10
    assert world.bound() == {*speech, *gangs[0], *gangs[1]}
    for name in speech:
        world.delete(name)
    world.await_bound(set().union(*more))
    assert world.cards(world.bound()) == 2 * CARDS
