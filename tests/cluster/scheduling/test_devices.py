"""Check that a container gets exactly the devices of its assignment: whole cards, shares, VFs, several containers, restarts."""

import pytest

from lading.vocabulary import ASSIGNMENT_SIGNATURE
from tests.cluster.pods import Pods, container
from tests.cluster.scheduling.world import Seen, World, asks

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

SEE = "ls /dev /dev/infiniband 2>/dev/null | grep -E '^(nvidia|uverbs)[0-9]+$' | sort"


def test_two_cards_with_vfs(world: World, pods: Pods) -> None:
    world.run(pods, "train", gpu=2, rdma=2)
    assigned = world.assigned("train")["main"]
    assert (len(set(assigned.gpus)), len(set(assigned.vfs))) == (2, 2)
    world.check(pods, "train")
    env = world.env(pods, "train")
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"  # the devices are there, and no one else is to add some
    assert len(env["NCCL_IB_HCA"].split(",")) == 2
    annotations = world.api.pod("train")["metadata"]["annotations"]
    assert annotations[ASSIGNMENT_SIGNATURE].startswith("ed25519:")
    (grant,) = world.ledger().values()
    assert tuple(sorted(grant.cards)) == assigned.gpus


def test_a_share_is_one_card_and_its_numbers(world: World, pods: Pods) -> None:
    world.run(pods, "small", memory="8Gi", core=30)
    assert len(world.assigned("small")["main"].gpus) == 1
    world.check(pods, "small")
    env = world.env(pods, "small")
    assert (env["LADING_GPU_MEMORY_MIB"], env["LADING_GPU_CORE_PERCENT"]) == ("8192", "30")
    world.run(pods, "next", memory="8Gi", core=30)
    assert world.assigned("next") == world.assigned("small")  # binpack: beside it


def test_each_of_several_containers_has_its_own(world: World, pods: Pods) -> None:
    containers = [
        container("train", resources=asks(gpu=2, rdma=1)),
        container("eval", resources=asks(gpu=1)),
        container("side", resources=asks(memory="4Gi")),
        container("plain"),
    ]
    world.run(pods, "several", containers=containers)
    assigned = world.assigned("several")
    assert set(assigned) == {"train", "eval", "side"}
    cards = [card for observed in assigned.values() for card in observed.gpus]
    assert len(set(cards)) == len(cards) == 4
    world.check(pods, "several")  # `plain` has none, which is looked at too
    assert world.env(pods, "several", container="plain")["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_an_init_container_uses_a_card_of_the_app_and_a_sidecar_has_its_own(world: World, pods: Pods) -> None:
    init = [
        container("prepare", command=["sh", "-c", SEE], resources=asks(gpu=2, rdma=1)),
        container("proxy", command=["sh", "-c", f"{SEE}; exec pause"], resources=asks(memory="2Gi"), restartPolicy="Always"),
        container("warm", command=["sh", "-c", SEE], resources=asks(gpu=1)),
    ]
    world.run(pods, "phases", initContainers=init, containers=[container(resources=asks(gpu=2, rdma=1))])
    assigned = world.assigned("phases")
    main, sidecar = assigned["main"], assigned["proxy"]
    assert assigned["prepare"] == main  # the same cards, but not at the same time
    assert set(assigned["warm"].gpus) < set(main.gpus)
    assert not set(sidecar.gpus) & set(main.gpus)
    assert {name: world.seen(pods.logs("phases", container=name)) for name in ("prepare", "proxy", "warm")} == {
        name: assigned[name] for name in ("prepare", "proxy", "warm")
    }
    world.check(pods, "phases")
    (held,) = world.reported().values()
    assert len(held.cards) == 3  # not five


def test_a_pod_that_asks_for_nothing_has_nothing_and_is_not_centrals(world: World, pods: Pods) -> None:
    world.run(pods, "plain")
    assert "annotations" not in world.api.pod("plain")["metadata"]
    assert world.inside(pods, "plain") == Seen()
