"""Share cards by the pods' labels: from the annotation to the card, past an edit of it and a new leader."""

import pytest

from central.search.placement import Missing
from lading.vocabulary import POLICY, SHARE_AFFINITY, SHARE_ANTI_AFFINITY, SHARE_EXCLUSION
from tests.cluster.pods import Pods
from tests.cluster.scheduling.world import MERGE, World

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

TEAM = {SHARE_AFFINITY: "team", SHARE_EXCLUSION: "team", POLICY: "spread"}


def test_a_team_has_one_card_to_itself_whatever_comes_and_is_edited(world: World, pods: Pods) -> None:
    world.run(pods, "one", "two", memory="20Gi", annotations=TEAM)  # the second is there before the first is bound
    (card,) = world.assigned("one")["main"].gpus
    assert world.assigned("two")["main"].gpus == (card,)
    world.run(pods, "stranger", memory="1Gi")  # binpack, which would be beside them
    assert world.assigned("stranger")["main"].gpus != (card,)
    for name in ("one", "two"):
        without = {"metadata": {"annotations": {SHARE_AFFINITY: None, SHARE_EXCLUSION: "mine"}}}
        world.api.call("PATCH", f"/api/v1/namespaces/default/pods/{name}", without, content_type=MERGE)

    dead = world.scheduling.leader
    dead.kill()
    world.scheduling.await_leader()
    world.create(pods, "three", memory="50Gi", annotations=TEAM)
    full = Missing.GROUP_FULL.shown
    world.cluster.eventually(lambda: full in world.await_refused("three"), "a refusal for want of room on the team's card")
    assert card in world.why("three")["nodes"][0]["detail"]
    world.run(pods, "late", memory="1Gi")
    assert world.assigned("late")["main"].gpus != (card,)

    pods.delete("one")
    pods.wait_ready("three")
    assert world.assigned("three")["main"].gpus == (card,)
    dead.start()
    world.check(pods, "two", "three", "stranger", "late")


def test_pods_with_one_anti_affinity_are_on_different_cards(world: World, pods: Pods) -> None:
    names = [f"apart-{number}" for number in range(4)]
    world.run(pods, *names, memory="1Gi", annotations={SHARE_ANTI_AFFINITY: "heavy"})
    assert len({world.assigned(name)["main"].gpus for name in names}) == len(names)
    world.check(pods, *names)
