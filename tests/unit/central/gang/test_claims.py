"""Test what a plan holds in the ledger: all of it, or everything as before."""

from collections.abc import Mapping

from central.assignment.model import Part, PlacedContainer, PlacedGpu, Taken
from central.gang.gang import Gang, Member
from central.gang.life import Planned
from central.ledger.model import Claim, Conflict, Holder, OwnClaim
from central.request.gang import GangDialect, GangKey, Membership
from central.request.model import NO_CPU_MEMORY
from central.search.placement import Placement
from lading.vocabulary import PodUid
from tests.unit.central.world import World, uid_of

KEY = GangKey(GangDialect.LADING, "default", "g")
KEPT = PodUid("kept-for-gang/uid-gone")


def on_card(world: World, number: int) -> Planned:
    """Return a plan for one card of n1."""
    gpu = world.ledger.capacity("n1").cards[number].gpu
    container = PlacedContainer(gpus=(PlacedGpu(uuid=gpu.uuid, bdf=gpu.bdf),))
    placement = Placement(containers={"main": container}, taken=Taken(gpus={gpu.uuid: Part(whole=True)}))
    return Planned(node="n1", placement=placement)


def hold(world: World, cards: Mapping[str, int]) -> Conflict | None:
    where = {uid_of(name): on_card(world, number) for name, number in cards.items()}
    return world.scheduler.starts.plan(gang_of(world), where, dict.fromkeys(where, NO_CPU_MEMORY), until=60.0, counts=True)


def put_gang(world: World, *names: str) -> None:
    for name in names:
        member = Member(uid=uid_of(name), namespace="default", name=name, membership=Membership(gang=KEY))
        world.scheduler.gangs.put(member)


def gang_of(world: World) -> Gang:
    gang = world.scheduler.gangs.get(KEY)
    assert gang is not None
    return gang


def keep(world: World, number: int) -> None:
    """Keep the place of a former member, which was bound."""
    deleted = OwnClaim(holder=Holder(pod=KEPT), node="n1", taken=on_card(world, number).placement.taken)
    assert world.ledger.claims.plan([deleted]) is None
    world.scheduler.gangs.put_life(KEY, gang_of(world).life.keeping(uid_of("gone"), deleted))


def own_claims(world: World) -> dict[PodUid, dict[Claim, OwnClaim]]:
    return {uid: dict(own) for uid, own in world.ledger.snapshot().own.items()}


def five_cards() -> World:
    return World.of(n1=5)


def test_a_plan_that_conflicts_leaves_everything_as_it_was() -> None:
    world = five_cards()
    put_gang(world, "a", "b", "c")
    assert hold(world, {"a": 0, "b": 1, "c": 2}) is None
    keep(world, 3)
    other = OwnClaim(holder=Holder(pod=uid_of("other")), node="n1", taken=on_card(world, 4).placement.taken)
    assert world.ledger.claims.plan([other]) is None
    world.ledger.claims.nominate(uid_of("c"), "n1", on_card(world, 2).placement.taken, 5.0)
    before, gang = own_claims(world), gang_of(world)
    assert hold(world, {"a": 1, "b": 3, "c": 4}) is not None
    assert own_claims(world) == before
    assert gang_of(world) == gang


def test_members_may_take_each_others_places_and_those_that_were_kept_or_predicted() -> None:
    world = five_cards()
    put_gang(world, "a", "b", "c")
    assert hold(world, {"a": 0, "b": 1}) is None
    keep(world, 2)
    world.ledger.claims.predict(uid_of("c"), "n1", on_card(world, 3).placement.taken, 5.0)
    assert hold(world, {"a": 3, "b": 0, "c": 2}) is None
    assert gang_of(world).life.kept == {}
    assert {uid: [*own] for uid, own in own_claims(world).items()} == {uid_of(name): [Claim.PLANNED] for name in "abc"}
    assert sum(card.free for card in world.ledger.capacity("n1").cards) == 2
